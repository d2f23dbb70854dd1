/* head.c - the output head with a shortlist (shortlist.h). It computes one row at a time. The division of
 * columns among threads changes no bit. */
#include "exec/cpu/worker.h"

#include "base/num.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEP = 32,       /* panels that are estimated and then examined at a time */
    LANES = 16,      /* lanes of the loops below */
    BLOCK = 256,     /* columns that one comparison can exclude */
    FIRST_ROUND = 2, /* panels of the first round of reads, or n_best if that is more: most of them have one
                       of the best */
    ROUND = 16       /* panels of a later round of reads */
};

typedef struct search {
    const job *j;
    const op *o;
    int at; /* the op's number */
    shortlist *s;
    float reach;     /* times a row's step: the bound of its estimate's deviation */
    float threshold; /* lower bound of the n_best-th largest logit */
    act_format rough, exact;
} search;

static worker begin(const search *k, int thread, int n_thread) {
    worker w = worker_of(k->j, thread, n_thread);
    op_trace *trace = k->j->e->trace;
    if (trace) {
        w.trace = trace_at(trace, thread, k->j->cell->block, k->at);
        w.since = time_thread();
    }
    return w;
}

static void end(worker *w) {
    if (w->trace)
        worker_charge(w);
}

static void quantize(worker *w, const op *o, act_format f) {
    w->acts = (act_state){o->in, f, true};
    product_quantize_row(w, worker_at(w, o->in, 0, o->k), o->k, 0, w->acts, o->w);
}

/* ---- a heap of the n largest values, the smallest of them on top ---- */

static void sink(float *heap, int n, int at) {
    for (;;) {
        int min = at;
        for (int child = 2 * at + 1; child <= 2 * at + 2 && child < n; child++)
            if (heap[child] < heap[min])
                min = child;
        if (min == at)
            return;
        const float x = heap[at];
        heap[at] = heap[min];
        heap[min] = x;
        at = min;
    }
}

static void keep(float *heap, int *n, int max, float x) {
    if (*n == max) {
        if (x > heap[0]) {
            heap[0] = x;
            sink(heap, max, 0);
        }
        return;
    }
    heap[(*n)++] = x;
    for (int i = *n - 1; i > 0 && heap[i] < heap[(i - 1) / 2]; i = (i - 1) / 2) {
        const float up = heap[(i - 1) / 2];
        heap[(i - 1) / 2] = heap[i];
        heap[i] = up;
    }
}

/* Whether any y - reach * step is above `min`. n is a multiple of LANES. */
static bool any_above(const float *y, const float *step, float reach, float min, int64_t n) {
    int above[LANES] = {0}, any = 0;
    for (int64_t i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++)
            above[l] |= y[i + l] - reach * step[i + l] > min;
    for (int l = 0; l < LANES; l++)
        any |= above[l];
    return any;
}

static void keep_lower_bounds(const search *k, const float *y, int64_t n0, int64_t n1, float *heap, int *n) {
    const int max = k->s->n_best;
    const float *step = k->s->step;
    for (int64_t at = n0; at < n1; at += BLOCK) {
        const int64_t end = NUM_MIN(at + BLOCK, n1);
        if (*n == max && (end - at) % LANES == 0 &&
            !any_above(y + at, step + at, k->reach, heap[0], end - at))
            continue;
        for (int64_t c = at; c < end; c++) {
            const float low = y[c] - k->reach * step[c];
            if (low > -INFINITY) /* false for a NaN */
                keep(heap, n, max, low);
        }
    }
}

/* ---- the two steps ---- */

static void estimate(void *arg, int thread, int n_thread) {
    const search *k = arg;
    shortlist *s = k->s;
    worker w = begin(k, thread, n_thread);
    float *y = worker_at(&w, k->o->out, 0, k->o->n), *heap = s->best + (int64_t)thread * s->n_best;
    int64_t p0, p1;
    int n = 0;
    quantize(&w, k->o, k->rough);
    pool_split(num_div_up(k->o->n, PACK_PANEL), 1, thread, n_thread, &p0, &p1);
    for (int64_t p = p0; p < p1 && !job_is_dropped(k->j); p += STEP) {
        const int64_t n0 = p * PACK_PANEL, n1 = NUM_MIN(NUM_MIN(p + STEP, p1) * PACK_PANEL, k->o->n);
        product_columns(&w, k->o, &s->sketch, NULL, 0, n0, n1);
        keep_lower_bounds(k, y, n0, n1, heap, &n);
    }
    s->n_seen[thread] = n;
    end(&w);
}

