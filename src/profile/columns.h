/* columns.h - how much each input channel of a product matters (the saliency of MCAP's mode C, after AWQ):
 * the mean square of what the product reads there, over the tokens of the calibration prompts. Measured once
 * for a model's weights (measure/measure.h); guides the rounding of its matrices (pack_from.columns).
 *
 * A site is one input that some products share (q, k and v have one). Sites are numbered in the order in
 * which a pass comes to them (engine/saliency.h). */
#ifndef NIB_PROFILE_COLUMNS_H
#define NIB_PROFILE_COLUMNS_H

#include "base/status.h"

typedef struct columns {
    char content[40], prompts[40];
    int n_site;
    uint64_t *first; /* [n_site + 1]: where a site's channels begin in mean */
    float *mean;     /* [first[n_site]]: mean square, 0 or more */
    uint64_t n_byte; /* of both arrays */
} columns;

/* Bytes of both arrays; false: too many. */
bool columns_bytes(const int64_t *k, int n_site, uint64_t *bytes);
/* Room for sites of k[i] channels, all 0. */
nib_status columns_begin(columns *c, const int64_t *k, int n_site, nib_error *err);
void columns_clear(columns *c); /* zeroed is fine */

/* $XDG_CACHE_HOME/nibble/importance/<content>-<prompts>-columns.nibcol; caller frees. NULL: no memory. */
char *columns_path(const char *content, const char *prompts);
char *columns_find(const char *content); /* the latest of these weights; as profile_find */

/* The file: a head with a version, keys and the sites' widths; the means; a checksum of all. NIB_E_MODEL: it
 * is damaged, or of other weights than `content` or other sites than n_site of k[i] channels; NIB_E_NOTFOUND:
 * there is none. *out is set only on success. */
nib_status columns_load(const char *path, const char *content, const int64_t *k, int n_site, columns *out,
                        nib_error *err);
/* Makes the folders; the file is whole or absent. */
nib_status columns_save(const char *path, const columns *c, nib_error *err);

#endif
