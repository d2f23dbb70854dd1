/* exec_product.c - products, and the integer activations that they read. */
#include "run/worker.h"

#include "base/num.h"
#include "kernels/act8.h"
#include "kernels/strategy.h"

#define SPIKE 6.0f /* largest value over root mean square from which on a row is computed in 15 bits */

/* A row with a massive activation (a value far beyond the others: the first token and some separators have
 * them, and every later token attends to those rows) loses too much in 8 bits: its neighbours in the group
 * vanish, and its own error is as large as they are. Such a spiky row gets a second row for what the first
 * left over: 15 bits where they matter. The row alone decides, so that the answer does not depend on the
 * batch. */
static uint8_t *rest_of(const act_rows *rows, act_format f, int64_t k, int64_t r) {
    return rows->rest ? rows->rest + (size_t)r * act_row_bytes(f, k) : rows->codes + act_row_bytes(f, k);
}

void product_quantize_row(worker *w, const float *x, int64_t k, int64_t r, act_state to) {
    const kernel_table *table = w->j->e->kernels;
    const act_rows *rows = to.own ? &w->j->e->ws->own[w->thread] : &w->j->e->ws->act;
    const size_t at = to.own ? 0 : (size_t)r * act_row_bytes(to.format, k);
    uint8_t *has_rest = &rows->has_rest[to.own ? 0 : r];
    table->act_quantize(to.format, x, k, rows->codes + at);
    *has_rest = w->j->act_bits == 16 || table->spiky(x, k, SPIKE);
    if (!*has_rest)
        return;
    float *rest = (float *)w->scratch + num_round_up(k, 16); /* x may stand at the scratch's beginning */
    act_rest(to.format, (const char *)rows->codes + at, x, k, rest);
    table->act_quantize(to.format, rest, k, rest_of(rows, to.format, k, r));
}

/* With one row every thread brings it to integers for itself: that is sooner done than waited for. */
static void quantize(worker *w, const op *o, act_format f) {
    act_state to = {o->in, f, w->j->fuse && w->j->cell->n_row == 1};
    int64_t r0 = 0, r1 = 1;
    if (to.own) {
        worker_enter(w, (access[]){{o->in, SPLIT_OTHER, false}}, 1);
    } else {
        worker_enter(w, (access[]){{o->in, SPLIT_ROWS, false}, {RES_ACT8, SPLIT_ROWS, true}}, 2);
        worker_rows(w, &r0, &r1);
    }
    for (int64_t r = r0; r < r1; r++)
        product_quantize_row(w, worker_at(w, o->in, r, o->k), o->k, r, to);
    w->acts = to;
}

/* The product of one row and its rest, which stands behind it: some columns of both at a time, so that the
 * weights are read once. */
static void multiply_with_rest(worker *w, const linear_args *whole, int64_t n0, int64_t n1) {
    enum { MOST = 2048 };
    const workspace *ws = w->j->e->ws;
    const kernel_table *table = w->j->e->kernels;
    const int64_t some = NUM_MIN((int64_t)MOST, ws->rest_width / 2 / PACK_PANEL * PACK_PANEL);
    uint64_t panel;
    view part = *whole->w;
    linear_args a = *whole;
    pack_bytes(&part.format, PACK_PANEL, part.k, &panel); /* the whole was not too large, so this is not */
    a.w = &part;
    a.bias = NULL;
    a.y = ws->rest_product + w->thread * ws->rest_width; /* another thread may be in another product */
    a.ldy = some;
    a.n_row = a.q.n_row = 2;
    for (int64_t n = n0; n < n1; n += some) {
        float *y = whole->y + n;
        part.data = (const uint8_t *)whole->w->data + (uint64_t)(n / PACK_PANEL) * panel;
        part.n = NUM_MIN(some, n1 - n);
        linear_run(table, &a, 0, part.n);
        if (whole->bias)
            table->add(a.y, whole->bias + n, 1, a.y, part.n);
        table->add(a.y, a.y + some, 1, y, part.n);
    }
}

/* Adds the products of the rows' second slices to columns [n0, n1) of what `done` computed: neighbours that
 * have one together, as many as this thread's buffer holds. */
static void add_rests(worker *w, const act_rows *rows, const linear_args *done, int64_t n0, int64_t n1) {
    const workspace *ws = w->j->e->ws;
    linear_args a = *done;
    const int64_t most = NUM_MAX(1, ws->rest_width / a.w->n);
    a.bias = NULL;
    a.ldy = a.w->n;
    a.y = ws->rest_product + w->thread * ws->rest_width; /* another thread may be in another product */
    for (int64_t r = 0; r < done->n_row; r += NUM_MAX(1, a.n_row)) {
        for (a.n_row = 0; a.n_row < most && r + a.n_row < done->n_row && rows->has_rest[r + a.n_row];)
            a.n_row++;
        if (a.n_row == 0)
            continue;
        a.q.n_row = a.n_row;
        a.q.data = rest_of(rows, a.q.format, a.q.k, r);
        linear_run(w->j->e->kernels, &a, n0, n1);
        for (int64_t i = 0; i < a.n_row; i++) {
            float *y = done->y + (r + i) * done->ldy + n0;
            w->j->e->kernels->add(y, a.y + i * a.ldy + n0, 1, y, n1 - n0);
        }
    }
}

