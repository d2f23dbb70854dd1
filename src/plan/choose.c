/* choose.c - see choose.h. */
#include "plan/choose.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

enum { SECTIONS = 36, OUTER_SECTIONS = 26 };
#define GOLDEN 0.6180339887498949
#define SLACK  1e-12 /* share of a limit by which sums in another order may differ */

/* A linear lower bound of the objective: the sum of weighted option values, plus a constant. */
typedef struct bound {
    choose_option w;
    double rest;
} bound;

enum { PER_TIER = 3, MAX_BOUND = PER_TIER * CHOOSE_MAX_TIER };

typedef struct search {
    const choose_problem *p;
    bool for_loss; /* the objective is the loss */
    double scale_loss, scale_bytes, scale_time;
    int *order;             /* for each block: its options, the most promising first */
    int *at;                /* [n_block]: the search's current index in order */
    double *suffix;         /* [n_bound][n_block + 1]: sums of minima from a block on */
    choose_option *sum;     /* [n_block + 1]: sums over the blocks before each */
    int *choice;            /* the best so far */
    double best, best_time; /* its objective (infinite: there is none yet) and its T */
    choose_option best_sum;
    int tier;                /* the tier whose link is in the bound */
    double before_share;     /* weight of that link against computing, in the phase before */
    double best_x, best_y;   /* arguments of bound_of for the best bound with that tier */
    bound bounds[MAX_BOUND]; /* PER_TIER of each */
    int n_bound, best_bound;
    double tier_dual, dual; /* the best bound with that tier, and over all tiers */
    int64_t nodes;
} search;

static double phase_time(const choose_problem *p, double computing, double bytes, double n_read,
                         double apart) {
    double links = 0;
    for (int t = 0; t < p->n_tier; t++) {
        const double over = n_read * NUM_MAX(bytes - p->tiers[t].capacity, 0);
        links = NUM_MAX(links, p->tiers[t].link_s * over);
        computing += p->tiers[t].busy_s * over;
    }
    return NUM_MAX(links, computing) + apart * NUM_MIN(links, computing);
}

double choose_time(const choose_problem *p, const choose_option *sum) {
    return phase_time(p, sum->time + p->fixed_s, sum->bytes, 1, p->apart) +
           phase_time(p, sum->before, sum->bytes, p->before_reads, 0);
}

static double weigh(const choose_option *w, const choose_option *by) {
    return w->time * by->time + w->bytes * by->bytes + w->loss * by->loss + w->before * by->before;
}

static choose_option add(choose_option a, const choose_option *b) {
    return (choose_option){a.time + b->time, a.bytes + b->bytes, a.loss + b->loss, a.before + b->before};
}

static bool within(double value, double max) {
    return value <= max + SLACK * fabs(max);
}

/* The objective of complete sums; infinite: they violate a limit. */
static double judge(const search *s, const choose_option *sum, double *time) {
    const choose_problem *p = s->p;
    *time = choose_time(p, sum);
    if (!within(sum->bytes, p->max_bytes) || !within(sum->loss, p->max_loss) || !within(*time, p->max_time))
        return INFINITY;
    return s->for_loss ? sum->loss : *time;
}

/* Records the choice (NULL: s->at through s->order) if it is better than the best so far. */
static void offer(search *s, const choose_option *sum, const int *choice) {
    double time;
    const double value = judge(s, sum, &time);
    const bool tie = s->for_loss && value <= s->best && time < s->best_time;
    if (!(value < s->best) && !(tie && isfinite(value)))
        return;
    s->best = value;
    s->best_time = time;
    s->best_sum = *sum;
    for (int b = 0; b < s->p->n_block; b++)
        s->choice[b] = choice ? choice[b] : s->order[s->p->first[b] + s->at[b]] - s->p->first[b];
}

/* ---- the relaxation ---- */

/* The computing time of bytes up to the current tier: `per_byte` of each, minus `less`. */
static void busy_of(const search *s, double *per_byte, double *less) {
    *per_byte = *less = 0;
    for (int t = 0; t < s->p->n_tier && t <= s->tier; t++) {
        *per_byte += s->p->tiers[t].busy_s;
        *less += s->p->tiers[t].busy_s * s->p->tiers[t].capacity;
    }
}

