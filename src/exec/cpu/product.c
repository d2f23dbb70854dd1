/* product.c - products, and the quantized activations that they read. */
#include "exec/cpu/worker.h"

#include "base/num.h"
#include "kernels/act8.h"
#include "kernels/strategy.h"

#include <string.h>

/* Columns at a time of a product that is added to another. */
static const int64_t MAX_COLUMNS = 2048;

/* The second slice of a row of 16-bit activations. */
static uint8_t *residual_of(const act_rows *rows, act_format f, int64_t k, int64_t r) {
    return rows->residual ? rows->residual + (size_t)r * act_row_bytes(f, k)
                          : rows->codes + act_row_bytes(f, k);
}

void product_quantize_row(worker *w, const float *x, int64_t k, int64_t r, act_state to, int matrix) {
    const kernel_table *table = w->j->e->kernels;
    const act_rows *rows = to.own ? &w->j->e->ws->own[w->thread] : &w->j->e->ws->act;
    const int64_t row = to.own ? 0 : r;
    const size_t at = (size_t)row * act_row_bytes(to.format, k);
    float *work = (float *)w->scratch + num_round_up(k, 16); /* x may be at the beginning of the scratch */
    if (w->j->e->residuals)
        residual_choose(w, x, k, r, to.own, matrix);
    if (to.format.rotated) {
        act_rotate(to.format, x, k, work);
        x = work;
    }
    rows->has_residual[row] = w->j->act_bits == 16;
    rows->n_outlier[row] = 0;
    if (!rows->has_residual[row])
        rows->n_outlier[row] = (uint8_t)act_extract_outliers(table, to.format.bits, x, k, work,
                                                             rows->outliers + row * ACT_OUTLIERS);
    if (rows->n_outlier[row])
        x = work;
    table->act_quantize(to.format, x, k, rows->codes + at);
    if (!rows->has_residual[row])
        return;
    act_residual(to.format, (const char *)rows->codes + at, x, k, work);
    table->act_quantize(to.format, work, k, residual_of(rows, to.format, k, r));
}

/* Quantizes the cell's rows. A single row is quantized by every thread for itself, because that takes less
 * time than a barrier. */
void product_quantize(worker *w, const op *o, act_format f) {
    act_state to = {o->in, f, w->j->fuse && w->j->cell->n_row == 1};
    int64_t r0 = 0, r1 = 1;
    if (to.own) {
        worker_enter(w, (access[]){{o->in, SPLIT_OTHER, false}}, 1);
    } else {
        worker_enter(w, (access[]){{o->in, SPLIT_ROWS, false}, {RES_ACT8, SPLIT_ROWS, true}}, 2);
        worker_rows(w, &r0, &r1);
    }
    for (int64_t r = r0; r < r1; r++)
        product_quantize_row(w, worker_at(w, o->in, r, o->k), o->k, r, to, o->w);
    w->acts = to;
}

view product_view(const view *whole, int64_t n0, int64_t n1) {
    view part = *whole;
    uint64_t bytes;
    /* Cannot overflow, because the whole matrix did not. */
    pack_bytes(&part.format, PACK_PANEL, part.k, &bytes);
    part.data = (const uint8_t *)part.data + (uint64_t)(n0 / PACK_PANEL) * bytes;
    part.n = n1 - n0;
    return part;
}

/* A product like `whole` of the matrix *part, without its bias, to memory of the thread's own, because
 * threads may be in different products. */
static linear_args apart(const worker *w, const linear_args *whole, const view *part) {
    const workspace *ws = w->j->e->ws;
    linear_args a = *whole;
    a.w = part;
    a.bias = NULL;
    a.y = ws->residual_product + w->thread * ws->residual_width;
    return a;
}

/* The product of one row and its second slice, which follows it in memory. Some columns of both are computed
 * at a time, so that the weights are read once. */
