/* best.c - see best.h. */
#include "exec/cpu/best.h"

#include "base/num.h"
#include "exec/cpu/worker.h"
#include "exec/probe.h"
#include "kernels/act8.h"

#include <math.h>

enum {
    STEP = 32 * PACK_PANEL, /* columns at a time, whose weights and results stay in the cache */
    LD = STEP + PACK_PANEL, /* floats between rows of results, such that rows are in different cache sets */
    TURNS = 2,              /* minimum turns of each thread in a piece with enough columns */
    LANES = 16,             /* lanes of the search for a maximum */
    MIN_LIST = 1024         /* entries of a thread's list; when it is full, logits are computed at once */
};

/* A panel that may have the best token of a row, and an upper bound of its logits. */
typedef struct candidate {
    int32_t panel, row;
    float upper;
} candidate;

/* A thread's knowledge of a row. */
typedef struct seen_row {
    float reach;     /* times an estimate's error: the bound of its deviation; NaN: all logits are NaN */
    float lower;     /* lower bound of the best logit */
    candidate first; /* the panel with the largest estimate */
    float estimate;  /* its largest estimate */
    int32_t id;      /* the best computed token, and its logit; -infinity: none yet */
    float logit;
    int32_t n_exact; /* number of computed panels */
} seen_row;

/* A thread's part of the logits' memory. */
typedef struct area {
    seen_row *rows; /* [n_row] */
    float *error;   /* [STEP] */
    float *upper;   /* [STEP / PACK_PANEL] */
    float *y;       /* [n_row, LD]: estimates, or logits */
    uint8_t *codes; /* [n_row, act_row_bytes(ESTIMATE_ACT, k)] */
    candidate *list;
    int64_t max, n; /* entries of the list; used entries */
} area;

static uint64_t area_bytes(const workspace *ws, int64_t n_row, int64_t n_vocab) {
    return (uint64_t)n_row * (uint64_t)n_vocab * sizeof(float) / (uint64_t)ws->n_thread / 64 * 64;
}

static uint64_t fixed_bytes(const op *o, int64_t n_row) {
    return (uint64_t)n_row * (sizeof(seen_row) + LD * sizeof(float) + act_row_bytes(ESTIMATE_ACT, o->k)) +
           (STEP + STEP / PACK_PANEL) * sizeof(float);
}

static area area_of(const workspace *ws, const op *o, int thread, int64_t n_row) {
    const uint64_t bytes = area_bytes(ws, n_row, o->n);
    uint8_t *at = (uint8_t *)ws->reg[REG_LOGITS] + (uint64_t)thread * bytes;
    area a = {.max = (int64_t)((bytes - fixed_bytes(o, n_row)) / sizeof(candidate))};
    a.error = (float *)(void *)at;
    a.upper = a.error + STEP;
    a.y = a.upper + STEP / PACK_PANEL;
    a.codes = (uint8_t *)(void *)(a.y + n_row * LD);
    a.rows = (seen_row *)(void *)(a.codes + n_row * (int64_t)act_row_bytes(ESTIMATE_ACT, o->k));
    a.list = (candidate *)(void *)(a.rows + n_row);
    return a;
}

bool best_can(const executor *e, const exec_cell *c) {
    const program *p = &layout_block(e->layout, c->block)->program;
    const op *o = probe_head_product(p);
    const workspace *ws = e->ws;
    if (o != &p->ops[p->n_op - 1] || o->kind != OP_LINEAR || o->b >= 0 || o->adds || c->other_views ||
        c->probe || c->hidden || c->logits || e->residuals || c->n_row < BEST_MIN_ROWS)
        return false;
    return (c->act_bits ? c->act_bits : e->act_bits[c->block]) == 8 &&
           c->views[o->w].format.layout == PACK_TILE &&
           area_bytes(ws, c->n_row, o->n) >= fixed_bytes(o, c->n_row) + MIN_LIST * sizeof(candidate);
}

static bool can_estimate(const worker *w, const op *o) {
    const kernel_table *k = w->j->e->kernels;
    return k->estimate && k->estimate_can(&w->j->cell->views[o->w].format, w->j->cell->n_row);
}

/* The number of columns of the product in this job, and (first_token) the token of the first one. A job has
 * the whole matrix, or a piece of its rows; pieces come in order. */
static int64_t n_column(const worker *w, const op *o) {
    return w->j->part ? w->j->part->n : o->n;
}
static int64_t first_token(const worker *w) {
    return w->j->part ? w->j->part_row : 0;
}

/* ---- the rows ---- */

