/* tune.c - see tune.h. */
#include "plan/tune.h"

#include "base/num.h"

#include <string.h>

enum {
    CHUNK = 1024,
    CHECKS = 5, /* number of repeated measurements, alternating between the choice and no residuals */
    FILLS = 12  /* maximum number of larger choices that are checked */
};

/* Shares of the target: the rest is a margin for noise, and for runs that differ from the measured one. */
static const double SEARCHED = 0.86, CHECKED = 0.93, FILLED = 0.9 /* enough */;

bool tune_is_viable(const tune_kind *kind, int n_tb) {
    const int64_t segments = num_div_up(kind->n, TUNE_SEGMENT), n = n_tb;
    if (n < 1)
        return false;
    return n <= num_div_up(kind->k, CHUNK) ||
           (n <= segments && num_div_up(segments, num_div_up(segments, n)) == n);
}

int tune_blocks(const tune_kind *kind, int max) {
    while (max > 1 && !tune_is_viable(kind, max))
        max--;
    return NUM_MAX(max, 1);
}

typedef struct search {
    const tune_problem *problem;
    tuned *out;
    bool without[TUNE_MAX_KIND];
    double limit; /* maximum seconds of a token */
} search;

static nib_status time_of(const search *s, const tune_choice *c, double *seconds, nib_error *err) {
    s->out->n_timed++;
    return s->problem->time(s->problem->user, c, seconds, err);
}

static void tell(const search *s, const tune_choice *c, double seconds) {
    if (s->problem->step)
        s->problem->step(s->problem->user, c, seconds, s->out->base);
}

static int64_t height(const search *s, const tune_choice *c) {
    int64_t k = 0;
    for (int i = 0; i < s->problem->n_kind; i++)
        k = NUM_MAX(k, c->k_chunk[i]);
    return k;
}

/* ---- phase 1 ---- */

static void set_all(const search *s, tune_choice *c, int64_t k) {
    for (int i = 0; i < s->problem->n_kind; i++)
        c->k_chunk[i] = s->without[i] ? 0 : k;
}

/* Finds the largest k, common to all kinds, that fits. `low` fits. Doubles the step first, then bisects. */
static nib_status climb(const search *s, tune_choice *c, int64_t low, double *seconds, nib_error *err) {
    int64_t high = s->problem->max_k + 1;
    for (int64_t step = 1; high - low > 1; step *= 2) {
        const bool met = high <= s->problem->max_k;
        const int64_t k = met ? low + (high - low) / 2 : NUM_MIN(low + step, s->problem->max_k);
        double now;
        set_all(s, c, k);
        NIB_TRY(time_of(s, c, &now, err));
        if (now > s->limit) {
            high = k;
            continue;
        }
        low = k;
        *seconds = now;
        tell(s, c, now);
    }
    set_all(s, c, low);
    return NIB_OK;
}

/* Tries one limit of blocks. Measures only as much as shows whether it is better than the best one. */
static nib_status try_blocks(const search *s, tune_choice *c, nib_error *err) {
    const int64_t before = height(s, &s->out->choice);
    double seconds;
    set_all(s, c, NUM_MAX(before, (int64_t)1));
    NIB_TRY(time_of(s, c, &seconds, err));
    if (seconds > s->limit)
        return NIB_OK;
    const int64_t low = NUM_MAX(before, (int64_t)1);
    const double at_low = seconds;
    NIB_TRY(climb(s, c, low, &seconds, err));
    if (height(s, c) > before || at_low < s->out->seconds) {
        s->out->choice = *c;
        s->out->seconds = seconds;
    }
    return NIB_OK;
}

/* Removes the residuals of the kind with the smallest matrix that has some; false: none has any. */
static bool drop_smallest(search *s) {
    int smallest = -1;
    for (int i = 0; i < s->problem->n_kind; i++) {
        const tune_kind *k = &s->problem->kinds[i],
                        *other = smallest < 0 ? NULL : &s->problem->kinds[smallest];
        if (!s->without[i] && (!other || k->n * k->k < other->n * other->k))
            smallest = i;
    }
    if (smallest >= 0)
        s->without[smallest] = true;
    return smallest >= 0;
}