/* Adds a lower bound of a phase: `computing` times its computing time plus `link` times its link time. */
static void add_phase(const search *s, double computing, double link, double n_read, double fixed_s,
                      bound *b) {
    const choose_problem *p = s->p;
    const choose_tier at = s->tier < p->n_tier ? p->tiers[s->tier] : (choose_tier){0};
    double busy, busy_less;
    busy_of(s, &busy, &busy_less);
    b->w.bytes += n_read * (link * at.link_s + computing * busy);
    b->rest += computing * fixed_s - n_read * (link * at.link_s * at.capacity + computing * busy_less);
}

/* Adds a lower bound of (of_link + of_computing) * T. It uses max(l, c) + apart * min(l, c) >= l + apart * c
 * with the weight of_link, and >= c + apart * l with the weight of_computing. */
static void add_time(const search *s, double of_link, double of_computing, bound *b) {
    const choose_problem *p = s->p;
    const double price = of_link + of_computing, link = price * s->before_share;
    const double computing = of_computing + p->apart * of_link;
    b->w.time += computing;
    add_phase(s, computing, of_link + p->apart * of_computing, 1, p->fixed_s, b);
    b->w.before += price - link;
    add_phase(s, price - link, link, p->before_reads, 0, b);
}

/* The bound when the loss is minimized. px, py: prices of computing and of bytes. The limit of bytes is the
 * link, which has max_time, or max_bytes. */
static bound bound_of_loss(const search *s, double px, double py) {
    const choose_problem *p = s->p;
    const choose_tier at = s->tier < p->n_tier ? p->tiers[s->tier] : (choose_tier){0};
    const double time = px * s->scale_loss / s->scale_time, bytes = py * s->scale_loss / s->scale_bytes;
    const bool by_link = at.link_s > 0 && at.capacity + p->max_time / at.link_s <= p->max_bytes;
    const double link = by_link ? bytes / at.link_s : 0;
    bound b = {{0, 0, 1, 0}, -(time + link) * p->max_time};
    if (!by_link && isfinite(p->max_bytes)) {
        b.w.bytes += bytes;
        b.rest -= bytes * p->max_bytes;
    }
    add_time(s, link, time, &b);
    return b;
}

/* Maps two numbers in 0...1 to multipliers. When time is minimized: the weight of the link against computing
 * (or, without streaming, the price of bytes), and the price of loss. When the loss is minimized: the prices
 * of time and of bytes. */
static bound bound_of(const search *s, double x, double y) {
    const choose_problem *p = s->p;
    const double px = x / (1 - NUM_MIN(x, 0.999999)), py = y / (1 - NUM_MIN(y, 0.999999));
    if (s->for_loss)
        return bound_of_loss(s, px, py);
    const double loss = py * s->scale_time / s->scale_loss;
    const bool hard = isfinite(p->max_bytes);
    const double share = hard ? 0 : x, bytes = hard ? px * s->scale_time / s->scale_bytes : 0;
    bound b = {{0, bytes, loss, 0}, -loss * p->max_loss};
    if (hard)
        b.rest -= bytes * p->max_bytes;
    add_time(s, share, 1 - share, &b);
    return b;
}

/* The bound's value. Its choice is offered as a solution too, because it often satisfies the limits. */
static double relax(search *s, const bound *by, int *choice) {
    const choose_problem *p = s->p;
    double total = by->rest;
    choose_option sum = {0};
    for (int b = 0; b < p->n_block; b++) {
        double min = INFINITY;
        for (int i = p->first[b]; i < p->first[b + 1]; i++) {
            const double v = weigh(&p->options[i], &by->w);
            if (v < min) {
                min = v;
                choice[b] = i - p->first[b];
            }
        }
        total += min;
        sum = add(sum, &p->options[p->first[b] + choice[b]]);
    }
    offer(s, &sum, choice);
    return total;
}

static double best_y(search *s, double x, int *choice, double *y) {
    double low = 0, high = 1, a = 1 - GOLDEN, c = GOLDEN;
    bound ba = bound_of(s, x, a), bc = bound_of(s, x, c);
    double va = relax(s, &ba, choice), vc = relax(s, &bc, choice);
    for (int i = 0; i < SECTIONS; i++) {
        if (va >= vc) {
            high = c, c = a, vc = va;
            a = high - GOLDEN * (high - low);
            ba = bound_of(s, x, a);
            va = relax(s, &ba, choice);
        } else {
            low = a, a = c, va = vc;
            c = low + GOLDEN * (high - low);
            bc = bound_of(s, x, c);
            vc = relax(s, &bc, choice);
        }
    }
    /* the end points are often the best: no limit binds */
    const bound zero = bound_of(s, x, 0);
    const double v0 = relax(s, &zero, choice), v = NUM_MAX(va, vc);
    *y = v0 >= v ? 0 : va >= vc ? a : c;
    return NUM_MAX(v0, v);
}