static void multiply_with_residual(worker *w, const linear_args *whole, bool adds, int64_t n0, int64_t n1) {
    const kernel_table *table = w->j->e->kernels;
    const int64_t some = NUM_MIN(MAX_COLUMNS, w->j->e->ws->residual_width / 2 / PACK_PANEL * PACK_PANEL);
    view part;
    linear_args a = apart(w, whole, &part);
    a.ldy = some;
    a.n_row = a.q.n_row = 2;
    for (int64_t n = n0; n < n1; n += some) {
        float *y = whole->y + n;
        part = product_view(whole->w, n, NUM_MIN(n + some, n1));
        linear_run(table, &a, 0, part.n);
        if (whole->bias)
            table->add(a.y, whole->bias + n, 1, a.y, part.n);
        if (adds) /* in the same order as with many rows */
            table->add(y, a.y, 1, y, part.n);
        table->add(adds ? y : a.y, a.y + some, 1, y, part.n);
    }
}

/* Adds products of rows' codes (residuals: of their second slices) to y, which begins at the first row's
 * columns. Neighbouring rows that have such codes are multiplied together, as many as fit this thread's
 * buffer. */
static void add_rows(worker *w, const act_rows *rows, bool residuals, linear_args *a, const linear_args *done,
                     float *y) {
    const kernel_table *table = w->j->e->kernels;
    const int64_t max = NUM_MAX(1, w->j->e->ws->residual_width / a->ldy);
    for (int64_t r = 0; r < done->n_row; r += NUM_MAX(1, a->n_row)) {
        for (a->n_row = 0; a->n_row < max && r + a->n_row < done->n_row &&
                           (!residuals || rows->has_residual[r + a->n_row]);)
            a->n_row++;
        if (a->n_row == 0)
            continue;
        a->q.n_row = a->n_row;
        a->q.data = residuals ? residual_of(rows, a->q.format, a->q.k, r)
                              : rows->codes + (size_t)r * act_row_bytes(a->q.format, a->q.k);
        linear_run(table, a, 0, a->w->n);
        for (int64_t i = 0; i < a->n_row; i++) {
            float *to = y + (r + i) * done->ldy;
            table->add(to, a->y + i * a->ldy, 1, to, a->w->n);
        }
    }
}

/* add_rows for columns [n0, n1) of a packed matrix, some columns at a time. */
static void add_product(worker *w, const act_rows *rows, bool residuals, const linear_args *done, int64_t n0,
                        int64_t n1) {
    const int64_t some = NUM_MIN(MAX_COLUMNS, w->j->e->ws->residual_width / PACK_PANEL * PACK_PANEL);
    view part;
    linear_args a = apart(w, done, &part);
    for (int64_t n = n0; n < n1; n += some) {
        part = product_view(done->w, n, NUM_MIN(n + some, n1));
        a.ldy = part.n;
        add_rows(w, rows, residuals, &a, done, done->y + n);
    }
}

enum { MERGED_ROWS = 64 }; /* at a time: their places are on the stack */

/* Adds the outliers' products of rows [r0, r1) for columns [n0, n1), one after the other in each row. The
 * rows' outliers are in ascending order of their channels, and are merged: a column of the weights is decoded
 * once for all rows that have an outlier in its channel, because massive activations occur in a few channels.
 */
static void add_merged(worker *w, const act_rows *rows, const linear_args *done, int64_t r0, int64_t r1,
                       int64_t n0, int64_t n1) {
    const workspace *ws = w->j->e->ws;
    const kernel_table *table = w->j->e->kernels;
    const int64_t some = NUM_MIN(MAX_COLUMNS, ws->residual_width / PACK_PANEL * PACK_PANEL), n_row = r1 - r0;
    float *column = ws->residual_product + w->thread * ws->residual_width;
    const outlier *next[MERGED_ROWS], *end[MERGED_ROWS];
    int32_t at[MERGED_ROWS], first = INT32_MAX; /* channel of each row's next outlier; of all rows' */
    for (int64_t r = 0; r < n_row; r++) {
        next[r] = rows->outliers + (r0 + r) * ACT_OUTLIERS;
        end[r] = next[r] + rows->n_outlier[r0 + r];
        at[r] = next[r] < end[r] ? next[r]->at : INT32_MAX;
        first = NUM_MIN(first, at[r]);
    }
    while (first != INT32_MAX) {
        const int32_t channel = first;
        for (int64_t n = n0, len; n < n1; n += len) {
            len = NUM_MIN(some, n1 - n);
            table->column(done->w, channel, n, n + len, column);
            for (int64_t r = 0; r < n_row; r++) {
                float *y = done->y + (r0 + r) * done->ldy + n;
                if (at[r] == channel)
                    table->add(y, column, next[r]->value, y, len);
            }
        }
        first = INT32_MAX;
        for (int64_t r = 0; r < n_row; r++) {
            if (at[r] == channel)
                at[r] = ++next[r] < end[r] ? next[r]->at : INT32_MAX;
            first = NUM_MIN(first, at[r]);
        }
    }
}