static nib_status choose_blocks(search *s, nib_error *err) {
    bool any = true;
    for (; any && height(s, &s->out->choice) == 0; any = height(s, &s->out->choice) > 0 || drop_smallest(s)) {
        tune_choice last = {{0}, {0}};
        bool left = false;
        for (int i = 0; i < s->problem->n_kind; i++)
            left |= !s->without[i];
        for (int max = 1; left && max <= s->problem->max_blocks; max++) {
            tune_choice c = {{0}, {0}};
            for (int i = 0; i < s->problem->n_kind; i++)
                c.n_tb[i] = tune_blocks(&s->problem->kinds[i], max);
            if (!memcmp(c.n_tb, last.n_tb, sizeof c.n_tb))
                continue;
            last = c;
            NIB_TRY(try_blocks(s, &c, err));
        }
    }
    return NIB_OK;
}

/* ---- phase 2 ---- */

/* Orders the kinds by the cost of `step` more channels. *n: number of kinds for which they fit; these come
 * first. */
static nib_status order_kinds(const search *s, int64_t step, int *order, int *n, nib_error *err) {
    double cost[TUNE_MAX_KIND];
    *n = 0;
    for (int i = 0; i < s->problem->n_kind; i++) {
        tune_choice next = s->out->choice;
        double seconds;
        next.k_chunk[i] += step;
        if (s->without[i] || next.k_chunk[i] > s->problem->max_k)
            continue;
        NIB_TRY(time_of(s, &next, &seconds, err));
        if (seconds > s->limit)
            continue;
        int at = (*n)++;
        for (; at > 0 && cost[at - 1] > seconds; at--) {
            cost[at] = cost[at - 1];
            order[at] = order[at - 1];
        }
        cost[at] = seconds;
        order[at] = i;
    }
    return NIB_OK;
}

static nib_status choose_channels(const search *s, nib_error *err) {
    int64_t step = 1;
    while (step * 2 <= height(s, &s->out->choice))
        step *= 2;
    while (step > 0 && height(s, &s->out->choice) > 0) {
        int order[TUNE_MAX_KIND], n, taken = 0;
        NIB_TRY(order_kinds(s, step, order, &n, err));
        for (int i = 0; i < n; i++) {
            tune_choice next = s->out->choice;
            double seconds;
            next.k_chunk[order[i]] += step;
            NIB_TRY(time_of(s, &next, &seconds, err));
            if (seconds > s->limit)
                continue;
            s->out->choice = next;
            s->out->seconds = seconds;
            taken++;
            tell(s, &next, seconds);
        }
        if (!taken)
            step /= 2;
    }
    return NIB_OK;
}

/* ---- checking the choice ---- */

/* Makes the choice smaller by a sixteenth. Kinds with one channel lose it last, one at a time, the smallest
 * matrix first. */
static void shrink(const search *s, tune_choice *c) {
    int smallest = -1;
    for (int i = 0; i < s->problem->n_kind; i++) {
        const tune_kind *k = &s->problem->kinds[i],
                        *other = smallest < 0 ? NULL : &s->problem->kinds[smallest];
        if (c->k_chunk[i] > 0 && (!other || k->n * k->k < other->n * other->k))
            smallest = i;
    }
    if (height(s, c) == 1)
        c->k_chunk[smallest] = 0;
    for (int i = 0; i < s->problem->n_kind; i++)
        if (c->k_chunk[i] > 1)
            c->k_chunk[i] -= (c->k_chunk[i] + 15) / 16;
}

static void sort(double *x) {
    for (int i = 1; i < CHECKS; i++)
        for (int k = i; k > 0 && x[k - 1] > x[k]; k--) {
            const double kept = x[k];
            x[k] = x[k - 1];
            x[k - 1] = kept;
        }
}

/* Measures a choice and no residuals in turns. *base: the median without residuals; *seconds: the slowest
 * with them, because a graph may take one of two times, depending on how its kernels overlap. */
static nib_status time_in_turns(const search *s, const tune_choice *c, double *base, double *seconds,
                                nib_error *err) {
    double without[CHECKS], with[CHECKS];
    tune_choice none = *c;
    memset(none.k_chunk, 0, sizeof none.k_chunk);
    for (int i = 0; i < CHECKS; i++) {
        NIB_TRY(time_of(s, &none, &without[i], err));
        NIB_TRY(time_of(s, c, &with[i], err));
    }
    sort(without);
    sort(with);
    *base = without[CHECKS / 2];
    *seconds = with[CHECKS - 1];
    return NIB_OK;
}

