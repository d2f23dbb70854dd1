/* exec.c - see exec.h.
 *
 * A block's program runs in one pool_run, except where the calling thread has to fetch something between two
 * ops: rows of an embedding that is not resident, or the next part of a matrix that is larger than its slot.
 *
 * Barriers. Every thread walks the same ops and keeps the same notes: for each resource (a register, the
 * integer activations, the cache) how it was split among threads when it was last written and read since the
 * last barrier. An op that touches a resource with the same split touches only what its own thread wrote; any
 * other split needs a barrier first. All threads come to the same conclusion, since the notes do not depend
 * on the thread. */
#include "run/exec.h"

#include "base/num.h"
#include "kernels/act8.h"
#include "kernels/strategy.h"

#include <string.h>

#define SPIKE 6.0f       /* largest value over root mean square from which on a row is computed in 15 bits */
enum { ROW_BLOCK = 32 }; /* rows of attention that one thread takes at a time */

/* How a resource is split among the threads: by rows, by columns (SPLIT_COLUMNS + width), or in some other
 * way that is never the same for two ops. */
enum { SPLIT_NONE, SPLIT_ROWS, SPLIT_OTHER, SPLIT_COLUMNS };
enum { RES_ACT8 = REG_COUNT, RES_KV, RES_COUNT };

typedef struct notes {
    int64_t written[RES_COUNT], read[RES_COUNT];
} notes;

typedef struct job {
    const executor *e;
    const exec_cell *cell;
    int first_op, end_op;
    reg act8_of;            /* which register the integer activations hold when the job begins; REG_NONE */
    act_format act8_format; /* and how */
    const view *part;       /* rows part_row... of the one product of this job; NULL: whole matrices */
    int64_t part_row;
} job;

typedef struct worker {
    const job *j;
    int thread, n_thread;
    notes seen;
    reg act8_of;
    act_format act8_format;
    void *scratch;
    trace_cell *trace; /* of the op that is being executed; NULL: nobody asked */
    double since;      /* of the thread's own time: what it has worked since then is not charged yet */
} worker;

/* ---- resources ---- */

static bool clash(int64_t before, int64_t now) {
    return before != SPLIT_NONE && (before != now || now == SPLIT_OTHER);
}

typedef struct access {
    int resource;
    int64_t split;
    bool write;
} access;

static void charge_work(worker *w) {
    double now = time_thread();
    w->trace->busy += now - w->since;
    w->since = now;
}

static void meet(worker *w) {
    double start = 0;
    if (w->trace) {
        charge_work(w);
        start = time_now();
    }
    pool_barrier(w->j->e->threads);
    if (w->trace) {
        w->trace->wait += time_now() - start;
        w->since = time_thread();
    }
    memset(&w->seen, 0, sizeof w->seen);
}

static void enter(worker *w, const access *list, int n) {
    bool wait = false;
    for (int i = 0; i < n; i++) {
        const access *a = &list[i];
        if (a->resource == REG_NONE)
            continue;
        wait = wait || clash(w->seen.written[a->resource], a->split);
        wait = wait || (a->write && clash(w->seen.read[a->resource], a->split));
    }
    if (wait)
        meet(w);
    for (int i = 0; i < n; i++) {
        const access *a = &list[i];
        if (a->resource == REG_NONE)
            continue;
        int64_t *slot = a->write ? &w->seen.written[a->resource] : &w->seen.read[a->resource];
        *slot = *slot == SPLIT_NONE || *slot == a->split ? a->split : SPLIT_OTHER;
    }
    for (int i = 0; i < n; i++)
        if (list[i].write && list[i].resource == (int)w->act8_of)
            w->act8_of = REG_NONE;
}

static float *at(const worker *w, reg r, int64_t row, int64_t width) {
    const exec_cell *c = w->j->cell;
    if (r == REG_X)
        row += c->row;
    if (r == REG_LOGITS && c->logits)
        return c->logits + row * width;
    return w->j->e->ws->reg[r] + row * width;
}

static const float *vector(const worker *w, int index) {
    return index < 0 ? NULL : w->j->cell->views[index].data;
}