/* Opens a row for estimates: quantizes it for them, and returns seen_row.reach. */
static float open_estimate(const worker *w, const op *o, const area *a, int64_t r) {
    const act_format f = w->acts.format;
    const uint8_t *row = w->j->e->ws->act.codes + r * (int64_t)act_row_bytes(f, o->k);
    const float length =
        estimate_row(f, row, o->k, a->codes + r * (int64_t)act_row_bytes(ESTIMATE_ACT, o->k));
    return 1.02f * SHORTLIST_REACH * length; /* sums round, too */
}

static void open_rows(const worker *w, const op *o, const area *a, bool estimates) {
    for (int64_t r = 0; r < w->j->cell->n_row; r++)
        a->rows[r] = (seen_row){
            .reach = estimates ? open_estimate(w, o, a, r) : 0, .lower = -INFINITY, .logit = -INFINITY};
}

/* ---- logits ---- */

static float largest(const float *y, int64_t n) {
    float max[LANES], best = -INFINITY;
    for (int l = 0; l < LANES; l++)
        max[l] = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            max[l] = y[i + l] > max[l] ? y[i + l] : max[l];
    for (; i < n; i++)
        best = y[i] > best ? y[i] : best;
    for (int l = 0; l < LANES; l++)
        best = max[l] > best ? max[l] : best;
    return best;
}

/* Updates a row's best token by n logits, of which the first is that of token `first`. */
static void take_logits(seen_row *row, const float *y, int64_t n, int64_t first) {
    const float max = largest(y, n);
    if (max < row->logit || !(max > -INFINITY))
        return;
    int64_t id = first;
    for (const float *at = y; *at != max; at++)
        id++;
    if (max > row->logit || id < row->id) {
        row->logit = max;
        row->id = (int32_t)id;
    }
}

/* Computes a panel's logits of one row. */
static void compute(worker *w, const op *o, const area *a, const candidate *c) {
    const int64_t first = (int64_t)c->panel * PACK_PANEL;
    float y[PACK_PANEL];
    product_panel(w, o, c->panel, c->row, y);
    a->rows[c->row].n_exact++;
    take_logits(&a->rows[c->row], y, NUM_MIN(n_column(w, o) - first, (int64_t)PACK_PANEL),
                first_token(w) + first);
}

/* Computes columns [n0, n1) of all rows, at most STEP. */
static void compute_all(worker *w, const op *o, const area *a, int64_t n0, int64_t n1) {
    product_logits(w, o, n0, n1, a->y, LD);
    for (int64_t r = 0; r < w->j->cell->n_row; r++) {
        a->rows[r].n_exact += (int32_t)num_div_up(n1 - n0, PACK_PANEL);
        take_logits(&a->rows[r], a->y + r * LD, n1 - n0, first_token(w) + n0);
    }
}

static bool can_be_best(const area *a, const candidate *c) {
    const seen_row *row = &a->rows[c->row];
    return !(c->upper < row->lower) && !(c->upper < row->logit);
}

/* ---- estimates ---- */

static void add_candidate(worker *w, const op *o, area *a, const candidate *c) {
    if (a->n < a->max)
        a->list[a->n++] = *c;
    else
        compute(w, o, a, c);
}

/* Handles a panel that may have a row's best token by its upper bound. */
static void look_at(worker *w, const op *o, area *a, const candidate *c, const float *y, const float *error) {
    seen_row *row = &a->rows[c->row];
    float max = -INFINITY;
    for (int l = 0; l < PACK_PANEL; l++) {
        const float lower = y[l] - row->reach * error[l];
        row->lower = lower > row->lower ? lower : row->lower;
        max = y[l] > max ? y[l] : max;
    }
    if (max > row->estimate) {
        const candidate before = row->first;
        row->first = *c;
        row->estimate = max;
        if (before.panel >= 0 && can_be_best(a, &before))
            add_candidate(w, o, a, &before);
    } else {
        add_candidate(w, o, a, c);
    }
}

/* A NaN scale of weights gives no estimate: the estimate becomes 0 and its error infinite. Tokens beyond the
 * last one are never the best. */
static void mend(const worker *w, const area *a, int64_t n, int64_t whole) {
    for (int64_t i = 0; i < whole; i++) {
        if (i < n && isfinite(a->error[i]))
            continue;
        a->error[i] = i < n ? INFINITY : 0;
        for (int64_t r = 0; r < w->j->cell->n_row; r++)
            a->y[r * LD + i] = i < n ? 0 : -INFINITY;
    }
}

