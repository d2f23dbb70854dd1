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

enum { DRAFT_MAX = 32, DRAFT_ROWS = 96 /* maximum rows of a pass with proposals */ };

/* Seconds of a pass by its rows. Zeroed: unknown. */
typedef struct draft_cost {
    double seconds[DRAFT_ROWS + 1]; /* by number of rows; 0: unknown */
    int64_t at[DRAFT_ROWS + 1];     /* n_pass at the last measurement */
    int64_t n_pass;
} draft_cost;

/* Records the time of a pass with n_row rows. */
void draft_cost_note(draft_cost *c, int64_t n_row, double seconds);
/* Predicted seconds of a pass with n_row rows; 0: unknown. If no pass had this many rows, or the last one was
 * long ago, the prediction is only a little above that for fewer rows, so that a pass tries them. */
double draft_cost_of(const draft_cost *c, int64_t n_row);

/* The source of proposals; the acceptance rate is counted for each. */
typedef enum draft_kind { DRAFT_SHORT, DRAFT_LONG, DRAFT_MODEL, DRAFT_KINDS } draft_kind;

typedef struct draft {
    draft_kind kind;           /* a short or a long match, or a model's */
    int32_t tokens[DRAFT_MAX]; /* the proposed tokens */
    int64_t n;                 /* number of them; after draft_choose the number to be computed */
    int64_t n_same;            /* length of the match that the proposal continues */
    double right[DRAFT_KINDS],
        wrong[DRAFT_KINDS]; /* accepted and rejected proposals; older ones count less */
    int64_t n_row, n_right; /* proposed tokens, and accepted ones, since the beginning */
} draft;

void draft_begin(draft *d); /* initialises the counts of a new sequence */
/* Proposes the tokens that followed the longest earlier match of the end of tokens[0..n): at most n_max, into
 * d->tokens; d->n becomes their number, 0 without a match. */
void draft_propose(draft *d, const int32_t *tokens, int64_t n, int64_t n_max);
/* A pass that may get proposals: its rows and time without them. */
typedef struct draft_pass {
    int64_t n_row;
    double n_token; /* expected tokens that it produces */
    double seconds; /* seconds before it for other sequences' proposals */
    double each;    /* seconds that each proposal takes before it, except the first n_free ones */
    int64_t n_free;
    bool again; /* if one is wrong, the next pass computes the right ones before it again: a recurrent state
                   has gone back to what it was before all of them */
} draft_pass;

/* Chooses how many of the d->n to compute in such a pass, at least n_min: the number with the most tokens a
 * second. Sets d->n to it, and returns the expected number of accepted tokens. */
double draft_choose(draft *d, const draft_cost *c, int64_t n_min, const draft_pass *p);
/* To be called after the pass: n_right of the d->n were accepted. d->n becomes 0. */
void draft_note(draft *d, int64_t n_right);

#endif