static void my_rows(const worker *w, int64_t *r0, int64_t *r1) {
    pool_split(w->j->cell->n_row, 1, w->thread, w->n_thread, r0, r1);
}

/* ---- ops ---- */

static void run_embed(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    const kernel_table *k = w->j->e->kernels;
    int64_t r0, r1;
    enter(w, (access[]){{o->out, SPLIT_ROWS, true}}, 1);
    my_rows(w, &r0, &r1);
    for (int64_t r = r0; r < r1; r++) {
        float *out = at(w, o->out, r, o->n);
        pack_read_row(&c->views[o->w], c->tokens[c->row + r], out);
        if (o->u.num.value != 1)
            k->scale(out, o->u.num.value, out, o->n);
    }
}

static void run_embed_pos(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    int64_t r0, r1;
    float *row = w->scratch;
    enter(w, (access[]){{o->out, SPLIT_ROWS, true}}, 1);
    my_rows(w, &r0, &r1);
    for (int64_t r = r0; r < r1; r++) {
        float *out = at(w, o->out, r, o->n);
        pack_read_row(&c->views[o->w], c->first_position + c->row + r + o->u.num.offset, row);
        w->j->e->kernels->add(out, row, 1, out, o->n);
    }
}

static void run_norm(worker *w, const op *o) {
    int64_t r0, r1;
    enter(w, (access[]){{o->in, SPLIT_ROWS, false}, {o->out, SPLIT_ROWS, true}}, 2);
    my_rows(w, &r0, &r1);
    for (int64_t r = r0; r < r1; r++)
        w->j->e->kernels->norm(o->u.norm.kind, at(w, o->in, r, o->k), vector(w, o->w), vector(w, o->b),
                               at(w, o->out, r, o->n), o->k, o->u.norm.n_group, o->u.norm.w_full,
                               o->u.norm.eps);
}

/* A row with a massive activation (a value far beyond the others: the first token and some separators have
 * them, and every later token attends to those rows) loses too much in 8 bits: its neighbours in the group
 * vanish, and its own error is as large as they are. The row alone decides, so that the answer does not
 * depend on the batch. */
static bool is_spiky(const float *x, int64_t k) {
    enum { LANES = 16 };
    float most[LANES] = {0}, sum[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float square = x[i + l] * x[i + l];
            most[l] = square > most[l] ? square : most[l];
            sum[l] += square;
        }
    for (; i < k; i++) {
        most[0] = NUM_MAX(most[0], x[i] * x[i]);
        sum[0] += x[i] * x[i];
    }
    for (int l = 1; l < LANES; l++) {
        most[0] = NUM_MAX(most[0], most[l]);
        sum[0] += sum[l];
    }
    return most[0] * (float)k > SPIKE * SPIKE * sum[0];
}

/* Rows have one slice of 4 or 8 bits; with 16 bits, and where a row is spiky, a second one for what the first
 * left over. */
static act_format format_of(const executor *e, const view *v) {
    return act_format_for(&v->format, NUM_MIN(e->act_bits, 8));
}

static void quantize(worker *w, const op *o, act_format f) {
    int64_t r0, r1;
    size_t each = act_row_bytes(f, o->k);
    workspace *ws = w->j->e->ws;
    const kernel_table *k = w->j->e->kernels;
    enter(w, (access[]){{o->in, SPLIT_ROWS, false}, {RES_ACT8, SPLIT_ROWS, true}}, 2);
    my_rows(w, &r0, &r1);
    for (int64_t r = r0; r < r1; r++) {
        const float *x = at(w, o->in, r, o->k);
        uint8_t *codes = ws->act8 + (size_t)r * each;
        k->act_quantize(f, x, o->k, codes);
        ws->act8_has_rest[r] = w->j->e->act_bits == 16 || is_spiky(x, o->k);
        if (ws->act8_has_rest[r]) {
            act_rest(f, (const char *)codes, x, o->k, w->scratch);
            k->act_quantize(f, w->scratch, o->k, ws->act8_rest + (size_t)r * each);
        }
    }
    w->act8_of = o->in;
    w->act8_format = f;
}

