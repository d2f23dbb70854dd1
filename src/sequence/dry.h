/* dry.h - DRY ("don't repeat yourself"): lowers the logits of tokens that would continue a repetition.
 *
 * If the last n tokens occurred before, at least dry_allowed_length of them, the token that followed them
 * there is lowered by dry_multiplier * dry_base^(n - dry_allowed_length). A repetition does not reach beyond
 * the last breaker, a text such as a line's end, and tokens with a breaker in them are never lowered. Method
 * and values are llama.cpp's. */
#ifndef NIB_SEQUENCE_DRY_H
#define NIB_SEQUENCE_DRY_H

#include "base/status.h"
#include "tokenizer/tokenizer.h"

enum { DRY_MAX_BREAKERS = 64, DRY_MAX_BREAKER = 40 /* bytes of one */ };

/* A token whose end is the beginning of a breaker: it is one if the tokens of the rest follow. */
typedef struct dry_begin {
    int32_t token;
    size_t rest, n_rest; /* in dry.rests */
} dry_begin;

typedef struct dry {
    nib_sampling how;
    int64_t n_vocab, n_window;
    float *lower;      /* [n_vocab]: subtracted from the logits; all zero between calls; NULL: no DRY */
    int32_t *length;   /* [n_window], scratch */
    uint8_t *breaks;   /* [n_vocab]: the token has a breaker in it */
    dry_begin *begins; /* [n_begin], by token */
    size_t n_begin;
    token_list rests;
} dry;

/* NIB_E_USAGE: too many breakers, or too long ones. */
nib_status dry_check(const nib_sampling *how, nib_error *err);
/* Memory that dry_open allocates, but for breakers of several characters; 0: sampling has no DRY. */
uint64_t dry_bytes(const nib_sampling *how, int64_t n_vocab, int64_t n_ctx);
/* Allocates, and finds the breakers in the vocabulary. tokenizer NULL: no token has one. */
nib_status dry_open(dry *d, const nib_sampling *how, const tokenizer *t, int64_t n_vocab, int64_t n_ctx,
                    nib_error *err);
void dry_close(dry *d); /* zeroed is fine */

/* Sets d->lower for the token after past[0..n), and clears it again. */
void dry_apply(dry *d, const int32_t *past, int64_t n);
void dry_undo(dry *d, const int32_t *past, int64_t n);

#endif