static double share_of_target(const search *s, double base, double seconds) {
    return s->problem->target > 0 ? (seconds / base - 1) / s->problem->target : 1;
}

/* Makes the choice smaller until the slowest of its times is within the target. */
static nib_status check(const search *s, nib_error *err) {
    tuned *t = s->out;
    while (height(s, &t->choice) > 0) {
        NIB_TRY(time_in_turns(s, &t->choice, &t->base, &t->seconds, err));
        if (t->seconds <= t->base * (1 + CHECKED * s->problem->target))
            return NIB_OK;
        shrink(s, &t->choice);
    }
    t->seconds = t->base;
    return NIB_OK;
}

/* The kinds with residuals, ordered by bytes of a channel, smallest first. */
static int smallest_first(const search *s, int *order) {
    int n = 0;
    for (int i = 0; i < s->problem->n_kind; i++) {
        if (s->out->choice.k_chunk[i] == 0)
            continue;
        int at = n++;
        for (; at > 0 && s->problem->kinds[order[at - 1]].n * s->problem->kinds[order[at - 1]].k >
                             s->problem->kinds[i].n * s->problem->kinds[i].k;
             at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return n;
}

/* Adds `step` channels to single kinds if the check allows it. *taken: whether any kind got more. */
static nib_status fill_by(const search *s, int64_t step, int *left, bool *taken, nib_error *err) {
    tuned *t = s->out;
    int order[TUNE_MAX_KIND];
    const int n = smallest_first(s, order);
    *taken = false;
    for (int i = 0; i < n && share_of_target(s, t->base, t->seconds) < FILLED && *left > 0; i++) {
        tune_choice next = t->choice;
        double base, seconds;
        next.k_chunk[order[i]] += step;
        if (next.k_chunk[order[i]] > s->problem->max_k)
            continue;
        NIB_TRY(time_of(s, &next, &seconds, err));
        if (seconds > t->base * (1 + CHECKED * s->problem->target))
            continue; /* most are too slow in a single measurement */
        --*left;
        NIB_TRY(time_in_turns(s, &next, &base, &seconds, err));
        if (seconds > base * (1 + CHECKED * s->problem->target))
            continue;
        t->choice = next;
        t->base = base;
        t->seconds = seconds;
        *taken = true;
        tell(s, &next, seconds);
    }
    return NIB_OK;
}

/* Uses what search and check have left of the target, if it is more than a tenth. A larger choice is checked
 * again, because a single measurement may have been lucky. */
static nib_status fill(const search *s, nib_error *err) {
    int left = FILLS;
    bool any = false, taken;
    int64_t step = NUM_MAX(height(s, &s->out->choice) / 8, (int64_t)1);
    while (step > 0 && left > 0 && height(s, &s->out->choice) > 0 &&
           share_of_target(s, s->out->base, s->out->seconds) < FILLED) {
        NIB_TRY(fill_by(s, step, &left, &taken, err));
        any |= taken;
        step = taken ? step : step / 2;
    }
    return any ? check(s, err) : NIB_OK;
}

nib_status tune(const tune_problem *a, tuned *out, nib_error *err) {
    search s = {.problem = a, .out = out};
    if (a->n_kind < 1 || a->n_kind > TUNE_MAX_KIND || a->max_blocks < 1 || a->max_blocks > TUNE_MAX_BLOCKS ||
        a->max_k < 1 || a->max_k > CHUNK || !(a->target >= 0))
        return nib_fail(err, NIB_E_USAGE,
                        "expected 1 to %d kinds of products, 1 to %d blocks and 1 to %d channels",
                        TUNE_MAX_KIND, TUNE_MAX_BLOCKS, CHUNK);
    *out = (tuned){0};
    for (int i = 0; i < TUNE_MAX_KIND; i++)
        out->choice.n_tb[i] = 1;
    NIB_TRY(time_of(&s, &out->choice, &out->base, err)); /* the first one warms up */
    NIB_TRY(time_of(&s, &out->choice, &out->base, err));
    out->seconds = out->base;
    s.limit = out->base * (1 + SEARCHED * a->target);
    NIB_TRY(choose_blocks(&s, err));
    NIB_TRY(choose_channels(&s, err));
    NIB_TRY(check(&s, err));
    return fill(&s, err);
}
