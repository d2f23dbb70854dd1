/* guess.h - what may follow a text by a smaller model: speculation with a draft model (Leviathan et al. 2023,
 * Chen et al. 2023). It says its likeliest tokens, one pass for each; the model that answers computes them as
 * rows of one pass and draws as it would without them (batch_step.c). So the tokens of answers are the same
 * ones, whatever the draft model says.
 *
 * Each place of the batch has a sequence of its own in the draft model's engine, which keeps what is
 * computed: the next time it begins with the tokens that were drawn meanwhile. One thread at a time. */
#ifndef NIB_SESSION_GUESS_H
#define NIB_SESSION_GUESS_H

#include "engine/engine.h"

typedef struct guesser guesser;

/* n_slot sequences of at most n_ctx positions, as far as the draft model goes, for answers of `target`; both
 * engines are borrowed. NIB_E_USAGE: their tokens are not the same. NIB_E_NOFIT: the draft model's engine has
 * no room for so many. */
nib_status guesser_open(nib_engine *with, nib_engine *target, int32_t n_slot, int64_t n_ctx, guesser **out,
                        nib_error *err);
void guesser_close(guesser *g); /* NULL is fine */

/* Of `most` tokens behind tokens[0..n), how many its context has room for. */
int64_t guesser_can(const guesser *g, int64_t n, int64_t n_max);
/* The n_out that it says follow tokens[0..n) into out; guesser_can allows them. What it has not seen of the
 * text is computed first. */
nib_status guesser_follow(guesser *g, int32_t slot, const int32_t *tokens, int64_t n, int64_t n_out,
                          int32_t *out, nib_error *err);
/* Seconds that one more token takes; 0: none was ever made. */
double guesser_cost(const guesser *g);

#endif