/* Adds the products of the rows' second slices to columns [n0, n1) of what `done` computed: neighbours that
 * have one together, as many as this thread's buffer holds. */
static void add_rests(worker *w, const op *o, const linear_args *done, int64_t n0, int64_t n1) {
    const workspace *ws = w->j->e->ws;
    linear_args a = *done;
    const int64_t most = NUM_MAX(1, ws->rest_width / a.w->n);
    a.bias = NULL;
    a.ldy = a.w->n;
    a.y = ws->rest_product + w->thread * ws->rest_width; /* another thread may be in another product */
    for (int64_t r = 0; r < done->n_row; r += NUM_MAX(1, a.n_row)) {
        for (a.n_row = 0; a.n_row < most && r + a.n_row < done->n_row && ws->act8_has_rest[r + a.n_row];)
            a.n_row++;
        if (a.n_row == 0)
            continue;
        a.q.n_row = a.n_row;
        a.q.data = ws->act8_rest + (size_t)r * act_row_bytes(a.q.format, o->k);
        linear_run(w->j->e->kernels, &a, n0, n1);
        for (int64_t i = 0; i < a.n_row; i++) {
            float *y = done->y + (r + i) * done->ldy + n0;
            w->j->e->kernels->add(y, a.y + i * a.ldy + n0, 1, y, n1 - n0);
        }
    }
}

static void run_linear(worker *w, const op *o) {
    const job *j = w->j;
    const view *v = j->part ? j->part : &j->cell->views[o->w];
    bool tile = v->format.layout == PACK_TILE;
    const float *bias = vector(w, o->b);
    int64_t n0, n1;
    const act_format f = format_of(j->e, v);
    if (tile && (w->act8_of != o->in || !act_format_equal(w->act8_format, f)))
        quantize(w, o, f);
    enter(
        w,
        (access[]){{tile ? RES_ACT8 : (int)o->in, SPLIT_OTHER, false}, {o->out, SPLIT_COLUMNS + v->n, true}},
        2);
    linear_args a = {.w = v,
                     .route = routes_of(j->e->routes, j->cell->block, o->w),
                     .x = at(w, o->in, 0, o->k),
                     .ldx = o->k,
                     .q = {j->e->ws->act8, j->cell->n_row, o->k, f},
                     .bias = bias ? bias + j->part_row : NULL,
                     .y = at(w, o->out, 0, o->n) + j->part_row,
                     .ldy = o->n,
                     .n_row = j->cell->n_row,
                     .scratch = w->scratch};
    pool_split(v->n, PACK_PANEL, w->thread, w->n_thread, &n0, &n1);
    linear_run(j->e->kernels, &a, n0, n1);
    if (n0 < n1 && tile)
        add_rests(w, o, &a, n0, n1);
}

static void run_rope(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    const float *table = w->j->e->ws->cos_sin[o->u.rope.table];
    int64_t r0, r1;
    enter(w, (access[]){{o->in, SPLIT_ROWS, false}, {o->out, SPLIT_ROWS, true}}, 2);
    my_rows(w, &r0, &r1);
    for (int64_t r = r0; r < r1; r++) {
        float *out = at(w, o->out, r, o->n);
        if (o->in != o->out)
            memcpy(out, at(w, o->in, r, o->k), (size_t)o->n * sizeof *out);
        w->j->e->kernels->rope(o->u.rope.style, out, o->u.rope.n_head, o->u.rope.d_head, o->u.rope.n_rot,
                               table + (c->row + r) * o->u.rope.n_rot);
    }
}

static void store_kv(worker *w, const op *o, const kv_view *kv) {
    const exec_cell *c = w->j->cell;
    int64_t width = o->u.attn.n_kv_head * o->u.attn.d_head, r0, r1;
    enter(w, (access[]){{o->in2, SPLIT_ROWS, false}, {o->in3, SPLIT_ROWS, false}, {RES_KV, SPLIT_ROWS, true}},
          3);
    my_rows(w, &r0, &r1);
    for (int64_t r = r0; r < r1; r++) {
        int64_t position = c->first_position + c->row + r;
        w->j->e->kernels->kv_store(kv, false, position, at(w, o->in2, r, width));
        w->j->e->kernels->kv_store(kv, true, position, at(w, o->in3, r, width));
    }
}

