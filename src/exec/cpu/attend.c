/* attend.c - attention: rows are appended to the KV cache, then heads and rows are split among threads. */
#include "exec/cpu/worker.h"

#include "base/num.h"
#include "exec/entries.h"
#include "kernels/entries.h"
#include "kernels/kv_layout.h"

enum { MAX_PAIRS = 32 }; /* (row, head) pairs that one thread takes at a time */

/* Consecutive rows of one sequence in a cell. */
typedef struct part {
    const kv_view *kv;
    int64_t row, n_row; /* rows of the cell */
    int64_t position;   /* of the first row */
} part;

/* The rows that are computed together: of each sequence of the cell those from row `from` on, at most `max`;
 * with `aligned` they are counted from the multiple of KV_BLOCK before its first position. */
typedef struct stride {
    int64_t from, max;
    bool aligned;
} stride;

static stride all_rows(const job *j) {
    return (stride){0, j->cell->n_row, false};
}

/* Gives these rows of segment *i, or of the next segment that has some. false: there are no more. */
static bool next_part(const job *j, const op *o, int *i, stride rows, part *out) {
    const exec_cell *c = j->cell;
    const int64_t begin = c->row + (j->kv ? j->kv_first : 0), end = c->row + (j->kv ? j->kv_end : c->n_row);
    int64_t row = begin;
    if (*i == 0 && begin < end)
        *i = (int)(visits_segment(c->segments, c->n_segment, false, &row) - c->segments);
    for (; *i < c->n_segment && c->segments[*i].row < end; ++*i) {
        const segment *s = &c->segments[*i];
        const int64_t first_of = NUM_MAX(s->row, begin), position = s->position + first_of - s->row;
        const int64_t at = first_of + rows.from - (rows.aligned ? position % KV_BLOCK : 0);
        const int64_t first = NUM_MAX(at, first_of);
        const int64_t n = NUM_MIN(NUM_MIN(s->row + s->n_row, end), at + rows.max) - first;
        if (n <= 0)
            continue;
        const int layer = o->kind == OP_SELECT ? o->u.select.layer : o->u.attn.layer;
        *out = (part){j->kv ? &j->kv[*i] : &s->kv->layers[layer], first - c->row, n,
                      s->position + first - s->row};
        ++*i;
        return true;
    }
    return false;
}

static int64_t count_rows(const worker *w, const op *o, stride rows) {
    int64_t n = 0;
    part p;
    for (int i = 0; next_part(w->j, o, &i, rows, &p);)
        n += p.n_row;
    return n;
}

static void store_kv(worker *w, const op *o, stride rows) {
    const exec_cell *c = w->j->cell;
    const kernel_table *k = w->j->e->kernels;
    const int64_t width = o->u.attn.n_kv_head * o->u.attn.d_head, n = count_rows(w, o, rows);
    /* with fewer rows, other threads may have written parts of some rows */
    const int64_t split = n == c->n_row ? SPLIT_ROWS : SPLIT_OTHER;
    int64_t r0, r1, at = 0;
    part p;
    worker_enter(w, (access[]){{o->in2, split, false}, {o->in3, split, false}, {RES_KV, split, true}}, 3);
    pool_split(n, 1, w->thread, w->n_thread, &r0, &r1);
    for (int i = 0; next_part(w->j, o, &i, rows, &p); at += p.n_row)
        for (int64_t r = NUM_MAX(r0 - at, 0); r < NUM_MIN(r1 - at, p.n_row); r++) {
            k->kv_store(p.kv, false, p.position + r, worker_at(w, o->in2, p.row + r, width));
            if (!o->u.attn.shared)
                k->kv_store(p.kv, true, p.position + r, worker_at(w, o->in3, p.row + r, width));
            if (o->u.attn.every)
                entries_store(p.kv, false, p.position + r, worker_at(w, o->in3, p.row + r, width));
        }
}

/* Whether a block's last position is one of these rows. It is packed to codes, which later rows read, also
 * those of this cell. */
