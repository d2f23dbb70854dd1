/* draft.h - speculation: proposed next tokens, from an earlier place in the text with the same last tokens
 * (prompt look-up: Saxena 2023; its exact verification: Leviathan et al. 2023, section 2), or from a draft
 * model (session/draft_model.h). They are rows of one pass together with the known token. The sampler draws
 * after each row as it would without them, and continues as long as it draws the proposed token. So the
 * tokens are the same, and only the number of passes differs.
 *
 * The number of proposals follows from measurements: the time of passes by their rows (draft_cost, of all
 * sequences that are computed together), and the acceptance rate (draft, of one sequence). */
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

/* Where proposals come from; how often each is right is counted apart. */
typedef enum draft_kind { DRAFT_SHORT, DRAFT_LONG, DRAFT_MODEL, DRAFT_KINDS } draft_kind;

typedef struct draft {
    draft_kind kind;                               /* a short or a long match, or a model's */
    int32_t tokens[DRAFT_MAX];                     /* that are proposed */
    int64_t n;                                     /* of them; those that are computed now */
    int64_t n_same;                                /* the proposal continues a match of so many tokens */
    double right[DRAFT_KINDS], wrong[DRAFT_KINDS]; /* proposals so far; older ones count less */
    int64_t n_row, n_right;                        /* proposed and drawn since the beginning */
} draft;

void draft_begin(draft *d);
/* What followed the longest earlier match of the end of tokens[0..n): at most n_max tokens into d->tokens;
 * d->n becomes their number, 0 where nothing matches. */
void draft_propose(draft *d, const int32_t *tokens, int64_t n, int64_t n_max);
/* A pass in which proposals may be: what it has without them. */
typedef struct draft_pass {
    int64_t n_row;
    double n_token; /* that it gives */
    double seconds; /* that were spent before it, on proposals of others */
    double each;    /* that each proposal takes before it */
} draft_pass;

/* How many of the d->n to compute, at least n_min, in such a pass: those that give the most tokens a second.
 * d->n becomes it; returns the tokens that are expected of them. */
double draft_choose(draft *d, const draft_cost *c, int64_t n_min, const draft_pass *p);
/* The pass is done: n_right of the d->n were drawn. d->n becomes 0. */
void draft_note(draft *d, int64_t n_right);

#endif