static void run_attention(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    const kv_view *kv = &c->kv->layers[o->u.attn.layer];
    int64_t n_row = c->n_row, n_head = o->u.attn.n_head, group = n_head / o->u.attn.n_kv_head;
    store_kv(w, o, kv);
    enter(w,
          (access[]){{RES_KV, SPLIT_OTHER, false}, {o->in, SPLIT_OTHER, false}, {o->out, SPLIT_OTHER, true}},
          3);
    attend_args a = {.kv = *kv,
                     .q = at(w, o->in, 0, n_head * o->u.attn.d_head),
                     .out = at(w, o->out, 0, n_head * o->u.attn.d_head),
                     .n_row = n_row,
                     .first_position = c->first_position + c->row,
                     .n_head = n_head,
                     .window = o->u.attn.window,
                     .scale = o->u.attn.scale,
                     .softcap = o->u.attn.softcap,
                     .alibi_max_bias = o->u.attn.alibi_max_bias,
                     .alibi_scale = o->u.attn.alibi_scale,
                     .scratch = w->scratch};
    if (n_row <=
        2) { /* decoding: heads side by side; whole groups when they divide evenly, they share keys */
        int64_t h0, h1, unit = o->u.attn.n_kv_head % w->n_thread == 0 ? group : 1;
        pool_split(n_head, unit, w->thread, w->n_thread, &h0, &h1);
        if (h0 < h1)
            w->j->e->kernels->attend(&a, h0, h1, 0, n_row);
        return;
    }
    int64_t n_block = num_div_up(n_row, ROW_BLOCK);
    int64_t unit = n_block * (n_head / group) < 4 * w->n_thread ? 1 : group, n_unit = n_head / unit;
    for (int64_t i = w->thread; i < n_block * n_unit; i += w->n_thread) {
        int64_t r0 = i / n_unit * ROW_BLOCK, h0 = i % n_unit * unit;
        w->j->e->kernels->attend(&a, h0, h0 + unit, r0, NUM_MIN(r0 + ROW_BLOCK, n_row));
    }
}

/* Element by element: in the same columns as the product before it, so that no barrier stands between them.
 */
static void run_elements(worker *w, const op *o) {
    const kernel_table *k = w->j->e->kernels;
    int64_t split = SPLIT_COLUMNS + o->n, c0, c1;
    enter(w, (access[]){{o->in, split, false}, {o->in2, split, false}, {o->out, split, true}}, 3);
    pool_split(o->n, PACK_PANEL, w->thread, w->n_thread, &c0, &c1);
    if (c0 >= c1)
        return;
    for (int64_t r = 0; r < w->j->cell->n_row; r++) {
        const float *x = at(w, o->in, r, o->n) + c0;
        float *out = at(w, o->out, r, o->n) + c0;
        switch (o->kind) {
        case OP_ACT: k->act(o->u.act.kind, x, out, c1 - c0); break;
        case OP_GATE: k->gate(o->u.act.kind, x, at(w, o->in2, r, o->n) + c0, out, c1 - c0); break;
        case OP_ADD: k->add(x, at(w, o->in2, r, o->n) + c0, o->u.num.value, out, c1 - c0); break;
        case OP_SCALE: k->scale(x, o->u.num.value, out, c1 - c0); break;
        case OP_CLAMP: k->clamp(x, o->u.num.value, out, c1 - c0); break;
        case OP_SOFTCAP: k->softcap(x, o->u.num.value, out, c1 - c0); break;
        default: break;
        }
    }
}