/* Estimates columns [n0, n1), at most STEP. */
static void estimate(worker *w, const op *o, area *a, int64_t n0, int64_t n1) {
    const int64_t n = n1 - n0, whole = num_round_up(n, PACK_PANEL);
    product_estimates(w, o, n0, n1, a->codes, a->y, LD, a->error);
    mend(w, a, n, whole);
    for (int64_t r = 0; r < w->j->cell->n_row; r++) {
        const float *y = a->y + r * LD, reach = a->rows[r].reach;
        if (!isfinite(reach))
            continue;
        const float max = w->j->e->kernels->upper_bounds(y, a->error, reach, whole, a->upper);
        if (max < a->rows[r].lower || max < a->rows[r].logit)
            continue;
        for (int64_t i = 0; i < whole; i += PACK_PANEL) {
            const candidate c = {(int32_t)((n0 + i) / PACK_PANEL), (int32_t)r, a->upper[i / PACK_PANEL]};
            if (can_be_best(a, &c))
                look_at(w, o, a, &c, y + i, a->error + i);
        }
    }
}

/* Gives the next columns of this thread. Threads take turns with two panels or more, or each has an even
 * part. */
static bool take_columns(const worker *w, const op *o, int64_t *begin, int64_t *end) {
    const job *j = w->j;
    const int64_t n = n_column(w, o);
    const int64_t turn = num_round_up(num_div_up(n, (int64_t)TURNS * w->n_thread), 2 * PACK_PANEL);
    const int64_t step = NUM_MIN(turn, (int64_t)STEP);
    int64_t p0, p1;
    if (j->shares && w->n_thread > 1) {
        share *from = &j->shares[o - layout_block(j->e->layout, j->cell->block)->program.ops];
        *begin = atomic_fetch_add_explicit(&from->next, step, memory_order_relaxed);
        *end = NUM_MIN(*begin + step, n);
        return *begin < n;
    }
    pool_split(num_div_up(n, PACK_PANEL), 1, w->thread, w->n_thread, &p0, &p1);
    *begin = NUM_MAX(*end, p0 * PACK_PANEL);
    *end = NUM_MIN(NUM_MIN(*begin + STEP, p1 * PACK_PANEL), n);
    return *begin < *end;
}

/* Sets each row's lower bound to the largest that any thread has found. */
static void join_bounds(const worker *w, const op *o, const area *a) {
    const int64_t n_row = w->j->cell->n_row;
    for (int t = 0; t < w->n_thread; t++) {
        const area other = area_of(w->j->e->ws, o, t, n_row);
        for (int64_t r = 0; r < n_row && t != w->thread; r++)
            a->rows[r].lower = NUM_MAX(a->rows[r].lower, other.rows[r].lower);
    }
}

/* Keeps the results of earlier pieces, but not their candidates, because their weights are no longer in
 * memory. */
static void run_estimates(worker *w, const op *o, area *a) {
    const int64_t n_row = w->j->cell->n_row;
    int64_t begin = 0, end = 0;
    for (int64_t r = 0; r < n_row; r++) {
        a->rows[r].first.panel = -1;
        a->rows[r].estimate = -INFINITY;
    }
    while (take_columns(w, o, &begin, &end) && !job_is_dropped(w->j))
        estimate(w, o, a, begin, end);
    worker_enter(w, (access[]){{o->out, SPLIT_OTHER, false}}, 1); /* all threads have computed their bounds */
    join_bounds(w, o, a);
    for (int64_t r = 0; r < n_row; r++)
        if (a->rows[r].first.panel >= 0 && can_be_best(a, &a->rows[r].first))
            compute(w, o, a, &a->rows[r].first);
    for (int64_t i = 0; i < a->n && !job_is_dropped(w->j); i++)
        if (can_be_best(a, &a->list[i]))
            compute(w, o, a, &a->list[i]);
}

void run_best(worker *w, const op *o) {
    const bool estimates = can_estimate(w, o);
    area a = area_of(w->j->e->ws, o, w->thread, w->j->cell->n_row);
    int64_t begin = 0, end = 0;
    if (first_token(w) == 0)
        open_rows(w, o, &a, estimates);
    if (estimates)
        run_estimates(w, o, &a);
    while (!estimates && take_columns(w, o, &begin, &end) && !job_is_dropped(w->j))
        compute_all(w, o, &a, begin, end);
}

uint64_t best_collect(const executor *e, int64_t n_row, int32_t *ids, float *logits) {
    const op *o = probe_head_product(&layout_block(e->layout, layout_n_block(e->layout) - 1)->program);
    uint64_t n_exact = 0;
    for (int64_t r = 0; r < n_row; r++) {
        ids[r] = 0;
        logits[r] = -INFINITY;
        for (int t = 0; t < e->ws->n_thread; t++) {
            const area a = area_of(e->ws, o, t, n_row);
            const seen_row *row = &a.rows[r];
            n_exact += (uint64_t)row->n_exact;
            if (row->logit > logits[r] || (row->logit == logits[r] && row->id < ids[r])) {
                ids[r] = row->id;
                logits[r] = row->logit;
            }
        }
    }
    return n_exact;
}