static void keep_if_better(search *s, double x, double v, double y) {
    if (v <= s->tier_dual)
        return;
    s->tier_dual = v;
    s->best_x = x;
    s->best_y = y;
    s->bounds[PER_TIER * s->tier] = bound_of(s, x, y);
}

/* Finds the multipliers for the link of one tier; its weight in the phase before is given. */
static void find_multipliers(search *s, int *choice) {
    double low = 0, high = 1, a = 1 - GOLDEN, c = GOLDEN, ya, yc, y0;
    double va = best_y(s, a, choice, &ya), vc = best_y(s, c, choice, &yc);
    for (int i = 0; i < OUTER_SECTIONS; i++) {
        keep_if_better(s, a, va, ya);
        keep_if_better(s, c, vc, yc);
        if (va >= vc) {
            high = c, c = a, vc = va, yc = ya;
            a = high - GOLDEN * (high - low);
            va = best_y(s, a, choice, &ya);
        } else {
            low = a, a = c, va = vc, ya = yc;
            c = low + GOLDEN * (high - low);
            vc = best_y(s, c, choice, &yc);
        }
    }
    keep_if_better(s, a, va, ya);
    keep_if_better(s, c, vc, yc);
    for (int end = 0; end <= 1; end++) { /* their bounds serve the search too */
        const double v = best_y(s, end, choice, &y0);
        s->bounds[PER_TIER * s->tier + 1 + end] = bound_of(s, end, y0);
        keep_if_better(s, end, v, y0);
    }
}

static double try_share(search *s, double share, int *choice) {
    s->before_share = share;
    const bound b = bound_of(s, s->best_x, s->best_y);
    return relax(s, &b, choice);
}

/* Finds the best weight of the link in the phase before; the other multipliers are kept. */
static double best_share(search *s, int *choice) {
    double low = 0, high = 1, a = 1 - GOLDEN, c = GOLDEN;
    double va = try_share(s, a, choice), vc = try_share(s, c, choice);
    for (int i = 0; i < SECTIONS; i++) {
        if (va >= vc) {
            high = c, c = a, vc = va;
            a = high - GOLDEN * (high - low);
            va = try_share(s, a, choice);
        } else {
            low = a, a = c, va = vc;
            c = low + GOLDEN * (high - low);
            vc = try_share(s, c, choice);
        }
    }
    const double v0 = try_share(s, 0, choice), v1 = try_share(s, 1, choice), v = NUM_MAX(va, vc);
    return v0 >= NUM_MAX(v, v1) ? 0 : v1 >= v ? 1 : va >= vc ? a : c;
}

static void find_bounds(search *s) {
    s->dual = -INFINITY;
    for (s->tier = 0; s->tier == 0 || s->tier < s->p->n_tier; s->tier++) {
        s->tier_dual = -INFINITY;
        s->before_share = 0;
        find_multipliers(s, s->at);
        if (s->p->before_reads > 0 && s->p->n_tier > 0) {
            s->before_share = best_share(s, s->at);
            find_multipliers(s, s->at);
        }
        s->n_bound += PER_TIER;
        if (s->tier_dual > s->dual) {
            s->dual = s->tier_dual;
            s->best_bound = PER_TIER * s->tier;
        }
    }
}

/* ---- the search ---- */

static void sort_ways(search *s) {
    const choose_problem *p = s->p;
    for (int b = 0; b < p->n_block; b++)
        for (int i = p->first[b]; i < p->first[b + 1]; i++) {
            int j = i;
            const double v = weigh(&p->options[i], &s->bounds[s->best_bound].w);
            for (; j > p->first[b] && weigh(&p->options[s->order[j - 1]], &s->bounds[s->best_bound].w) > v;
                 j--)
                s->order[j] = s->order[j - 1];
            s->order[j] = i;
        }
}

static void sum_suffixes(search *s) {
    const choose_problem *p = s->p;
    const int n = p->n_block;
    for (int k = 0; k < s->n_bound; k++) {
        double *suffix = s->suffix + k * (n + 1);
        suffix[n] = s->bounds[k].rest;
        for (int b = n - 1; b >= 0; b--) {
            double min = INFINITY;
            for (int i = p->first[b]; i < p->first[b + 1]; i++)
                min = NUM_MIN(min, weigh(&p->options[i], &s->bounds[k].w));
            suffix[b] = suffix[b + 1] + min;
        }
    }
}

