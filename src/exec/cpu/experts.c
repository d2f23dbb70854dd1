/* experts.c - products with the matrices of the chosen experts (OP_EXPERTS), or of all groups (OP_GROUPS).
 *
 * The rows of a cell are listed by expert. Threads share the panels of all chosen experts as they share those
 * of one matrix. An expert's rows are gathered, multiplied together, and their results are scattered. A sum
 * over experts is divided among threads by its columns, and each thread adds the experts in the order of
 * their numbers; experts that the pager gives in another order are computed apart and added at the end. So
 * the bits of a row depend on the row alone, as those of other products do.
 *
 * Groups (OP_GROUPS, OP_SPREAD) are experts that every row uses. Their matrices are one ordinary matrix,
 * whose panels may belong to two groups, and which may come in pieces of rows (job.part). */
#include "exec/backend.h"
#include "exec/cpu/worker.h"

#include "base/num.h"
#include "model/page_layout.h"

#include <string.h>

enum { COLUMNS = EXPERT_COLUMNS - PACK_PANEL };

/* The experts of an op that are computed in this job: of those that are in memory the ones that a row has
 * chosen. */
typedef struct active {
    const op *o;
    int64_t n_panel; /* of one expert */
    bool begins;     /* no chosen expert comes before them */
    int n;
    int16_t e[ROUTE_MAX_EXPERT];
} active;

int experts_chosen(const job *j, const op *o, expert_use *uses) {
    const worker w = {.j = j};
    int64_t n_row[ROUTE_MAX_EXPERT] = {0};
    int n = 0;
    for (int64_t r = 0; r < j->cell->n_row; r++) {
        const float *of = worker_at(&w, o->in2, r, 2 * o->u.experts.n_used);
        for (int64_t i = 0; i < o->u.experts.n_used; i++)
            n_row[route_expert(of, i)]++;
    }
    const int16_t *here = j->cell->experts ? j->cell->experts->here : NULL;
    for (int32_t e = 0; e < o->u.experts.n_expert; e++) {
        if (n_row[e] == 0)
            continue;
        pager_count_expert(j->e->pager, j->cell->block, o->w, e, n_row[e]);
        if (!(here && here[e] >= 0))
            uses[n++] = (expert_use){e, n_row[e]};
    }
    return n;
}

/* The expert at place i of a row. */
static int64_t expert_at(const worker *w, const op *o, int64_t r, int64_t i) {
    return o->kind != OP_EXPERTS ? i : route_expert(worker_at(w, o->in2, r, 2 * o->u.experts.n_used), i);
}

static expert_rows *memory_of(const worker *w) {
    return &w->j->e->ws->experts[w->thread];
}

/* Lists the pairs (row, place among the row's experts) of each expert: numbers row * n_used + place. */
static void list_pairs(const worker *w, const op *o) {
    const expert_rows *to = memory_of(w);
    const int64_t n_used = o->u.experts.n_used, n_expert = o->u.experts.n_expert, n_row = w->j->cell->n_row;
    memset(to->first, 0, (size_t)(n_expert + 2) * sizeof *to->first);
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t i = 0; i < n_used; i++)
            to->first[expert_at(w, o, r, i) + 2]++;
    for (int64_t e = 0; e < n_expert; e++)
        to->first[e + 2] += to->first[e + 1];
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t i = 0; i < n_used; i++)
            to->pairs[to->first[expert_at(w, o, r, i) + 1]++] = (int32_t)(r * n_used + i);
}

static active active_of(const worker *w, const op *o) {
    const job *j = w->j;
    const int32_t *first = memory_of(w)->first;
    const int n = j->taken ? j->n_taken : (int)o->u.experts.n_expert;
    active a = {.o = o, .n_panel = num_div_up(o->u.experts.n, PACK_PANEL)};
    for (int i = 0; i < n; i++) {
        const int32_t e = j->taken ? j->taken[i] : i;
        if (first[e] < first[e + 1])
            a.e[a.n++] = (int16_t)e;
    }
    a.begins = a.n == 0 || first[a.e[0]] == 0;
    return a;
}

/* Columns [c0, c1) of expert e. Panels of groups may begin with columns of the group before: *before is their
 * number. */