/* Merges the heaps of all threads into the first one. Returns the n_best-th largest value; -INFINITY: there
 * are fewer. */
static float threshold_of(shortlist *s, int n_thread) {
    for (int t = 1; t < n_thread; t++)
        for (int i = 0; i < s->n_seen[t]; i++)
            keep(s->best, &s->n_seen[0], s->n_best, s->best[t * s->n_best + i]);
    return s->n_seen[0] == s->n_best ? s->best[0] : -INFINITY;
}

/* Whether a panel may have one of the best. A NaN counts as one, so that the result shows it. */
static bool is_wanted(const search *k, const float *y, int64_t first, int64_t n, float min) {
    int any = 0;
    for (int64_t l = first; l < first + n; l++)
        any |= !(y[l] + k->reach * k->s->step[l] < min);
    return any;
}

/* The upper bound of a panel's logits; after a NaN there is none. */
static float upper_of(const search *k, const float *y, int64_t first, int64_t n) {
    float max = -INFINITY;
    for (int64_t l = first; l < first + n; l++) {
        const float upper = y[l] + k->reach * k->s->step[l];
        if (!(upper <= max))
            max = isnan(upper) ? INFINITY : upper;
    }
    return max;
}

static void dismiss(float *y, int64_t first, int64_t n) {
    for (int64_t c = first; c < first + n; c++)
        y[c] = -INFINITY;
}

static const kernel_choice *choice_of(const search *k) {
    const job *j = k->j;
    return j->cell->other_views ? NULL : choices_of(j->e->choices, j->cell->block, k->o->w);
}

/* Computes a panel's logits and adds the best of them to the `n` in the heap. Returns the n_best-th largest
 * logit so far. */
static float compute(const search *k, worker *w, const view *panel, int64_t first, float *heap, int *n) {
    const float *y = worker_at(w, k->o->out, 0, k->o->n);
    if (!act_format_equal(w->acts.format, k->exact))
        quantize(w, k->o, k->exact);
    product_columns(w, k->o, panel, choice_of(k), first, 0, panel->n);
    for (int64_t c = first; c < first + panel->n; c++)
        if (y[c] > -INFINITY)
            keep(heap, n, k->s->n_best, y[c]);
    return *n == k->s->n_best ? heap[0] : -INFINITY;
}

static int by_upper(const void *a, const void *b) {
    const shortlist_panel *x = a, *y = b;
    return x->upper < y->upper ? 1 : x->upper > y->upper ? -1 : x->panel - y->panel;
}

/* Lists the panels of [p0, p1) that can have one of the best, the likeliest first. Sets the logits of the
 * others to -infinity. Returns the number of listed panels. */
static int list_wanted(const search *k, float *y, int64_t p0, int64_t p1, shortlist_panel *list) {
    int n = 0;
    for (int64_t p = p0; p < p1; p++) {
        const int64_t first = p * PACK_PANEL, n_col = NUM_MIN(k->o->n - first, (int64_t)PACK_PANEL);
        if (is_wanted(k, y, first, n_col, k->threshold))
            list[n++] = (shortlist_panel){(int32_t)p, upper_of(k, y, first, n_col)};
        else
            dismiss(y, first, n_col);
    }
    qsort(list, (size_t)n, sizeof *list, by_upper);
    return n;
}

/* Computes the listed panels that are in memory. Each known logit may exclude later panels. Panels on disk
 * stay in the list. */
static void compute_resident(void *arg, int thread, int n_thread) {
    const search *k = arg;
    shortlist *s = k->s;
    worker w = begin(k, thread, n_thread);
    float *y = worker_at(&w, k->o->out, 0, k->o->n), *heap = s->best + (int64_t)thread * s->n_best;
    float min = k->threshold;
    int64_t p0, p1;
    int n = 0, n_missing = 0, n_computed = 0;
    w.acts = (act_state){k->o->in, k->rough, true}; /* estimate() has quantized the row */
    pool_split(num_div_up(k->o->n, PACK_PANEL), 1, thread, n_thread, &p0, &p1);
    shortlist_panel *list = s->missing + p0;
    const int n_wanted = list_wanted(k, y, p0, p1, list);
    for (int i = 0; i < n_wanted && !job_is_dropped(k->j); i++) {
        const int64_t first = (int64_t)list[i].panel * PACK_PANEL;
        view panel;
        if (list[i].upper < min) {
            dismiss(y, first, NUM_MIN(k->o->n - first, (int64_t)PACK_PANEL));
        } else if (pager_panel(k->j->e->pager, k->j->cell->block, k->o->w, list[i].panel, &panel)) {
            const float nth = compute(k, &w, &panel, first, heap, &n);
            min = NUM_MAX(min, nth);
            n_computed++;
        } else {
            list[n_missing++] = list[i];
        }
    }
    s->n_seen[thread] = n;
    s->n_missing[thread] = n_missing;
    s->n_computed[thread] = n_computed;
    end(&w);
}