/* Whether no completion of these sums, with blocks [b, n) undecided, can beat the best. */
static bool hopeless(const search *s, const choose_option *sum, int b) {
    const choose_problem *p = s->p;
    if (!within(sum->loss, p->max_loss) || !within(sum->bytes, p->max_bytes))
        return true;
    for (int k = 0; k < s->n_bound; k++) {
        const double v = weigh(sum, &s->bounds[k].w) + s->suffix[k * (p->n_block + 1) + b];
        if (v >= s->best - SLACK * fabs(s->best))
            return true;
    }
    return false;
}

/* Depth-first search, each block's most promising option first. True: the whole tree was searched. */
static bool branch(search *s) {
    const choose_problem *p = s->p;
    int b = 0;
    s->sum[0] = (choose_option){0};
    s->at[0] = -1;
    while (b >= 0) {
        if (++s->at[b] == p->first[b + 1] - p->first[b]) {
            b--;
            continue;
        }
        if (++s->nodes > p->max_node)
            return false;
        s->sum[b + 1] = add(s->sum[b], &p->options[s->order[p->first[b] + s->at[b]]]);
        if (b + 1 == p->n_block)
            offer(s, &s->sum[b + 1], NULL);
        else if (!hopeless(s, &s->sum[b + 1], b + 1))
            s->at[++b] = -1;
    }
    return true;
}

/* Sets scales with which a multiplier of 1 weights the limits about equally. */
static void set_scales(search *s) {
    const choose_problem *p = s->p;
    for (int i = 0; i < p->first[p->n_block]; i++) {
        s->scale_time += p->options[i].time + p->options[i].before;
        s->scale_bytes += p->options[i].bytes;
        s->scale_loss += p->options[i].loss;
    }
    for (int t = 0; t < p->n_tier; t++)
        s->scale_time += p->tiers[t].link_s * s->scale_bytes;
    s->scale_time += p->fixed_s;
    s->scale_time = s->scale_time > 0 ? s->scale_time : 1;
    s->scale_bytes = s->scale_bytes > 0 ? s->scale_bytes : 1;
    s->scale_loss = s->scale_loss > 0 ? s->scale_loss : 1;
}

/* Takes the only choice when every block has one option. */
static void take_only(search *s) {
    choose_option sum = {0};
    memset(s->at, 0, (size_t)s->p->n_block * sizeof *s->at);
    for (int b = 0; b < s->p->n_block; b++)
        sum = add(sum, &s->p->options[b]);
    offer(s, &sum, s->at);
}

static void solve(search *s, choose_result *out) {
    s->best = s->best_time = INFINITY;
    if (s->p->first[s->p->n_block] == s->p->n_block) {
        take_only(s);
        out->proved = true;
    } else {
        set_scales(s);
        find_bounds(s);
        sort_ways(s);
        sum_suffixes(s);
        out->proved = branch(s);
    }
    out->found = isfinite(s->best);
    out->time = s->best_time;
    out->bytes = s->best_sum.bytes;
    out->loss = s->best_sum.loss;
    out->bound = out->proved ? s->best : s->dual;
    if (out->found && s->dual >= s->best - 1e-9 * fabs(s->best))
        out->proved = true;
}

nib_status choose(const choose_problem *p, int *choice, choose_result *out, nib_error *err) {
    const size_t n = (size_t)p->n_block, n_option = (size_t)p->first[n];
    search s = {.p = p, .for_loss = isfinite(p->max_time), .choice = choice};
    memset(out, 0, sizeof *out);
    s.order = mem_array(n_option + 1, sizeof *s.order);
    s.at = mem_array(n + 1, sizeof *s.at);
    s.suffix = mem_array(MAX_BOUND * (n + 1), sizeof *s.suffix);
    s.sum = mem_array(n + 1, sizeof *s.sum);
    nib_status status = NIB_OK;
    if (!s.order || !s.at || !s.suffix || !s.sum)
        status = nib_fail_nomem(err, n_option * sizeof *s.order, "planning");
    else
        solve(&s, out);
    mem_free(s.order);
    mem_free(s.at);
    mem_free(s.suffix);
    mem_free(s.sum);
    return status;
}