static void add_outliers(worker *w, const act_rows *rows, const linear_args *done, int64_t n0, int64_t n1) {
    for (int64_t r = 0; r < done->n_row; r += MERGED_ROWS)
        add_merged(w, rows, done, r, NUM_MIN(r + MERGED_ROWS, done->n_row), n0, n1);
}

/* What quantized rows have besides their codes. */
static void add_rest(worker *w, const act_rows *rows, const linear_args *done, int64_t n0, int64_t n1) {
    if (done->w->format.layout != PACK_TILE)
        return;
    if (w->j->act_bits == 16)
        add_product(w, rows, true, done, n0, n1);
    else
        add_outliers(w, rows, done, n0, n1);
}

static const view *matrix_of(const worker *w, const op *o) {
    return w->j->part ? w->j->part : &w->j->cell->views[o->w];
}

/* ---- prefetching the next layer's keys and values ---- */

/* Bytes of the list that a product prefetches: a line for each group of 32 of a panel and 3 rows. */
static int64_t prefetched_by(const worker *w, const op *o) {
    return o->n * o->k * w->j->cell->n_row / w->n_thread / 24;
}

/* Gate and up. */
static bool widens_rows(const op *o) {
    return o->n > o->k;
}

/* Bytes that products prefetch which do not widen rows, from op o on to the next attention: to the end of
 * this block, and from the beginning of the next one, which is alike. */
static int64_t prefetched_from(const worker *w, const op *o) {
    const program *p = &layout_block(w->j->e->layout, w->j->cell->block)->program;
    const op *attention = p->ops, *const end = p->ops + p->n_op;
    int64_t bytes = 0;
    while (attention < end && attention->kind != OP_ATTENTION)
        attention++;
    const bool follows = o > attention;
    for (const op *i = p->ops; i < end; i++)
        if (i->kind == OP_LINEAR && !widens_rows(i) &&
            (i < attention ? follows || i >= o : follows && i >= o))
            bytes += prefetched_by(w, i);
    return bytes;
}

/* The list that a product prefetches, as late as possible: what is fetched early is no longer in the caches
 * when attention reads it. So products that widen rows leave it to those after them. These fetch two lines a
 * step if one is not enough, which is half as much again, since weights need the second line in half of the
 * steps. Only if that is not enough either, all products fetch. */
static prefetch_list *list_for(const worker *w, const op *o) {
    prefetch_list *s = &w->j->e->ws->prefetch[w->thread];
    if (s->run >= s->n_run)
        return NULL;
    const int64_t left = s->bytes - s->done, later = prefetched_from(w, o);
    s->twice = left > later;
    return widens_rows(o) && 2 * left <= 3 * later ? NULL : s;
}

/* ---- products ---- */

void product_columns(worker *w, const op *o, const view *v, const kernel_choice *by, int64_t first_row,
                     int64_t n0, int64_t n1) {
    const job *j = w->j;
    const act_rows *rows = w->acts.own ? &j->e->ws->own[w->thread] : &j->e->ws->act;
    const float *bias = worker_vector(w, o->b);
    if (n0 >= n1)
        return;
    linear_args a = {.w = v,
                     .choice = by,
                     .x = worker_at(w, o->in, 0, o->k),
                     .ldx = o->k,
                     .q = {rows->codes, j->cell->n_row, o->k, w->acts.format},
                     .bias = bias ? bias + first_row : NULL,
                     .y = worker_at(w, o->out, 0, o->n) + first_row,
                     .ldy = o->n,
                     .n_row = j->cell->n_row,
                     .sliced = j->e->sliced,
                     .scratch = w->scratch,
                     .ahead = j->ahead,
                     .prefetch = list_for(w, o)};
    if (v->format.layout == PACK_TILE && w->acts.own && rows->has_residual[0]) {
        multiply_with_residual(w, &a, o->adds, n0, n1);
        return;
    }
    if (o->adds) /* this product is a second slice of weights, which is always packed */
        add_product(w, rows, false, &a, n0, n1);
    else
        linear_run(j->e->kernels, &a, n0, n1);
    add_rest(w, rows, &a, n0, n1);
}

