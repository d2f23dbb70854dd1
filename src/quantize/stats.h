/* stats.h - the importance of each column of each tensor: the mean square of its inputs. */
#ifndef NIB_QUANTIZE_STATS_H
#define NIB_QUANTIZE_STATS_H

#include "measure/calibrate.h"
#include "model/as_gguf.h"
#include "profile/channel_stats.h"

typedef struct stats {
    const float **of;       /* [n_tensor that are written]: k means, or NULL: not known */
    channel_stats channels; /* whose means they are, when they were measured */
    float *own;             /* when they come from a file */
    char key[40];           /* of what they were measured with; "": none */
    int64_t n_token;
} stats;

/* The inputs of its products, as profiles of channels have them. */
typedef struct stats_sites {
    int64_t *k; /* [n] */
    int n;
} stats_sites;
nib_status stats_widths(stats_sites *s, const model *m, nib_error *err);
void stats_widths_clear(stats_sites *s); /* zeroed is fine */

/* Of a model whose channels were measured. Takes *channels. */
nib_status stats_of_channels(stats *s, const model *m, const gguf_tensors *tensors, channel_stats *channels,
                             nib_error *err);
void stats_close(stats *s); /* zeroed is fine */

#endif
