/* importance.h - the importance of each layer (MCAP, paper 3.1): a profile measured once for a model's
 * weights, on any machine, and stored as a small JSON file.
 *
 * Algorithm 1 of the paper: s_i = mean over prompts of the mean over tokens of |[Q x; V x]|_2 + |FFN(x)|_2 in
 * layer i, from a real pass with attention and positions; then min-max to 0...1, all 0 when they are equal.
 * The other signals are those of the paper's comparison (4.8) and cheap alternatives.
 *
 * No model is computed here: measure/measure.h adds up the tokens. The file has the results, and nothing
 * about the machine or the time: the same weights and prompts give the same bytes everywhere. */
#ifndef NIB_PROFILE_IMPORTANCE_H
#define NIB_PROFILE_IMPORTANCE_H

#include "base/status.h"

#include <stdbool.h>

typedef enum importance_signal {
    IMPORTANCE_MCAP,   /* attention proxy + FFN magnitude: the paper's */
    IMPORTANCE_ATTN,   /* |[Q x; V x]|_2 alone */
    IMPORTANCE_FFN,    /* |FFN(x)|_2 alone */
    IMPORTANCE_INPUT,  /* |x|_2 of the layer's input: the paper's naive baseline */
    IMPORTANCE_COSINE, /* 1 - cos(input, output) of the layer */
    IMPORTANCE_FISHER, /* gradient-free: squared relative update |output - input|^2 / |input|^2 */
    IMPORTANCE_N
} importance_signal;
const char *importance_signal_name(importance_signal s); /* "mcap", "attn", ... */

#define IMPORTANCE_TAU 0.7 /* the paper's threshold: layers with a score below it take 8-bit activations */

typedef struct importance {
    char content[40]; /* the model's content key: a profile for other weights is refused */
    char prompts[40]; /* hash of the calibration prompts' tokens */
    int n_layer, n_prompt;
    int64_t n_token;
    double
        *by_prompt[IMPORTANCE_N]; /* [n_prompt * n_layer] each: sums over the prompt's tokens, its means after
                                     importance_finish; a profile from a file has IMPORTANCE_MCAP's only */
    double *raw[IMPORTANCE_N];    /* [n_layer] each: means over prompts */
    double *spread[IMPORTANCE_N]; /* [n_layer] each: standard deviations over prompts */
    double *score;                /* [n_layer]: IMPORTANCE_MCAP in 0...1 */
    double half_overlap;     /* overlap of the k = ceil(n_layer / 4) first layers by the two halves of the
                                prompts, mean over random halves; negative: fewer than two prompts */
    double half_overlap_min; /* the smallest of these overlaps */
    double sigma, gap;       /* largest spread of a layer; difference of the two largest raw scores */
    double bound; /* the paper's bound on the probability that top-1 recovery fails (3.1.1); from 1 on it says
                     nothing */
    uint64_t rss_peak,
        model_bytes; /* peak of the measurement (0 in a loaded profile); bytes of the weights in the files */
} importance;

void importance_clear(importance *p); /* zeroed is fine */

/* Allocates the sums, all 0. */
nib_status importance_begin(importance *p, int n_layer, int n_prompt, nib_error *err);
/* Adds one token's signals in a layer. */
void importance_add(importance *p, int prompt, int layer, const double signals[IMPORTANCE_N]);
/* Computes all other members from the sums. n_token: [n_prompt]. */
nib_status importance_finish(importance *p, const int64_t *n_token, nib_error *err);

/* ---- single steps ---- */
/* Scales to 0...1; all are 0 if the largest and the smallest differ by less than a billionth of the
 * largest. */
void importance_normalise(const double *raw, int n, double *score);
/* Orders the layers by falling score; equal ones by number. */
void importance_rank(const double *scores, int n, int *order);
/* Share (0...1) of the k most important layers that two lists of scores have in common. */
double importance_overlap(const double *a, const double *b, int n, int k, int *scratch /* [2 * n] */);
/* Proposition of section 3.1.1: the probability that the k first of n_layer layers are not the true ones is
 * at most 2 k (n_layer - k) exp(-n_prompt gap^2 / (8 sigma^2)). */
double importance_failure_bound(int n_layer, int k, int n_prompt, double gap, double sigma);

/* ---- the file ---- */
/* $XDG_CACHE_HOME/nibble/importance/<content>-<prompts>.json; caller frees. NULL: no memory. */
char *importance_path(const char *content, const char *prompts);
/* The latest profile of these weights in that folder, whatever its prompts; NULL: none. Caller frees. */
char *importance_find(const char *content);
nib_status importance_print(const importance *p, char **text, nib_error *err); /* caller frees: mem_free */
/* content: the model's content key (NULL: any). NIB_E_MODEL: a profile of another model, or names the wrong
 * place in the text. NIB_E_NOTFOUND: no
 * such file. */
nib_status importance_load(const char *path, const char *content, importance *out, nib_error *err);
nib_status importance_save(const char *path, const importance *p, nib_error *err);

#endif