void product_of_rows(worker *w, const act_rows *rows, linear_args *a) {
    linear_run(w->j->e->kernels, a, 0, a->w->n);
    add_rest(w, rows, a, 0, a->w->n);
}

void product_estimates(worker *w, const op *o, int64_t n0, int64_t n1, const uint8_t *codes, float *y,
                       int64_t ldy, float *error) {
    const job *j = w->j;
    const act_rows *rows = &j->e->ws->act;
    const view part = product_view(matrix_of(w, o), n0, n1);
    const linear_args a = {.w = &part,
                           .q = {codes, j->cell->n_row, o->k, ESTIMATE_ACT},
                           .y = y,
                           .ldy = ldy,
                           .n_row = j->cell->n_row,
                           .scratch = w->scratch,
                           .prefetch = &j->e->ws->prefetch[w->thread]};
    j->e->kernels->estimate(&a, 0, part.n, error);
    add_outliers(w, rows, &a, 0, part.n);
}

void product_logits(worker *w, const op *o, int64_t n0, int64_t n1, float *y, int64_t ldy) {
    const job *j = w->j;
    const act_rows *rows = &j->e->ws->act;
    const view part = product_view(matrix_of(w, o), n0, n1);
    const linear_args a = {.w = &part,
                           .choice = choices_of(j->e->choices, j->cell->block, o->w),
                           .q = {rows->codes, j->cell->n_row, o->k, w->acts.format},
                           .y = y,
                           .ldy = ldy,
                           .n_row = j->cell->n_row,
                           .scratch = w->scratch,
                           .ahead = j->ahead,
                           .prefetch = &j->e->ws->prefetch[w->thread]};
    linear_run(j->e->kernels, &a, 0, part.n);
    add_outliers(w, rows, &a, 0, part.n);
}

void product_panel(worker *w, const op *o, int64_t panel, int64_t r, float *y) {
    const job *j = w->j;
    const act_rows *all = &j->e->ws->act;
    const act_rows row = {.n_outlier = all->n_outlier + r, .outliers = all->outliers + r * ACT_OUTLIERS};
    const view *whole = matrix_of(w, o);
    const int64_t n0 = panel * PACK_PANEL;
    const view part = product_view(whole, n0, NUM_MIN(n0 + PACK_PANEL, whole->n));
    const linear_args a = {
        .w = &part,
        .choice = choices_of(j->e->choices, j->cell->block, o->w),
        .q = {all->codes + (size_t)r * act_row_bytes(w->acts.format, o->k), 1, o->k, w->acts.format},
        .y = y,
        .ldy = PACK_PANEL,
        .n_row = 1,
        .ahead = j->ahead,
        .scratch = w->scratch};
    linear_run(j->e->kernels, &a, 0, part.n);
    add_outliers(w, &row, &a, 0, part.n);
}

/* Computes columns [n0, n1) of one product, whose input is ready. */
static void multiply(worker *w, const op *o, int64_t n0, int64_t n1) {
    const job *j = w->j;
    const kernel_choice *by = j->cell->other_views ? NULL : choices_of(j->e->choices, j->cell->block, o->w);
    const view *v = matrix_of(w, o);
    const bool has_residuals = j->e->residuals && v->format.layout == PACK_TILE && n0 < n1;
    if (has_residuals)
        residual_request(w, o, j->part_row + n0, j->part_row + n1);
    product_columns(w, o, v, by, j->part_row, n0, n1);
    if (has_residuals)
        residual_columns(w, o, j->part_row + n0, j->part_row + n1,
                         worker_at(w, o->out, 0, o->n) + j->part_row + n0);
}