static bool fills_block(const part *p) {
    return kv_is_coded(p->kv->type) && (p->position + p->n_row) % KV_BLOCK == 0;
}

static void pack_kv(worker *w, const op *o, stride rows) {
    int64_t at = 0; /* counts a head's keys or values of a block, over all sequences */
    part p;
    for (int i = 0; next_part(w->j, o, &i, rows, &p);)
        at += fills_block(&p);
    if (at == 0)
        return;
    worker_enter(w, (access[]){{RES_KV, SPLIT_OTHER, true}}, 1);
    at = 0;
    for (int i = 0; next_part(w->j, o, &i, rows, &p);) {
        const int64_t kinds = p.kv->shared ? 1 : 2; /* keys, and values */
        const int64_t n = fills_block(&p) ? p.kv->n_kv_head * kinds : 0;
        for (int64_t k = 0; k < n; k++)
            if ((at + k) % w->n_thread == w->thread)
                w->j->e->kernels->kv_pack(p.kv, k % kinds, k / kinds, p.position / KV_BLOCK);
        at += n;
    }
}

/* ---- one row: threads share its positions ---- */

/* An item is a span of a row and a KV head. Threads take items in turn, in rounds of as many spans as fit the
 * scratch that attention leaves. Then each head's thread joins the head's parts in order. */
typedef struct parts_plan {
    int64_t first, end;   /* spans */
    int64_t group, n_kv;  /* query heads that share a KV head; KV heads */
    int64_t each, offset; /* floats of one part; offset of the parts in a scratch, in floats */
    int64_t per_round;    /* spans of a round */
} parts_plan;

static bool plan_parts(const worker *w, const attend_args *a, int64_t row, parts_plan *out) {
    const int64_t position = a->first_position + row;
    parts_plan p = {
        .first = attend_first(a, position) / ATTEND_SPAN,
        .end = position / ATTEND_SPAN + 1,
        .n_kv = a->kv.n_kv_head,
        .group = a->n_head / a->kv.n_kv_head,
        .each = attend_part_floats(a->kv.d_head),
        .offset = (int64_t)(attend_scratch_bytes(a->kv.d_head, kv_is_coded(a->kv.type)) / sizeof(float))};
    const int64_t totals = num_div_up(a->n_head, w->n_thread);
    const int64_t n_float = (int64_t)(w->j->e->ws->scratch_each / sizeof(float)) - p.offset - totals * p.each;
    const int64_t items = n_float > 0 ? n_float / (p.each * p.group) * w->n_thread : 0;
    p.per_round = items / p.n_kv;
    *out = p;
    return a->top <= 0 && w->n_thread > 1 && p.n_kv % w->n_thread && p.end - p.first > 1 && p.per_round > 0;
}

/* The part of a head for span `span` of a round. */
static float *part_at(const worker *w, const parts_plan *p, int64_t span, int64_t head) {
    const int64_t item = span * p->n_kv + head / p->group;
    float *scratch =
        (float *)(void *)(w->j->e->ws->scratch + (size_t)(item % w->n_thread) * w->j->e->ws->scratch_each);
    return scratch + p->offset + (item / w->n_thread * p->group + head % p->group) * p->each;
}

static void join_parts(worker *w, const attend_args *a, const parts_plan *p, int64_t row, int64_t first,
                       int64_t n) {
    int64_t h0, h1;
    pool_split(a->n_head, 1, w->thread, w->n_thread, &h0, &h1);
    float *total = (float *)w->scratch + w->j->e->ws->scratch_each / sizeof(float) - (h1 - h0) * p->each;
    for (int64_t h = h0; h < h1; h++, total += p->each)
        for (int64_t s = 0; s < n; s++)
            w->j->e->kernels->attend_join(a, h, row, part_at(w, p, s, h), first + s == p->first,
                                          first + s == p->end - 1, total);
}

/* Computes a row by parts. false: parts do not pay for this row, and nothing was done. All threads decide the
 * same. */
