/* quality.h - the cost of lower precision, block by block: measured once for a model's weights
 * (measure/measure.h), stored beside the layers' importance, read by the planner.
 *
 * A cost is the mean Kullback-Leibler divergence at the logits, over calibration tokens, from the model with
 * the file's own weights and 16-bit activations to the model with this single change. */
#ifndef NIB_PROFILE_QUALITY_H
#define NIB_PROFILE_QUALITY_H

#include "base/status.h"

/* The loss of the model's answers when one block alone is changed. A negative number: not measured. */
enum { QUALITY_FORMATS = 12, QUALITY_NAME = 24 };
typedef struct quality {
    char content[40], prompts[40];
    int n_block, n_format;
    int64_t n_token;                            /* tokens whose logits were compared */
    char format[QUALITY_FORMATS][QUALITY_NAME]; /* uniform formats: "u8g128", "u6g64", ..., "u3g32" */
    double *kl; /* [n_block * n_format]: mean KL(file's weights || this format) at the logits, nats a token.
                   The matrices that the block owns are changed wherever they are used: a tied head counts
                   with the embedding. Not measured if the format has no fewer bytes than the file's; 0 for a
                   block without matrices of its own */
    double *error;            /* [n_block * n_format]: relative RMS error of the block's output */
    double *kl_activation;    /* [n_block * 2]: the same with a8 and with a4 activations, against a16 */
    double *error_activation; /* [n_block * 2]: relative RMS error of the block's output, likewise */
    double *kl_left_out;      /* [n_block]: without this layer; not measured for other blocks */
    double *place;    /* [n_block]: the layer's place, from 0, in the order in which layers were left out
                         together: the smallest change of the residual stream first. Negative: no layer, or not
                         measured, as in files of older versions with another order */
    double *kl_fewer; /* [n_block]: without the first i layers of that order together; [0] is 0. Costs of
                         single layers do not add up. Not measured for i from the number of layers on */
} quality;

void quality_clear(quality *q); /* zeroed is fine */
/* Allocates n_block blocks with these formats; all values are "not measured". */
nib_status quality_begin(quality *q, int n_block, const char *const *formats, int n_format, nib_error *err);

/* $XDG_CACHE_HOME/nibble/importance/<content>-<prompts>-quality.json; caller frees. NULL: no memory. */
char *quality_path(const char *content, const char *prompts);
char *quality_find(const char *content);                                 /* as importance_find */
nib_status quality_print(const quality *q, char **text, nib_error *err); /* caller frees with mem_free */
/* As importance_load. */
nib_status quality_load(const char *path, const char *content, quality *out, nib_error *err);
nib_status quality_save(const char *path, const quality *q, nib_error *err);

#endif