/* ---- panels on disk ---- */

typedef struct arrival {
    search *k;
    worker *w;
} arrival;

static void arrive(void *user, int32_t panel, const view *rows) {
    const arrival *a = user;
    search *k = a->k;
    const float min = compute(k, a->w, rows, (int64_t)panel * PACK_PANEL, k->s->best, &k->s->n_seen[0]);
    k->threshold = NUM_MAX(k->threshold, min);
}

static int by_panel(const void *a, const void *b) {
    const int32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Merges the lists of all threads into the first one, the largest bound first. Returns the number of
 * panels. */
static int gather_missing(const search *k, int n_thread) {
    const shortlist *s = k->s;
    int n = 0;
    for (int t = 0; t < n_thread; t++) {
        int64_t p0, p1;
        pool_split(num_div_up(k->o->n, PACK_PANEL), 1, t, n_thread, &p0, &p1);
        memmove(s->missing + n, s->missing + p0, (size_t)s->n_missing[t] * sizeof *s->missing);
        n += s->n_missing[t];
    }
    qsort(s->missing, (size_t)n, sizeof *s->missing, by_upper);
    return n;
}

/* Reads and computes the missing panels on the calling thread, in batches of reads. The likeliest come first,
 * because their logits exclude most of the others. */
static nib_status read_missing(search *k, int n_thread, nib_error *err) {
    const job *j = k->j;
    shortlist *s = k->s;
    worker w = begin(k, 0, n_thread);
    arrival a = {k, &w};
    float *y = worker_at(&w, k->o->out, 0, k->o->n);
    const int n = gather_missing(k, n_thread);
    nib_status status = NIB_OK;
    int at = 0;
    w.acts = (act_state){k->o->in, k->rough, true};
    while (at < n && s->missing[at].upper >= k->threshold && status == NIB_OK && !job_is_dropped(j)) {
        const int max = at ? ROUND : NUM_MAX(s->n_best, FIRST_ROUND);
        int32_t panels[MAX_SHORTLIST];
        int n_panel = 0;
        do
            panels[n_panel++] = s->missing[at++].panel;
        while (at < n && n_panel < max && s->missing[at].upper >= k->threshold);
        qsort(panels, (size_t)n_panel, sizeof *panels, by_panel);
        status = pager_read_panels(j->e->pager, j->cell->block, k->o->w, panels, n_panel, arrive, &a, err);
    }
    s->n_exact += (uint64_t)at;
    for (; at < n; at++) {
        const int64_t first = (int64_t)s->missing[at].panel * PACK_PANEL;
        dismiss(y, first, NUM_MIN(k->o->n - first, (int64_t)PACK_PANEL));
    }
    end(&w);
    return status;
}

static float norm_of(const float *x, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    return (float)sqrt(squares);
}

nib_status run_shortlist(job *j, int i, nib_error *err) {
    const op *o = &layout_block(j->e->layout, j->cell->block)->program.ops[i];
    const int n_thread = pool_size(j->e->threads);
    worker w = worker_of(j, 0, n_thread);
    search k = {.j = j, .o = o, .at = i, .s = j->e->best};
    k.rough = product_format(&w, o->w, &k.s->sketch.format);
    k.exact = product_format(&w, o->w, &j->cell->views[o->w].format);
    /* 2 % more for the rounding of sums and of x to integers */
    k.reach = 1.02f * SHORTLIST_REACH * norm_of(worker_at(&w, o->in, 0, o->k), o->k);
    pool_run(j->e->threads, estimate, &k);
    k.threshold = threshold_of(k.s, n_thread);
    pool_run(j->e->threads, compute_resident, &k);
    const float nth = threshold_of(k.s, n_thread);
    k.threshold = NUM_MAX(k.threshold, nth);
    k.s->n_row++;
    for (int t = 0; t < n_thread; t++)
        k.s->n_exact += (uint64_t)k.s->n_computed[t];
    NIB_TRY(read_missing(&k, n_thread, err));
    j->acts.of = REG_NONE;
    if (j->e->trace)
        trace_count(j->e->trace, j->cell->block, i, 1, 1);
    return NIB_OK;
}