static bool attend_in_parts(worker *w, const attend_args *a, int64_t row) {
    parts_plan p;
    if (!plan_parts(w, a, row, &p))
        return false;
    for (int64_t first = p.first; first < p.end; first += p.per_round) {
        const int64_t n = NUM_MIN(p.per_round, p.end - first);
        worker_enter(w, (access[]){{RES_PARTS, SPLIT_OTHER, true}}, 1);
        for (int64_t i = w->thread; i < n * p.n_kv; i += w->n_thread) {
            const int64_t h0 = i % p.n_kv * p.group;
            w->j->e->kernels->attend_part(a, h0, h0 + p.group, row, first + i / p.n_kv,
                                          part_at(w, &p, i / p.n_kv, h0));
        }
        worker_enter(w, (access[]){{RES_PARTS, SPLIT_OTHER, false}}, 1);
        join_parts(w, a, &p, row, first, n);
    }
    worker_enter(w, (access[]){{RES_PARTS, SPLIT_OTHER, true}}, 1); /* other ops may use the scratch again */
    return true;
}

/* ---- threads share rows and heads ---- */

static attend_args args_of(const worker *w, const op *o, const part *p) {
    const int64_t width = o->u.attn.n_head * o->u.attn.d_head;
    return (attend_args){.kv = *p->kv,
                         .q = worker_at(w, o->in, p->row, width),
                         .out = worker_at(w, o->out, p->row, width),
                         .n_row = p->n_row,
                         .first_position = p->position,
                         .n_head = o->u.attn.n_head,
                         .window = o->u.attn.window,
                         .chunked = o->u.attn.chunked,
                         .scale = o->u.attn.scale,
                         .softcap = o->u.attn.softcap,
                         .alibi_max_bias = o->u.attn.alibi_max_bias,
                         .alibi_scale = o->u.attn.alibi_scale,
                         .sinks = worker_vector(w, o->w),
                         .top = w->j->e->sparse_v,
                         .top_raw = w->j->e->sparse_v_raw,
                         .scratch = w->scratch};
}

/* One sequence decodes: threads share the heads, in whole groups if these divide evenly, because a group
 * shares its keys. */
static void attend_few(worker *w, const op *o, const attend_args *a) {
    const int64_t n_head = o->u.attn.n_head, group = n_head / o->u.attn.n_kv_head;
    int64_t h0, h1, unit = o->u.attn.n_kv_head % w->n_thread == 0 ? group : 1;
    pool_split(n_head, unit, w->thread, w->n_thread, &h0, &h1);
    if (h0 < h1)
        w->j->e->kernels->attend(a, h0, h1, 0, a->n_row);
}

/* Items of rows and heads: item i has heads [i % n_unit * unit, + unit) of rows [i / n_unit * rows, +
 * rows). */
typedef struct item_grid {
    int64_t rows, unit, n_unit, n;
} item_grid;

/* The keys that an item reads first. Items after the last one are those of the sequence `after`; NULL: there
 * is none. */
static const void *keys_of(const attend_args *a, const item_grid *g, const part *after, int64_t item) {
    const int64_t n_kv = a->kv.n_kv_head, group = a->n_head / n_kv;
    if (item < g->n)
        return kv_first_keys(&a->kv, a->window, item % g->n_unit * g->unit / group,
                             a->first_position + item / g->n_unit * g->rows);
    return after ? kv_first_keys(after->kv, a->window, (item - g->n) % n_kv, after->position) : NULL;
}

/* Threads take the items of a sequence in turn. *at: number of items of earlier sequences. after: the next
 * sequence; NULL: there is none. alone: there are no other sequences. */