static const view *matrix_of(const worker *w, const op *o) {
    return w->j->part ? w->j->part : &w->j->cell->views[o->w];
}

/* Columns [n0, n1) of one product, whose input is ready. */
static void multiply(worker *w, const op *o, int64_t n0, int64_t n1) {
    const job *j = w->j;
    const view *v = matrix_of(w, o);
    const act_rows *rows = w->acts.own ? &j->e->ws->own[w->thread] : &j->e->ws->act;
    const float *bias = worker_vector(w, o->b);
    if (n0 >= n1)
        return;
    linear_args a = {.w = v,
                     .route = j->cell->other_views ? NULL : routes_of(j->e->routes, j->cell->block, o->w),
                     .x = worker_at(w, o->in, 0, o->k),
                     .ldx = o->k,
                     .q = {rows->codes, j->cell->n_row, o->k, w->acts.format},
                     .bias = bias ? bias + j->part_row : NULL,
                     .y = worker_at(w, o->out, 0, o->n) + j->part_row,
                     .ldy = o->n,
                     .n_row = j->cell->n_row,
                     .scratch = w->scratch};
    if (v->format.layout == PACK_TILE && w->acts.own && rows->has_rest[0]) {
        multiply_with_rest(w, &a, n0, n1);
        return;
    }
    linear_run(j->e->kernels, &a, n0, n1);
    if (v->format.layout == PACK_TILE)
        add_rests(w, rows, &a, n0, n1);
}

/* How many products from o on are one region: they read the same activations in the same format. */
static int joined(const worker *w, const op *o) {
    const pack_format *f = &matrix_of(w, o)->format;
    bool tile = f->layout == PACK_TILE;
    int n = 1;
    if (!w->j->fuse)
        return 1;
    for (; n < o->fuse.n_join; n++) {
        const pack_format *next = &matrix_of(w, o + n)->format;
        if ((next->layout == PACK_TILE) != tile ||
            (tile && !act_format_equal(product_format(w, f), product_format(w, next))))
            break;
    }
    return n;
}

/* Where thread number `thread` begins, in panels over n products one after the other, so that all read about
 * as many bytes. */
static int64_t first_panel(const op *o, int n, int thread, int n_thread) {
    uint64_t all = 0, before = 0;
    int64_t panels = 0;
    for (int i = 0; i < n; i++)
        all += o[i].cost.weight_bytes;
    uint64_t goal = (uint64_t)((double)all * thread / n_thread);
    for (int i = 0; i < n; i++) {
        int64_t here = num_div_up(o[i].n, PACK_PANEL);
        if (goal < before + o[i].cost.weight_bytes)
            return panels +
                   (int64_t)((double)(goal - before) / (double)o[i].cost.weight_bytes * (double)here + 0.5);
        before += o[i].cost.weight_bytes;
        panels += here;
    }
    return panels;
}

static void run_joined(worker *w, const op *o, int n) {
    int64_t begin = first_panel(o, n, w->thread, w->n_thread);
    int64_t end = first_panel(o, n, w->thread + 1, w->n_thread), first = 0;
    for (int i = 0; i < n; i++) {
        int64_t panels = num_div_up(o[i].n, PACK_PANEL);
        int64_t p0 = NUM_MAX(begin - first, 0), p1 = NUM_MIN(end - first, panels);
        if (p0 < p1)
            multiply(w, &o[i], p0 * PACK_PANEL, NUM_MIN(p1 * PACK_PANEL, o[i].n));
        first += panels;
    }
}

int run_linear(worker *w, const op *o) {
    enum { MOST = 8 };
    const view *v = matrix_of(w, o);
    const act_format f = product_format(w, &v->format);
    bool tile = v->format.layout == PACK_TILE;
    int n = NUM_MIN(joined(w, o), MOST), n_access = 0;
    access list[MOST + 1];
    int64_t n0, n1;
    if (tile && (w->acts.of != o->in || !act_format_equal(w->acts.format, f)))
        quantize(w, o, f);
    if (!tile || !w->acts.own)
        list[n_access++] = (access){tile ? RES_ACT8 : (int)o->in, SPLIT_OTHER, false};
    for (int i = 0; i < n; i++)
        list[n_access++] = (access){o[i].out, n > 1 ? SPLIT_OTHER : SPLIT_COLUMNS + v->n, true};
    worker_enter(w, list, n_access);
    if (n > 1) {
        run_joined(w, o, n);
        return n;
    }
    pool_split(v->n, PACK_PANEL, w->thread, w->n_thread, &n0, &n1);
    multiply(w, o, n0, n1);
    return 1;
}
