/* channel_stats.h - the importance of each input channel of a product: the mean square of its activations
 * over the tokens of the calibration prompts (the statistic of llama.cpp's importance matrix and of AWQ; the
 * saliency of MCAP's mode C). It is measured once for a model's weights (measure/measure.h) and guides the
 * rounding of their matrices (pack_from.columns).
 *
 * A site is one input, which several products may share (q, k and v have one). Sites are numbered in the
 * order in which a pass computes them (engine/saliency.h). */
#ifndef NIB_PROFILE_CHANNEL_STATS_H
#define NIB_PROFILE_CHANNEL_STATS_H

#include "base/status.h"

typedef struct channel_stats {
    char content[40], prompts[40]; /* keys of the weights and of the calibration prompts */
    int n_site;
    uint64_t *first; /* [n_site + 1]: index of each site's first channel in mean */
    float *mean;     /* [first[n_site]]: mean square, 0 or more */
    uint64_t n_byte; /* of both arrays */
} channel_stats;

/* Bytes of both arrays; false: they exceed the bounds. */
bool channel_stats_bytes(const int64_t *k, int n_site, uint64_t *bytes);
/* Allocates sites of k[i] channels, all 0. */
nib_status channel_stats_begin(channel_stats *c, const int64_t *k, int n_site, nib_error *err);
void channel_stats_clear(channel_stats *c); /* zeroed is fine */

/* $XDG_CACHE_HOME/nibble/importance/<content>-<prompts>-columns.nibcol; caller frees. NULL: no memory. */
char *channel_stats_path(const char *content, const char *prompts);
char *channel_stats_find(const char *content); /* the latest of these weights; as profile_find */

/* Loads the file: a header with a version, keys and the sites' widths; the means; a checksum. NIB_E_MODEL: it
 * is damaged, belongs to other weights than `content`, or has other sites than n_site of k[i] channels.
 * NIB_E_NOTFOUND: no such file. *out is set only on success. */
nib_status channel_stats_load(const char *path, const char *content, const int64_t *k, int n_site,
                              channel_stats *out, nib_error *err);
/* Creates the folders; the file is whole or absent. */
nib_status channel_stats_save(const char *path, const channel_stats *c, nib_error *err);

#endif