/* ---- fused products: products of one input, and the element-wise ops after them (tail) ---- */

enum {
    MAX_PRODUCTS = 8,
    MAX_TAIL = 4,
    MIN_BYTES = 32 << 10, /* weights taken at once, at least: the prefetcher starts anew */
    MIN_PANELS = 2,       /* panels taken at once, at least: many rows are prepared anew */
    CHECK_MACS = 1 << 30  /* multiply-adds between two checks for cancellation */
};

/* Products are computed one after the other. Each is split into its own panels, and a product that adds to it
 * is computed together with its panels. With a tail, products are computed side by side: a panel is then one
 * panel of each. */
typedef struct fused_products {
    const op *ops;
    int n_product, n_tail;
    int64_t n_panel;
    uint64_t bytes; /* bytes of weights */
} fused_products;

/* Whether product i adds to the output of an earlier one of them. */
static bool adds_within(const fused_products *r, int i) {
    for (int j = 0; j < i && r->ops[i].adds; j++)
        if (r->ops[j].out == r->ops[i].out)
            return true;
    return false;
}

/* The fused products that begin with op o. They read the same activations in the same format, and their
 * weights are in memory in this job. */
static fused_products fused_at(const worker *w, const op *o) {
    const job *j = w->j;
    const pack_format *f = &matrix_of(w, o)->format;
    const bool tile = f->layout == PACK_TILE;
    const int left = (int)(layout_block(j->e->layout, j->cell->block)->program.ops + j->end_op - o);
    const int join = NUM_MAX(o->fuse.n_join, 1);
    const int want = j->fuse ? NUM_MIN(NUM_MIN(join, left), (int)MAX_PRODUCTS) : 1;
    fused_products r = {.ops = o, .n_product = 1};
    for (; r.n_product < want; r.n_product++) {
        const pack_format *next = &matrix_of(w, o + r.n_product)->format;
        if ((next->layout == PACK_TILE) != tile ||
            (tile &&
             !act_format_equal(product_format(w, o->w, f), product_format(w, o[r.n_product].w, next))))
            break;
    }
    if (j->fuse && r.n_product == join)
        r.n_tail = NUM_MIN(NUM_MIN(o->fuse.n_tail, left - r.n_product), (int)MAX_TAIL);
    for (int i = 0; i < r.n_product; i++) {
        r.n_panel += i == 0 || (r.n_tail == 0 && !adds_within(&r, i))
                         ? num_div_up(matrix_of(w, o + i)->n, PACK_PANEL)
                         : 0;
        r.bytes += o[i].cost.weight_bytes;
    }
    return r;
}

/* The first share is half of an even one, and
 * later ones are smaller, so that the others need not wait for a thread that was slowed down (by another
 * process, or by the other thread of its core). The thread that computes a column changes no bit of it. If
 * nothing is shared, or too little, each thread has one even part. The same holds if residuals are read from
 * a file, because each part has its own reads. */
bool product_take(const worker *w, const op *o, int64_t n_panel, uint64_t bytes, int64_t *begin,
                  int64_t *end) {
    const job *j = w->j;
    share *from = j->shares ? &j->shares[o - layout_block(j->e->layout, j->cell->block)->program.ops] : NULL;
    int64_t min = 1, n;
    if (j->cell->n_row > 8)
        min = NUM_MAX((int64_t)MIN_PANELS, n_panel / (12 * w->n_thread));
    else if (bytes > 0)
        min = NUM_MAX(1, (int64_t)((uint64_t)MIN_BYTES * (uint64_t)n_panel / bytes));
    const bool few = j->e->residuals && j->e->residuals->readers;
    if (!from || w->n_thread == 1 || few || n_panel < 2 * min * w->n_thread) {
        if (*end > 0)
            return false;
        pool_split(n_panel, 1, w->thread, w->n_thread, begin, end);
        return *begin < *end;
    }
    int_least64_t at = atomic_load_explicit(&from->next, memory_order_relaxed);
    do {
        n = NUM_MIN(NUM_MAX(min, (n_panel - at) / (2 * w->n_thread)), n_panel - at);
    } while (n > 0 && !atomic_compare_exchange_weak_explicit(&from->next, &at, at + n, memory_order_relaxed,
                                                             memory_order_relaxed));
    *begin = at;
    *end = at + n;
    return n > 0;
}