static view columns_of(const worker *w, const op *o, int64_t e, int64_t c0, int64_t c1, int64_t *before) {
    const job *j = w->j;
    view all;
    *before = 0;
    if (o->kind == OP_GROUPS) {
        const int64_t first = e * o->u.experts.n + c0 - j->part_row;
        *before = first % PACK_PANEL;
        return product_view(j->part ? j->part : &j->cell->views[o->w], first - *before, first - c0 + c1);
    }
    all = j->paged ? pager_expert(j->e->pager, j->cell->block, o->w, (int32_t)e)
                   : page_layout_expert(&j->cell->views[o->w], o->u.experts.n_expert, e);
    return product_view(&all, c0, c1);
}

/* ---- inputs ---- */

static void quantize(worker *w, const op *o, act_format f) {
    const int64_t k = o->u.experts.k, n_used = o->u.experts.n_used;
    const act_state to = {o->in, f, false};
    int64_t p0, p1;
    if (!o->u.experts.each) {
        product_quantize(w, o, f);
        return;
    }
    worker_enter(w, (access[]){{o->in, SPLIT_OTHER, false}, {RES_ACT8, SPLIT_OTHER, true}}, 2);
    pool_split(w->j->cell->n_row * n_used, 1, w->thread, w->n_thread, &p0, &p1);
    for (int64_t p = p0; p < p1; p++)
        product_quantize_row(w, worker_at(w, o->in, 0, o->k) + p * k, k, p, to, o->w);
    w->acts = to;
}

/* The quantized row of a pair as the first of act_rows. */
static act_rows row_of(const worker *w, const op *o, int64_t pair) {
    const workspace *ws = w->j->e->ws;
    const act_rows *all = w->acts.own ? &ws->own[w->thread] : &ws->act;
    const int64_t r = w->acts.own ? 0 : o->u.experts.each ? pair : pair / o->u.experts.n_used;
    const size_t at = (size_t)r * act_row_bytes(w->acts.format, o->u.experts.k);
    return (act_rows){.codes = all->codes + at,
                      .residual = all->residual ? all->residual + at : NULL,
                      .has_residual = all->has_residual + r,
                      .n_outlier = all->n_outlier + r,
                      .outliers = all->outliers + r * ACT_OUTLIERS};
}

static const float *floats_of(const worker *w, const op *o, int64_t pair) {
    const float *x = worker_at(w, o->in, pair / o->u.experts.n_used, o->k);
    return x + (o->u.experts.each ? pair % o->u.experts.n_used * o->u.experts.k : 0);
}

/* Copies the rows of n pairs next to each other. */
static act_rows gather(const worker *w, const op *o, const int32_t *pairs, int64_t n) {
    const expert_rows *m = memory_of(w);
    const size_t each = act_row_bytes(w->acts.format, o->u.experts.k);
    for (int64_t i = 0; i < n; i++) {
        const act_rows from = row_of(w, o, pairs[i]);
        memcpy(m->act.codes + (size_t)i * each, from.codes, each);
        m->act.has_residual[i] = from.has_residual[0];
        m->act.n_outlier[i] = from.n_outlier[0];
        if (from.has_residual[0])
            memcpy(m->act.residual + (size_t)i * each, from.residual ? from.residual : from.codes + each,
                   each);
        memcpy(m->act.outliers + i * ACT_OUTLIERS, from.outliers, from.n_outlier[0] * sizeof *from.outliers);
    }
    return m->act;
}

static const float *gather_floats(const worker *w, const op *o, const int32_t *pairs, int64_t n) {
    const expert_rows *m = memory_of(w);
    const int64_t k = o->u.experts.k;
    if (n == 1)
        return floats_of(w, o, pairs[0]);
    for (int64_t i = 0; i < n; i++)
        memcpy(m->x + i * k, floats_of(w, o, pairs[i]), (size_t)k * sizeof *m->x);
    return m->x;
}

/* ---- products ---- */

/* Where an expert's output for a pair is written at once; NULL: it is added to another. */
static float *direct_to(const worker *w, const op *o, int64_t pair) {
    const int64_t n_used = o->u.experts.n_used, n = o->u.experts.n;
    if (w->j->apart && o->u.experts.sum)
        return (w->j->cell->experts ? w->j->cell->experts->to : w->j->e->ws->apart) + pair * n;
    if (o->u.experts.sum || o->adds)
        return NULL;
    return worker_at(w, o->out, pair / n_used, o->n) + pair % n_used * n;
}