static void attend_items(worker *w, const op *o, attend_args *a, const part *after, bool alone, int64_t *at) {
    const int64_t n_head = o->u.attn.n_head, group = n_head / o->u.attn.n_kv_head;
    item_grid g = {.rows = MAX_PAIRS};
    while (g.rows > 2 && g.rows * group > MAX_PAIRS)
        g.rows /= 2;
    const int64_t n_block = num_div_up(a->n_row, g.rows);
    g.unit = alone && n_block * (n_head / group) < 4 * w->n_thread ? 1 : group;
    g.n_unit = n_head / g.unit;
    g.n = n_block * g.n_unit;
    const int64_t first = (w->thread + w->n_thread - *at % w->n_thread) % w->n_thread;
    for (int64_t i = first; i < g.n && !job_is_dropped(w->j); i += w->n_thread) {
        const int64_t r0 = i / g.n_unit * g.rows, h0 = i % g.n_unit * g.unit;
        a->next = keys_of(a, &g, after, i + w->n_thread);
        w->j->e->kernels->attend(a, h0, h0 + g.unit, r0, NUM_MIN(r0 + g.rows, a->n_row));
    }
    *at += g.n;
}

/* ---- compressed attention: threads share rows, and the heads of few rows ---- */

static void attend_entries(worker *w, const op *o, stride rows) {
    const int64_t n_head = o->u.attn.n_head;
    const int64_t unit = count_rows(w, o, rows) < w->n_thread ? num_div_up(n_head, w->n_thread) : n_head;
    const int64_t each = num_div_up(n_head, unit); /* items of a row */
    int64_t at = 0;                                /* items of earlier sequences */
    part p;
    for (int i = 0; next_part(w->j, o, &i, rows, &p); at += p.n_row * each) {
        const attend_args a = args_of(w, o, &p);
        for (int64_t k = 0; k < p.n_row * each && !job_is_dropped(w->j); k++) {
            const int64_t r = k / each, h0 = k % each * unit;
            const float *chosen =
                o->u.attn.d_index ? worker_at(w, o->u.attn.chosen, p.row + r, o->u.attn.n_chosen + 1) : NULL;
            if ((at + k) % w->n_thread == w->thread)
                entries_attend(w->j->e->kernels, &a, chosen, h0, NUM_MIN(h0 + unit, n_head), r);
        }
    }
}

void run_select(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    const int64_t n = o->u.select.n_head, d = o->u.select.d_head;
    int64_t at = 0;
    part p;
    worker_enter(w, (access[]){{o->in2, SPLIT_OTHER, false}, {RES_KV, SPLIT_OTHER, true}}, 2);
    for (int i = 0; w->thread == 0 && next_part(w->j, o, &i, all_rows(w->j), &p);)
        for (int64_t r = 0; r < p.n_row; r++)
            entries_store(p.kv, true, p.position + r, worker_at(w, o->in2, p.row + r, d));
    worker_enter(w,
                 (access[]){{RES_KV, SPLIT_OTHER, false},
                            {o->in, SPLIT_OTHER, false},
                            {o->in3, SPLIT_OTHER, false},
                            {o->out, SPLIT_OTHER, true}},
                 4);
    for (int i = 0; !c->cache_only && next_part(w->j, o, &i, all_rows(w->j), &p); at += p.n_row)
        for (int64_t r = 0; r < p.n_row && !job_is_dropped(w->j); r++)
            if ((at + r) % w->n_thread == w->thread)
                entries_select(p.kv, o, p.position + r, worker_at(w, o->in, p.row + r, n * d),
                               worker_at(w, o->in3, p.row + r, n), w->scratch,
                               worker_at(w, o->out, p.row + r, o->n));
}

static void attend_rows(worker *w, const op *o, stride rows) {
    int i = 0, n_part = 0;
    int64_t at = 0;
    part p, next;
    worker_enter(w,
                 (access[]){{RES_KV, SPLIT_OTHER, false},
                            {o->in, SPLIT_OTHER, false},
                            {o->u.attn.d_index ? o->u.attn.chosen : REG_NONE, SPLIT_OTHER, false},
                            {o->out, SPLIT_OTHER, true}},
                 4);
    if (o->u.attn.every) {
        attend_entries(w, o, rows);
        return;
    }
    for (int k = 0; next_part(w->j, o, &k, rows, &p);)
        n_part++;
    bool more = next_part(w->j, o, &i, rows, &next);
    while (more) {
        p = next;
        more = next_part(w->j, o, &i, rows, &next);
        attend_args a = args_of(w, o, &p);
        if (n_part > 1 || p.n_row > 2)
            attend_items(w, o, &a, more ? &next : NULL, n_part == 1, &at);
        else if (p.n_row > 1 || !attend_in_parts(w, &a, 0))
            attend_few(w, o, &a);
    }
}

