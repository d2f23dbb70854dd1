/* stats.h - the importance of each column of each tensor: the mean square of its inputs. */
#ifndef NIB_QUANTIZE_STATS_H
#define NIB_QUANTIZE_STATS_H

#include "measure/calibrate.h"
#include "model/as_gguf.h"
#include "profile/channel_stats.h"

typedef struct stats {
    const float **of; /* [number of tensors written]: [k] mean squares, borrowed from `channels` or `own`;
                         NULL: not known */
    channel_stats channels; /* owns the means when they were measured */
    float *own;             /* owns the means when they come from a file */
    char key[40];           /* hash of the prompts that they were measured with; "": none */
    int64_t n_token;        /* tokens of those prompts */
} stats;

/* The widths of a model's product inputs, in the order of channel_stats. */
typedef struct stats_sites {
    int64_t *k; /* [n]; owned */
    int n;
} stats_sites;
/* NIB_E_NOMEM. The caller calls stats_widths_clear. */
nib_status stats_widths(stats_sites *s, const model *m, nib_error *err);
void stats_widths_clear(stats_sites *s); /* zeroed is fine */

/* Importance from measured channels, for each tensor that a product reads. Takes ownership of *channels, also
 * on an error. *s is zeroed before. NIB_E_NOMEM. Call stats_close after an error too. */
nib_status stats_of_channels(stats *s, const model *m, const gguf_tensors *tensors, channel_stats *channels,
                             nib_error *err);
void stats_close(stats *s); /* zeroed is fine */

#endif