static void run_side_by_side(worker *w, const fused_products *r, int64_t p0, int64_t p1) {
    const int64_t width = r->ops->n, c0 = p0 * PACK_PANEL, c1 = NUM_MIN(p1 * PACK_PANEL, width);
    for (int i = 0; i < r->n_product; i++)
        multiply(w, &r->ops[i], c0, c1);
    for (int i = 0; i < r->n_tail; i++)
        for (int64_t row = 0; row < w->j->cell->n_row; row++)
            elements_row(w, &r->ops[r->n_product + i], row, c0, c1);
}

static void run_one_by_one(worker *w, const fused_products *r, int64_t begin, int64_t end) {
    int64_t first = 0;
    for (int i = 0; i < r->n_product; i++) {
        if (adds_within(r, i))
            continue;
        const int64_t n = matrix_of(w, &r->ops[i])->n, panels = num_div_up(n, PACK_PANEL);
        const int64_t p0 = NUM_MAX(begin - first, 0), p1 = NUM_MIN(end - first, panels);
        for (int j = i; j < r->n_product && p0 < p1; j++)
            if (j == i || (r->ops[j].out == r->ops[i].out && adds_within(r, j)))
                multiply(w, &r->ops[j], p0 * PACK_PANEL, NUM_MIN(p1 * PACK_PANEL, n));
        first += panels;
    }
}

/* The number of panels that a thread computes between two checks for cancellation. */
static int64_t panels_per_check(const worker *w, const fused_products *r) {
    int64_t macs = 0;
    for (int i = 0; i < r->n_product; i++)
        macs += PACK_PANEL * r->ops[i].k * w->j->cell->n_row;
    return NUM_MAX(MIN_PANELS, CHECK_MACS / NUM_MAX(macs, 1));
}

/* One product that is split once has columns by thread, as an element-wise op after it expects them. Others
 * are split in some other way. */
static void enter_fused(worker *w, const fused_products *r, bool tile) {
    access list[1 + MAX_PRODUCTS + 3 * MAX_TAIL];
    int n = 0;
    const bool alone = !w->j->fuse;
    if (!tile || !w->acts.own)
        list[n++] = (access){tile ? RES_ACT8 : (int)r->ops->in, SPLIT_OTHER, false};
    for (int i = 0; i < r->n_product; i++)
        list[n++] = (access){r->ops[i].out, alone ? SPLIT_COLUMNS + r->ops[i].n : SPLIT_OTHER, true};
    for (int i = 0; i < r->n_tail; i++) {
        const op *o = &r->ops[r->n_product + i];
        list[n++] = (access){o->in, SPLIT_OTHER, false};
        list[n++] = (access){o->in2, SPLIT_OTHER, false};
        list[n++] = (access){o->out, SPLIT_OTHER, true};
    }
    worker_enter(w, list, n);
}

int run_linear(worker *w, const op *o) {
    const view *v = matrix_of(w, o);
    const act_format f = product_format(w, o->w, &v->format);
    const bool tile = v->format.layout == PACK_TILE;
    const fused_products r = fused_at(w, o);
    int64_t begin = 0, end = 0;
    if (tile && (w->acts.of != o->in || !act_format_equal(w->acts.format, f)))
        product_quantize(w, o, f);
    enter_fused(w, &r, tile);
    if (w->j->cell->best && o->out == REG_LOGITS) {
        run_best(w, o);
        return 1;
    }
    const int64_t max = panels_per_check(w, &r);
    while (product_take(w, r.ops, r.n_panel, r.bytes, &begin, &end))
        for (int64_t at = begin; at < end && !job_is_dropped(w->j); at += max) {
            const int64_t until = NUM_MIN(at + max, end);
            if (r.n_tail)
                run_side_by_side(w, &r, at, until);
            else
                run_one_by_one(w, &r, at, until);
        }
    return r.n_product + r.n_tail;
}
