/* draft.h - speculation by look-up: tokens that may come next, taken from where the text had the same ones
 * before (prompt look-up: Saxena 2023; its exact verification: Leviathan et al. 2023, section 2). They are
 * rows of one pass together with the token that is known. The sampler draws after each row as it would
 * without them, and goes on as long as it draws what was proposed: so the tokens are the same ones, and only
 * how many passes they take differs.
 *
 * Whether that pays is measured: a pass of more rows takes longer (draft_cost, of all sequences that are
 * computed together), and so many proposals are right (draft, of one sequence). */
#ifndef NIB_SEQUENCE_DRAFT_H
#define NIB_SEQUENCE_DRAFT_H

#include "base/status.h"

enum { DRAFT_MAX = 32, DRAFT_ROWS = 96 /* of a pass with proposals, at most */ };

/* Seconds of a pass by its rows. Zeroed: nothing is known. */
typedef struct draft_cost {
    double seconds[DRAFT_ROWS + 1]; /* 0: not known */
    int64_t at[DRAFT_ROWS + 1];     /* n_pass when it was measured last */
    int64_t n_pass;
} draft_cost;

void draft_cost_note(draft_cost *c, int64_t n_row, double seconds);
/* What n_row rows are expected to take; where more rows were never tried, or long ago, little more than
 * fewer: they are tried then. 0: nothing is known. */
double draft_cost_of(const draft_cost *c, int64_t n_row);

typedef struct draft {
    int32_t tokens[DRAFT_MAX]; /* that are proposed */
    int64_t n;                 /* of them; those that are computed now */
    int64_t n_same;            /* the proposal continues a match of so many tokens */
    double right[2], wrong[2]; /* proposals so far, of short and of long matches; older ones count less */
    int64_t n_row, n_right;    /* proposed and drawn since the beginning */
} draft;

void draft_begin(draft *d);
/* What followed the longest earlier match of the end of tokens[0..n): at most n_max tokens into d->tokens;
 * d->n becomes their number, 0 where nothing matches. */
void draft_propose(draft *d, const int32_t *tokens, int64_t n, int64_t n_max);
/* How many of the d->n to compute, at least n_min, in a pass that has n_row rows without them and gives
 * n_token tokens: those that give the most tokens a second. d->n becomes it; returns the tokens that are
 * expected of them. */
double draft_choose(draft *d, const draft_cost *c, int64_t n_min, int64_t n_row, double n_token);
/* The pass is done: n_right of the d->n were drawn. d->n becomes 0. */
void draft_note(draft *d, int64_t n_right);

#endif