static float weight_of(const worker *w, const op *o, int64_t pair) {
    const int64_t n_used = o->u.experts.n_used;
    return o->u.experts.weighted
               ? route_weight(o, worker_at(w, o->in2, pair / n_used, 2 * n_used), pair % n_used)
               : 1;
}

/* Puts an expert's output y for columns [n0, n1) of a pair to its place. */
static void put(const worker *w, const op *o, int64_t pair, const float *y, int64_t n0, int64_t n1) {
    const kernel_table *table = w->j->e->kernels;
    const int64_t n_used = o->u.experts.n_used, r = pair / n_used, i = pair % n_used;
    const float by = w->j->apart && o->u.experts.sum ? 1 : weight_of(w, o, pair);
    float *own = direct_to(w, o, pair);
    if (own) {
        if (own + n0 != y || by != 1)
            table->scale(y, by, own + n0, n1 - n0);
        return;
    }
    float *to = worker_at(w, o->out, r, o->n) + (o->u.experts.sum ? 0 : i * o->u.experts.n) + n0;
    table->add(to, y, by, to, n1 - n0);
}

/* Multiplies the rows of n pairs, at most EXPERT_ROWS, by columns [n0, n1) of expert e. */
static void multiply(worker *w, const active *a, int64_t e, const int32_t *pairs, int64_t n, int64_t n0,
                     int64_t n1) {
    const op *o = a->o;
    const expert_rows *m = memory_of(w);
    const float *bias = worker_vector(w, o->b);
    const bool tile = w->j->cell->views[o->w].format.layout == PACK_TILE;
    const act_rows rows = !tile ? (act_rows){0} : n == 1 ? row_of(w, o, pairs[0]) : gather(w, o, pairs, n);
    const float *x = tile ? NULL : gather_floats(w, o, pairs, n);
    float *direct = n == 1 && o->kind == OP_EXPERTS ? direct_to(w, o, pairs[0]) : NULL;
    for (int64_t c0 = n0, c1, before; c0 < n1; c0 = c1) {
        c1 = direct ? n1 : NUM_MIN(c0 + COLUMNS, n1);
        const view part = columns_of(w, o, e, c0, c1, &before);
        linear_args args = {.w = &part,
                            .x = x,
                            .ldx = o->u.experts.k,
                            .q = {rows.codes, n, o->u.experts.k, w->acts.format},
                            .bias = bias ? bias + e * o->u.experts.n + c0 : NULL,
                            .y = direct ? direct + c0 : m->y,
                            .ldy = before + c1 - c0,
                            .n_row = n,
                            .sliced = w->j->e->sliced,
                            .scratch = w->scratch,
                            .ahead = w->j->ahead};
        product_of_rows(w, &rows, &args);
        for (int64_t i = 0; i < n; i++)
            put(w, o, pairs[i], args.y + i * args.ldy + before, c0, c1);
    }
}

/* Computes columns [n0, n1) of expert e for all rows that have chosen it. */
static void run_expert(worker *w, const active *a, int64_t e, int64_t n0, int64_t n1) {
    const expert_rows *m = memory_of(w);
    for (int64_t i = m->first[e]; i < m->first[e + 1]; i += EXPERT_ROWS)
        multiply(w, a, e, m->pairs + i, NUM_MIN(EXPERT_ROWS, m->first[e + 1] - i), n0, n1);
}

static void run_panels(worker *w, const active *a, int64_t begin, int64_t end) {
    const int64_t n = a->o->u.experts.n;
    for (int64_t p = begin, until; p < end && !job_is_dropped(w->j); p = until) {
        const int64_t i = p / a->n_panel, from = i * a->n_panel;
        until = NUM_MIN(end, from + a->n_panel);
        run_expert(w, a, a->e[i], (p - from) * PACK_PANEL, NUM_MIN((until - from) * PACK_PANEL, n));
    }
}

/* Rows of the matrix of groups in this job. */
static int64_t matrix_rows(const worker *w, const op *o) {
    return w->j->part ? w->j->part->n : w->j->cell->views[o->w].n;
}

/* Panels [begin, end) of the job's rows of the matrix. */
static void run_groups(worker *w, const active *a, int64_t begin, int64_t end) {
    const int64_t n = a->o->u.experts.n, first = w->j->part_row + begin * PACK_PANEL;
    const int64_t last = w->j->part_row + NUM_MIN(end * PACK_PANEL, matrix_rows(w, a->o));
    for (int64_t row = first, until; row < last && !job_is_dropped(w->j); row = until) {
        const int64_t e = row / n;
        until = NUM_MIN(last, (e + 1) * n);
        run_expert(w, a, e, row - e * n, until - e * n);
    }
}