static void run_ops(void *arg, int thread, int n_thread) {
    const job *j = arg;
    const workspace *ws = j->e->ws;
    const program *p = &model_block(j->e->m, j->cell->block)->program;
    worker w = {.j = j,
                .thread = thread,
                .n_thread = n_thread,
                .act8_of = j->act8_of,
                .act8_format = j->act8_format,
                .scratch = ws->scratch + (size_t)thread * ws->scratch_each};
    op_trace *trace = j->e->trace;
    w.since = trace ? time_thread() : 0;
    for (int i = j->first_op; i < j->end_op; i++) {
        const op *o = &p->ops[i];
        if (trace)
            w.trace = trace_at(trace, thread, j->cell->block, i);
        switch (o->kind) {
        case OP_EMBED: run_embed(&w, o); break;
        case OP_EMBED_POS: run_embed_pos(&w, o); break;
        case OP_NORM: run_norm(&w, o); break;
        case OP_LINEAR: run_linear(&w, o); break;
        case OP_ROPE: run_rope(&w, o); break;
        case OP_ATTENTION: run_attention(&w, o); break;
        case OP_ACT:
        case OP_GATE:
        case OP_ADD:
        case OP_SCALE:
        case OP_CLAMP:
        case OP_SOFTCAP: run_elements(&w, o); break;
        case OP_COUNT: break;
        }
        if (!trace)
            continue;
        charge_work(&w);
        if (thread == 0)
            trace_count(trace, j->cell->block, i, o, j->cell->n_row);
    }
}

/* ---- what the calling thread does between two ops ---- */

static void run(const job *j) {
    if (j->first_op < j->end_op)
        pool_run(j->e->threads, run_ops, (void *)j);
}

static nib_status look_up_rows(const executor *e, const exec_cell *c, const op *o, nib_error *err) {
    job j = {.e = e, .cell = c};
    worker w = {.j = &j};
    float *row = (float *)e->ws->scratch;
    for (int64_t r = 0; r < c->n_row; r++) {
        float *out = at(&w, o->out, r, o->n);
        if (o->kind == OP_EMBED) {
            NIB_TRY(pager_read_row(e->pager, c->block, o->w, c->tokens[c->row + r], out, err));
            if (o->u.num.value != 1)
                e->kernels->scale(out, o->u.num.value, out, o->n);
            continue;
        }
        int64_t position = c->first_position + c->row + r + o->u.num.offset;
        NIB_TRY(pager_read_row(e->pager, c->block, o->w, position, row, err));
        e->kernels->add(out, row, 1, out, o->n);
    }
    return NIB_OK;
}

static nib_status product_in_parts(job *j, const op *o, nib_error *err) {
    const exec_cell *c = j->cell;
    pager *p = j->e->pager;
    for (int i = 0; i < pager_n_part(p, c->block, o->w); i++) {
        NIB_TRY(pager_pin_part(p, c->block, o->w, i, &j->part, &j->part_row, err));
        run(j);
        j->act8_of = j->part->format.layout == PACK_TILE ? o->in : REG_NONE;
        j->act8_format = format_of(j->e, j->part);
        pager_unpin_part(p, c->block, o->w, i);
    }
    return NIB_OK;
}

nib_status exec_cell_run(const executor *e, const exec_cell *cell, nib_error *err) {
    const program *p = &model_block(e->m, cell->block)->program;
    int begin = 0;
    for (int i = 0; i < p->n_op; i++) {
        const op *o = &p->ops[i];
        bool looks_up = o->kind == OP_EMBED || o->kind == OP_EMBED_POS;
        if ((o->kind != OP_LINEAR && !looks_up) || cell->views[o->w].data)
            continue;
        run(&(job){.e = e, .cell = cell, .first_op = begin, .end_op = i, .act8_of = REG_NONE});
        job one = {.e = e, .cell = cell, .first_op = i, .end_op = i + 1, .act8_of = REG_NONE};
        NIB_TRY(looks_up ? look_up_rows(e, cell, o, err) : product_in_parts(&one, o, err));
        begin = i + 1;
    }
    run(&(job){.e = e, .cell = cell, .first_op = begin, .end_op = p->n_op, .act8_of = REG_NONE});
    return NIB_OK;
}