/* ---- prefetch of the next layer's keys and values ---- */

/* Adds the first n positions of a head's keys or values in a page to the list. Those of the next head follow
 * in a full page. */
static void add_prefetch(prefetch_list *s, const kv_view *kv, bool is_value, int64_t head, int64_t page,
                         int64_t n) {
    const int64_t held = is_value ? n : num_round_up(n, KV_POSITIONS);
    const int64_t bytes = held * kv->d_head * (int64_t)sizeof(uint16_t);
    const uint8_t *at = kv_block_at(kv, is_value, head, page);
    const bool follows = s->n_run && s->runs[s->n_run - 1].at + s->runs[s->n_run - 1].bytes == at;
    if ((s->n_run == MAX_PREFETCH_RANGES && !follows) || s->bytes + bytes > PREFETCH_BYTES)
        return;
    if (!follows)
        s->runs[s->n_run++].at = at;
    s->runs[s->n_run - 1].bytes = follows ? s->runs[s->n_run - 1].bytes + bytes : bytes;
    s->bytes += bytes;
}

/* Rows of many sequences read their keys and values from memory, which is mostly idle during the products
 * before. So products prefetch the keys and values that this thread reads in the next layer (product.c).
 * After the last layer they prefetch those of the next step's first layer. */
static void list_prefetches(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    const int n_layer = model_n_kv_layer(layout_model(w->j->e->layout));
    prefetch_list *s = &w->j->e->ws->prefetch[w->thread];
    s->n_run = s->run = 0;
    s->done = s->bytes = 0;
    s->twice = false;
    if (c->n_segment < MIN_PREFETCH_SEQUENCES || o->u.attn.window > 0 || w->j->e->sparse_v > 0)
        return;
    int64_t item = 0;
    for (int i = 0; i < c->n_segment; i++) {
        const segment *g = &c->segments[i];
        const kv_view *kv = &g->kv->layers[(o->u.attn.layer + 1) % n_layer];
        const int64_t n = g->position + g->n_row;
        if (g->n_row > 2 || kv->type != TYPE_F16 || kv->pages != g->kv->at)
            continue;
        for (int64_t half = 0; half < 2 * num_div_up(n, KV_BLOCK); half++) /* a page's keys, its values */
            for (int64_t h = 0; h < kv->n_kv_head; h++)
                if ((item + h) % w->n_thread == w->thread && !(kv->shared && half % 2))
                    add_prefetch(s, kv, half % 2, h, half / 2,
                                 NUM_MIN(n - half / 2 * KV_BLOCK, (int64_t)KV_BLOCK));
        item += kv->n_kv_head;
    }
}

static bool any_coded(const worker *w, const op *o) {
    part p;
    for (int i = 0; next_part(w->j, o, &i, all_rows(w->j), &p);)
        if (kv_is_coded(p.kv->type))
            return true;
    return false;
}

/* A quantized cache has one block in f16, so the rows of a sequence are stored and computed one block at a
 * time (kernels.h); with a window, KV_ROWS at a time. */
void run_attention(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    stride rows = all_rows(w->j);
    part p;
    rows.aligned = any_coded(w, o);
    rows.max = rows.aligned ? KV_BLOCK : o->u.attn.window > 0 ? KV_ROWS : rows.max;
    for (int i = 0; next_part(w->j, o, &i, rows, &p); i = 0, rows.from += rows.max) {
        if (op_stores(o)) {
            store_kv(w, o, rows);
            pack_kv(w, o, rows);
        }
        if (!c->cache_only)
            attend_rows(w, o, rows);
    }
    list_prefetches(w, o);
}
