/* draft.c - see draft.h. */
#include "sequence/draft.h"

#include "base/num.h"

#include <string.h>

enum {
    MIN_SAME = 2,    /* minimum tokens of a match: a shorter one predicts little */
    LONG_SAME = 5,   /* from this length on a match is of kind DRAFT_LONG */
    MAX_SAME = 16,   /* matches are not compared beyond this length */
    STALE = 512,     /* number of passes after which a time is measured again */
    MAX_BACK = 65536 /* maximum number of tokens that are searched for a match */
};
#define GUESSED_ROW (1 / 16.0) /* cost of a row beyond the measured ones, as a share of their time */
#define NEW_SHARE   0.2        /* weight of a new time in the moving average */
#define FADE        0.9        /* factor of the old counts at each proposal */
#define FORGET      0.99       /* the same at each pass without a proposal */
#define PRIOR_RIGHT 1.4        /* initial counts, high enough that most kinds are tried once */
#define PRIOR_WRONG 0.6

/* ---- the cost of passes ---- */

void draft_cost_note(draft_cost *c, int64_t n_row, double seconds) {
    c->n_pass++;
    if (n_row < 1 || n_row > DRAFT_ROWS || !(seconds > 0))
        return;
    double *known = &c->seconds[n_row];
    const bool fresh = *known > 0 && c->n_pass - c->at[n_row] < STALE;
    *known = fresh ? *known + NEW_SHARE * (seconds - *known) : seconds;
    c->at[n_row] = c->n_pass;
}

static bool is_known(const draft_cost *c, int64_t n_row) {
    return c->seconds[n_row] > 0 && c->n_pass - c->at[n_row] < STALE;
}

double draft_cost_of(const draft_cost *c, int64_t n_row) {
    int64_t below = NUM_MIN(n_row, (int64_t)DRAFT_ROWS), above = n_row;
    while (below > 0 && !is_known(c, below))
        below--;
    while (above <= DRAFT_ROWS && !is_known(c, above))
        above++;
    if (below == 0)
        return above <= DRAFT_ROWS ? c->seconds[above] : 0;
    if (above > DRAFT_ROWS)
        return c->seconds[below] * (1 + GUESSED_ROW * (double)(n_row - below));
    if (above == below)
        return c->seconds[below];
    return c->seconds[below] +
           (c->seconds[above] - c->seconds[below]) * (double)(n_row - below) / (double)(above - below);
}

/* ---- one sequence ---- */

void draft_begin(draft *d) {
    memset(d, 0, sizeof *d);
}

/* Number of tokens before `at` that equal those at the end of the text. */
static int64_t same_before(const int32_t *tokens, int64_t n, int64_t at) {
    int64_t same = 0;
    while (same < NUM_MIN(at, (int64_t)MAX_SAME) && tokens[at - 1 - same] == tokens[n - 1 - same])
        same++;
    return same;
}

void draft_propose(draft *d, const int32_t *tokens, int64_t n, int64_t n_max) {
    const int64_t first = NUM_MAX(n - MAX_BACK, (int64_t)1);
    int64_t best = 0;
    d->n = 0;
    d->n_same = 0;
    for (int64_t at = n - 1; at >= first && d->n_same < MAX_SAME && n_max > 0; at--) {
        if (tokens[at - 1] != tokens[n - 1])
            continue;
        const int64_t same = same_before(tokens, n, at);
        if (same > d->n_same) {
            d->n_same = same;
            best = at;
        }
    }
    d->kind = d->n_same >= LONG_SAME ? DRAFT_LONG : DRAFT_SHORT;
    if (d->n_same < MIN_SAME)
        return;
    /* If the text ends within the proposal, because it repeats itself, the proposal continues with its own
     * tokens. */
    d->n = NUM_MIN(n_max, (int64_t)DRAFT_MAX);
    for (int64_t i = 0; i < d->n; i++)
        d->tokens[i] = best + i < n ? tokens[best + i] : d->tokens[best + i - n];
}

static double chance(const draft *d) {
    const draft_kind k = d->kind;
    return (d->right[k] + PRIOR_RIGHT) / (d->right[k] + d->wrong[k] + PRIOR_RIGHT + PRIOR_WRONG);
}

/* Expected seconds of the rows that the next pass computes again, if each of k proposals is right with a
 * chance of `right`: as many rows as there are right ones before a wrong one. A row takes its share of the k
 * rows' own time. */
static double again_seconds(const draft_cost *c, const draft_pass *p, int64_t k, double right) {
    const double row = (draft_cost_of(c, p->n_row + k) - draft_cost_of(c, p->n_row)) / (double)k;
    double rows = 0, before = 1;
    for (int64_t i = 1; i < k; i++) {
        before *= right;
        rows += (double)i * before * (1 - right);
    }
    return p->again ? NUM_MAX(row, 0.0) * rows : 0;
}

static double rate_of(double n_token, double seconds, double before) {
    return seconds > 0 ? n_token / (before + seconds) : 0;
}

double draft_choose(draft *d, const draft_cost *c, int64_t n_min, const draft_pass *p) {
    const double right = chance(d);
    const int64_t max = NUM_MIN(d->n, DRAFT_ROWS - p->n_row);
    double best = rate_of(p->n_token, draft_cost_of(c, p->n_row), p->seconds);
    double expected = 0, best_expected = 0, each = 1;
    int64_t n = 0;
    for (int64_t k = 1; k <= max; k++) {
        each *= right;
        expected += each;
        const double rate =
            rate_of(p->n_token + expected, draft_cost_of(c, p->n_row + k),
                    p->seconds + (double)NUM_MAX(k - p->n_free, 0) * p->each + again_seconds(c, p, k, right));
        if (k <= n_min || rate > best) {
            best = NUM_MAX(best, rate);
            best_expected = expected;
            n = k;
        }
    }
    for (int k = 0; k < DRAFT_KINDS && n == 0; k++) {
        d->right[k] *= FORGET;
        d->wrong[k] *= FORGET;
    }
    d->n = n;
    return best_expected;
}

void draft_note(draft *d, int64_t n_right) {
    const draft_kind k = d->kind;
    if (d->n == 0)
        return;
    d->right[k] = d->right[k] * FADE + (double)n_right;
    d->wrong[k] = d->wrong[k] * FADE + (n_right < d->n);
    d->n_row += d->n;
    d->n_right += n_right;
    d->n = 0;
}
