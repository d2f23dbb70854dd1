/* importance.h - how much each layer matters (MCAP, paper 3.1): a profile measured once for a model's
 * weights, on any machine, and kept as a small JSON under $XDG_CACHE_HOME/nibble/importance/.
 *
 * Algorithm 1 of the paper: s_i = mean over prompts of the mean over tokens of |[Q x; V x]|_2 + |FFN(x)|_2 in
 * layer i, from a real pass with attention and positions; then min-max to 0...1, all 0 when they are flat.
 * The other signals are those of the paper's comparison (4.8) and cheap alternatives. */
#ifndef NIB_PROFILE_IMPORTANCE_H
#define NIB_PROFILE_IMPORTANCE_H

#include "base/status.h"

typedef enum importance_signal {
    IMPORTANCE_MCAP,   /* attention proxy + FFN magnitude: the paper's */
    IMPORTANCE_ATTN,   /* |[Q x; V x]|_2 alone */
    IMPORTANCE_FFN,    /* |FFN(x)|_2 alone */
    IMPORTANCE_INPUT,  /* |x|_2 of the layer's input: the paper's naive baseline */
    IMPORTANCE_COSINE, /* 1 - cos(input, output) of the layer */
    IMPORTANCE_FISHER, /* gradient-free: squared relative update |output - input|^2 / |input|^2 */
    IMPORTANCE_N
} importance_signal;

typedef struct importance {
    char content[40]; /* the model's content key: a profile for other weights is refused */
    char prompts[40]; /* hash of the calibration prompts' tokens */
    int n_layer, n_prompt;
    int64_t n_token;
    double *raw[IMPORTANCE_N];    /* [n_layer] each: means */
    double *spread[IMPORTANCE_N]; /* [n_layer] each: standard deviation over prompts */
    double *score;                /* [n_layer]: IMPORTANCE_MCAP in 0...1 */
    double half_overlap;          /* top-k overlap of the two halves of the prompts, k = ceil(n_layer / 4) */
    double bound; /* the paper's bound on the failure of top-1 recovery (3.1.1); above 1: vacuous */
    uint64_t rss_peak, model_bytes; /* while measuring; and of the weights in the files */
    double seconds;
} importance;

void importance_clear(importance *p); /* zeroed is fine */

/* What lowering one block's matrices alone does to the model's answers, on the same calibration tokens. */
enum { QUALITY_FORMATS = 8 };
typedef struct quality {
    char content[40], prompts[40];
    int n_block, n_format;
    char format[QUALITY_FORMATS][24]; /* uniform formats: "u8g128", "u6g64", ..., "u3g32" */
    double *kl;    /* [n_block * n_format]: mean KL(file's weights || these) at the logits, nats a token */
    double *error; /* [n_block * n_format]: relative RMS error of the block's output */
    double *kl_activation; /* [n_block * 2]: the same with a8 and with a4 activations, against a16 */
} quality;

void quality_clear(quality *q); /* zeroed is fine */

#endif