/* Threads share the groups of the job's rows. A group's sums are in the order of its rows, which are decoded
 * once for all rows of the cell; they may come in several jobs. */
void run_spread(worker *w, const op *o) {
    const kernel_table *table = w->j->e->kernels;
    const view *v = w->j->part ? w->j->part : &w->j->cell->views[o->w];
    const int64_t n = o->u.experts.n, k = o->u.experts.k, from = w->j->part_row, to = from + v->n;
    const int64_t first = from / k;
    float *row = w->scratch;
    int64_t g0, g1;
    worker_enter(w, (access[]){{o->in, SPLIT_OTHER, false}, {o->out, SPLIT_OTHER, true}}, 2);
    pool_split(num_div_up(to, k) - first, 1, w->thread, w->n_thread, &g0, &g1);
    for (int64_t i = NUM_MAX(from, (first + g0) * k); i < NUM_MIN(to, (first + g1) * k); i++) {
        if (job_is_dropped(w->j))
            return;
        pack_read_row(v, i - from, row);
        for (int64_t r = 0; r < w->j->cell->n_row; r++) {
            float *out = worker_at(w, o->out, r, o->n) + i / k * n;
            const float x = worker_at(w, o->in, r, o->k)[i];
            if (i % k == 0 && !o->adds)
                table->scale(row, x, out, n);
            else
                table->add(out, row, x, out, n);
        }
    }
}

static void clear(const worker *w, const op *o, int64_t n0, int64_t n1) {
    for (int64_t r = 0; !o->adds && r < w->j->cell->n_row; r++)
        memset(worker_at(w, o->out, r, o->n) + n0, 0, (size_t)(n1 - n0) * sizeof(float));
}

/* Adds outputs that were kept apart. A row lists its experts in the order of their numbers. */
static void add_up(const worker *w, const op *o, int64_t n0, int64_t n1) {
    const int64_t n_used = o->u.experts.n_used;
    clear(w, o, n0, n1);
    for (int64_t pair = 0; pair < w->j->cell->n_row * n_used; pair++) {
        float *to = worker_at(w, o->out, pair / n_used, o->n) + n0;
        w->j->e->kernels->add(to, direct_to(w, o, pair) + n0, weight_of(w, o, pair), to, n1 - n0);
    }
}

static void run_sum(worker *w, const active *a, int64_t begin, int64_t end) {
    const op *o = a->o;
    const job *j = w->j;
    const int64_t n0 = begin * PACK_PANEL, n1 = NUM_MIN(end * PACK_PANEL, o->u.experts.n);
    if (a->begins && !j->apart)
        clear(w, o, n0, n1);
    for (int i = 0; i < a->n && !job_is_dropped(j); i++)
        run_expert(w, a, a->e[i], n0, n1);
    if (j->apart && j->ends)
        add_up(w, o, n0, n1);
}

void run_experts(worker *w, const op *o) {
    const pack_format *format = &w->j->cell->views[o->w].format;
    const act_format f = product_format(w, o->w, format);
    const bool tile = format->layout == PACK_TILE;
    int64_t begin = 0, end = 0;
    if (tile && (w->acts.of != o->in || !act_format_equal(w->acts.format, f)))
        quantize(w, o, f);
    worker_enter(w,
                 (access[]){{tile ? w->acts.own ? REG_NONE : RES_ACT8 : (int)o->in, SPLIT_OTHER, false},
                            {o->in2, SPLIT_OTHER, false},
                            {o->out, SPLIT_OTHER, true}},
                 3);
    list_pairs(w, o);
    const active a = active_of(w, o);
    const uint64_t bytes = o->cost.weight_bytes / (uint64_t)o->u.experts.n_used * (uint64_t)a.n;
    const int64_t n_panel = o->kind == OP_GROUPS ? num_div_up(matrix_rows(w, o), PACK_PANEL)
                            : o->u.experts.sum   ? a.n_panel
                                                 : a.n * a.n_panel;
    while (product_take(w, o, n_panel, bytes, &begin, &end)) {
        if (o->kind == OP_GROUPS)
            run_groups(w, &a, begin, end);
        else if (o->u.experts.sum)
            run_sum(w, &a, begin, end);
        else
            run_panels(w, &a, begin, end);
    }
}
