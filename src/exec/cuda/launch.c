/* launch.c - a block's steps for some rows, as launches.
 *
 * Of a prompt, products and attention are those for many rows (c->wide). Of its last layer only rows whose
 * logits are wanted come behind attention, mostly one: from there on, and in the head, products are those of
 * generated rows, which read weights of one row several times as fast. */
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "kernels/kv_layout.h"
#include "tiers/device_cuda.h"

#include <stdatomic.h>
#include <string.h>

enum { MANY_LOOKUPS = 8 /* rows of a table that are worth waking the host's threads */ };

/* A group on its way through a block. */
typedef struct walk {
    cuda *c;
    const row_group *g;
    const op *ops;
    bool is_head;
} walk;

static float *at(const walk *w, reg r) {
    const cuda *c = w->c;
    if (r == REG_X)
        return c->reg[r] + w->g->row * c->ld[r];
    return c->reg[r] + (r == REG_LOGITS && w->is_head ? w->g->run_row * c->ld[r] : 0);
}

static int64_t ld_of(const walk *w, reg r) {
    return w->c->ld[r];
}

/* Whether the step takes the kernels of prompts: by what the rows and the step are, not by their number. */
static bool is_wide(const walk *w, const step *s) {
    const int last = layout_n_block(w->c->setup.layout) - 2;
    if (!w->c->wide || w->g->block > last)
        return false;
    return w->g->block < last || s->feeds_cache || s->kind == STEP_ATTEND;
}

static launch_kind product_kind(const walk *w, const step *s) {
    return is_wide(w, s) ? LAUNCH_WIDE : w->c->batched ? LAUNCH_BATCH : LAUNCH_LINEAR;
}

static const float *vector_of(const cuda *c, int b, int index) {
    view v;
    weights_view(c, b, index, &v);
    return v.data;
}

static const float *vector(const walk *w, int index) {
    return vector_of(w->c, w->g->block, index);
}

/* ---- look-ups, by the host ---- */

/* The number of the row in op o's table for row r of the group. */
static int64_t table_row(const walk *w, const op *o, int64_t r) {
    int64_t row = w->g->row + r;
    const segment *s = visits_segment(w->c->pass.segments, w->c->pass.n_segment, false, &row);
    return o->kind == OP_EMBED ? s->tokens[row] : s->position + row + o->u.num.offset;
}

static nib_status embed_row(const walk *w, const step *s, int64_t r, nib_error *err) {
    const kernel_table *host = kernels_table();
    const cuda *c = w->c;
    const int64_t n = w->ops[s->first].n;
    float *out = c->embed + (w->g->row + r) * n;
    for (int i = 0; i < s->n; i++) {
        const op *o = &w->ops[s->first + i];
        NIB_TRY(pager_read_row(c->run.pager, w->g->block, o->w, table_row(w, o, r), c->looked_up, err));
        if (o->kind == OP_EMBED && !o->adds)
            host->scale(c->looked_up, o->u.num.value, out, n);
        else
            host->add(out, c->looked_up, o->kind == OP_EMBED ? o->u.num.value : 1, out, n);
    }
    return NIB_OK;
}

/* Many rows of one table, by all threads: a row is spread over as many lines of memory as a panel has. */
typedef struct embed_job {
    const walk *w;
    const op *o;
    atomic_bool missing; /* some row is not resident */
} embed_job;

static void embed_part(void *arg, int thread, int n_thread) {
    embed_job *j = arg;
    const cuda *c = j->w->c;
    int64_t begin, end;
    pool_split(j->w->g->n_row, 1, thread, n_thread, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *out = c->embed + (j->w->g->row + r) * j->o->n;
        if (pager_read_resident_row(c->run.pager, j->w->g->block, j->o->w, table_row(j->w, j->o, r), out))
            kernels_table()->scale(out, j->o->u.num.value, out, j->o->n);
        else
            atomic_store(&j->missing, true);
    }
}

static nib_status embed_rows(const walk *w, const step *s, nib_error *err) {
    embed_job j = {.w = w, .o = &w->ops[s->first]};
    if (s->n == 1 && j.o->kind == OP_EMBED && w->g->n_row >= MANY_LOOKUPS) {
        pool_run(w->c->setup.threads, embed_part, &j);
        if (!atomic_load(&j.missing))
            return NIB_OK;
    }
    for (int64_t r = 0; r < w->g->n_row; r++)
        NIB_TRY(embed_row(w, s, r, err));
    return NIB_OK;
}

static nib_status send_rows(const walk *w, float *to, const float *from, int64_t n, nib_error *err) {
    return spans_copy(w->c, "copy embeddings", DEVICE_LOAD, to, from, (uint64_t)n * sizeof *from, err);
}

static nib_status embed(const walk *w, const step *s, nib_error *err) {
    const op *o = &w->ops[s->first];
    const int64_t ld = ld_of(w, o->out);
    NIB_TRY(replay_flush(w->c, err));
    NIB_TRY(embed_rows(w, s, err));
    if (ld == o->n)
        return send_rows(w, at(w, o->out), w->c->embed + w->g->row * ld, w->g->n_row * ld, err);
    for (int64_t r = 0; r < w->g->n_row; r++)
        NIB_TRY(send_rows(w, at(w, o->out) + r * ld, w->c->embed + (w->g->row + r) * o->n, o->n, err));
    return NIB_OK;
}

/* ---- launches ---- */

/* Where a launch of one row leaves what the next wants of it: `linear` alone reads codes. A block that was
 * never run has no norm there yet. */
static cuda_codes leaves(const walk *w, const step *s) {
    const step *to = s->codes_for;
    if (w->c->batched || is_wide(w, s))
        return (cuda_codes){0};
    if (fetches_has(w->c, w->g->block, s)) /* what is added comes later */
        return (cuda_codes){0};
    if (!to || !w->c->is_loaded[s->codes_for_block] || w->g->n_row > 1 || w->g->two)
        return (cuda_codes){0};
    const block *of = layout_block(w->c->setup.layout, s->codes_for_block);
    return (cuda_codes){w->c->codes[s->out],
                        to->norm ? vector_of(w->c, s->codes_for_block, to->norm->w) : NULL,
                        of->weights[of->program.ops[to->first].w].format.group};
}

static const void *taken(const walk *w, const step *s) {
    const cuda *c = w->c;
    const bool left = c->coded == s && c->coded_row == w->g->row && w->g->n_row == 1 && !w->g->two;
    return left ? c->codes[s->in] : NULL;
}

/* Rows [r, r + n) of the group: their residuals on their way. */
static nib_status fetch(const walk *w, const step *s, int64_t r, int64_t n, nib_error *err) {
    const op *o = &w->ops[s->first];
    const reg in = s->norm ? s->norm->in : o->in;
    cuda_residual a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    fetches_args(w->c, w->g->block, s, &a);
    a.n_row = n;
    a.ldx = ld_of(w, in);
    a.x = at(w, in) + r * a.ldx;
    a.norm = s->norm ? vector(w, s->norm->w) : NULL;
    a.eps = s->norm ? s->norm->u.norm.eps : 0;
    nib_status status;
    gpu_launch *l = replay_add(w->c, LAUNCH_FETCH, o, &status, err);
    if (l)
        l->u.fetch = a;
    return status;
}

static bool is_gated(const step *s) {
    return s->tail && s->tail->kind == OP_GATE;
}

/* Where product i of the step leaves its rows, when a gate comes later. */
static reg output_of(const walk *w, const step *s, int i) {
    return s->tail && !(is_gated(s) && fetches_has(w->c, w->g->block, s)) ? s->tail->out
                                                                          : w->ops[s->first + i].out;
}

/* They are added, and the gate is computed. */
static nib_status add_fetched(const walk *w, const step *s, int64_t r, int64_t n, nib_error *err) {
    const op *o = &w->ops[s->first];
    cuda_residual_add a;
    memset(&a, 0, sizeof a);
    a.part = w->c->part;
    a.n_w = s->n_w;
    a.n_row = n;
    a.gated = is_gated(s);
    for (int i = 0; i < s->n_w; i++) {
        const reg out = output_of(w, s, i);
        a.n[i] = o[i].n;
        a.ldp += o[i].n;
        a.ldy[i] = ld_of(w, out);
        a.y[i] = at(w, out) + r * a.ldy[i];
    }
    if (a.gated) {
        a.act = s->tail->u.act.kind;
        a.ldo = ld_of(w, s->tail->out);
        a.out = at(w, s->tail->out) + r * a.ldo;
    }
    nib_status status;
    gpu_launch *l = replay_add(w->c, LAUNCH_ADD, o, &status, err);
    if (l)
        l->u.add = a;
    return status;
}

/* Rows [r, r + n) of the group. */
static nib_status multiply_rows(const walk *w, const step *s, int64_t r, int64_t n, nib_error *err) {
    const op *o = &w->ops[s->first];
    const reg in = s->norm ? s->norm->in : o->in;
    const launch_kind kind = product_kind(w, s);
    const bool few = kind == LAUNCH_LINEAR;
    cuda_linear a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.n_w = s->n_w;
    a.n_row = n;
    a.by = few ? choices_by(w->c, w->g->block, o->w, n * (w->g->two ? 2 : 1)) : NULL;
    a.ldx = ld_of(w, in);
    a.x = at(w, in) + r * a.ldx;
    a.norm = s->norm ? vector(w, s->norm->w) : NULL;
    a.eps = s->norm ? s->norm->u.norm.eps : 0;
    a.two = w->g->two;
    a.gated = is_gated(s) && !fetches_has(w->c, w->g->block, s);
    a.act = is_gated(s) ? s->tail->u.act.kind : ACT_SILU;
    a.adds = o->adds || (s->tail && s->tail->kind == OP_ADD);
    a.scratch = few ? w->c->linear_scratch : w->c->wide_scratch;
    a.codes = taken(w, s);
    a.codes_whole = a.codes && w->c->coded_whole;
    a.leaves = leaves(w, s);
    for (int i = 0; i < s->n_w; i++) {
        const reg out = output_of(w, s, i);
        weights_view(w->c, w->g->block, o[i].w, &a.w[i]);
        a.bias[i] = vector(w, o[i].b);
        a.ldy[i] = ld_of(w, out);
        a.y[i] = at(w, out) + r * a.ldy[i];
    }
    w->c->coded_whole = a.leaves.data && w->c->k->leaves_whole(&a);
    nib_status status;
    gpu_launch *l = replay_add(w->c, kind, o, &status, err);
    if (l)
        l->u.linear = a;
    return status;
}

static nib_status multiply(const walk *w, const step *s, nib_error *err) {
    const int64_t each = is_wide(w, s) ? w->g->n_row : CUDA_MAX_ROWS;
    for (int64_t r = 0; r < w->g->n_row; r += each)
        NIB_TRY(multiply_rows(w, s, r, NUM_MIN(w->g->n_row - r, each), err));
    return NIB_OK;
}

/* Few rows' residuals come while the products run; those of many behind them, a few rows at a time. */
static nib_status products(const walk *w, const step *s, nib_error *err) {
    const int64_t n_row = w->g->n_row;
    const bool many = n_row > CUDA_MAX_FETCH;
    if (!fetches_has(w->c, w->g->block, s))
        return multiply(w, s, err);
    if (!many)
        NIB_TRY(fetch(w, s, 0, n_row, err));
    NIB_TRY(multiply(w, s, err));
    for (int64_t r = 0; r < n_row; r += CUDA_MAX_FETCH) {
        const int64_t n = NUM_MIN(n_row - r, (int64_t)CUDA_MAX_FETCH);
        if (many)
            NIB_TRY(fetch(w, s, r, n, err));
        NIB_TRY(add_fetched(w, s, r, n, err));
    }
    return NIB_OK;
}

static nib_status norm(const walk *w, const op *o, nib_error *err) {
    cuda_norm a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.kind = o->u.norm.kind;
    a.x = at(w, o->in);
    a.w = vector(w, o->w);
    a.b = vector(w, o->b);
    a.out = at(w, o->out);
    a.n_row = w->g->n_row;
    a.ldx = ld_of(w, o->in);
    a.ldo = ld_of(w, o->out);
    a.k = o->k;
    a.n_group = o->u.norm.n_group;
    a.w_full = o->u.norm.w_full;
    a.eps = o->u.norm.eps;
    nib_status status;
    gpu_launch *l = replay_add(w->c, LAUNCH_NORM, o, &status, err);
    if (l)
        l->u.norm = a;
    return status;
}

static nib_status add_attend(const walk *w, launch_kind kind, const op *o, const cuda_attend *a,
                             nib_error *err) {
    nib_status status;
    gpu_launch *l = replay_add(w->c, kind, o, &status, err);
    if (l)
        l->u.attend = *a;
    return status;
}

/* Rows of the group from r on that stand together in a sequence. */
static int64_t rows_of_sequence(const walk *w, int64_t r) {
    int64_t row = w->g->row + r;
    const segment *s = visits_segment(w->c->pass.segments, w->c->pass.n_segment, false, &row);
    return NUM_MIN(s->n_row - row, w->g->n_row - r);
}

/* Prompts: each sequence's rows by a launch of their own. */
static nib_status attend_prompts(const walk *w, const cuda_attend *all, const op *o, nib_error *err) {
    for (int64_t r = 0, n; r < all->n_row; r += n) {
        cuda_attend a = *all;
        n = rows_of_sequence(w, r);
        a.n_row = n;
        a.q += r * a.ldq, a.k += r * a.ldk, a.v += r * a.ldv, a.out += r * a.ldo;
        a.position += r, a.first_page += r;
        a.cos_sin = a.cos_sin ? a.cos_sin + r * a.n_rot : NULL;
        NIB_TRY(add_attend(w, LAUNCH_PROMPT, o, &a, err));
        if (a.kv.code_bits)
            NIB_TRY(add_attend(w, LAUNCH_STORE, o, &a, err));
    }
    return NIB_OK;
}

static nib_status move(const walk *w, const op *o, const cuda_move *a, nib_error *err) {
    nib_status status;
    if (a->n_page == 0)
        return NIB_OK;
    gpu_launch *l = replay_add(w->c, LAUNCH_MOVE, o, &status, err);
    if (l)
        l->u.move = *a;
    return status;
}

/* Codes of a prompt are stored behind its attention, which looks at its rows instead: there is room for the
 * newest positions alone. */
static nib_status attend_all(const walk *w, const op *o, const cuda_attend *a, nib_error *err) {
    const bool stores = a->stored || w->c->run.visit.cache_only, coded = a->kv.code_bits > 0;
    if (stores && coded)
        NIB_TRY(add_attend(w, LAUNCH_PACK, o, a, err));
    if (stores && (!coded || !w->c->wide || w->c->run.visit.cache_only))
        NIB_TRY(add_attend(w, LAUNCH_STORE, o, a, err));
    if (w->c->run.visit.cache_only)
        return NIB_OK;
    return w->c->wide ? attend_prompts(w, a, o, err) : add_attend(w, LAUNCH_ATTEND, o, a, err);
}

/* Of a layer whose keys and values are in host memory. */
static nib_status attend_moved(const walk *w, const op *o, const kv_view *host, cuda_attend *a,
                               nib_error *err) {
    moves_attend(w->c, host, a);
    a->stored = true; /* attention does not begin before the pages are there */
    const cuda_move up = moves_of(w->c, host, a, true), down = moves_of(w->c, host, a, false);
    NIB_TRY(move(w, o, &up, err));
    NIB_TRY(attend_all(w, o, a, err));
    return move(w, o, &down, err);
}

static nib_status attend(const walk *w, const step *s, nib_error *err) {
    cuda *c = w->c;
    const op *o = &w->ops[s->first + s->n - 1];
    const kv_view *kv = &c->pass.segments->kv->layers[o->u.attn.layer]; /* in a page, as in every other */
    const rope_style style = s->rope ? s->rope->u.rope.style : ROPE_HALF;
    const int64_t n_rot = s->rope ? s->rope->u.rope.n_rot : 0;
    cuda_attend a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.kv.k = c->origin + kv->key_at;
    a.kv.v = c->origin + kv->value_at;
    a.kv.n_kv_head = kv->n_kv_head;
    a.kv.d_head = kv->d_head;
    a.kv.page = DEVICE_CUDA_ALIGN / 2;
    if (kv_is_coded(kv->type)) {
        a.kv.code_bits = kv_code_bits(kv->type);
        a.kv.recent_k = c->origin + kv->recent_key_at;
        a.kv.recent_v = c->origin + kv->recent_value_at;
    }
    a.q = at(w, o->in);
    a.k = at(w, o->in2);
    a.v = at(w, o->in3);
    a.ldq = c->ld[o->in];
    a.ldk = c->ld[o->in2];
    a.ldv = c->ld[o->in3];
    a.out = at(w, o->out);
    a.ldo = c->ld[o->out];
    a.n_row = w->g->n_row;
    a.n_head = o->u.attn.n_head;
    a.position = c->position + w->g->row;
    a.pages = c->page_table;
    a.first_page = c->first_page + w->g->row;
    a.cos_sin = n_rot ? c->cos_sin[s->rope->u.rope.table] + w->g->row * n_rot : NULL;
    a.cos_sin_by_row = true;
    a.stored = c->stored;
    a.style = style;
    a.n_rot = n_rot;
    a.window = o->u.attn.window;
    a.scale = o->u.attn.scale;
    a.softcap = o->u.attn.softcap;
    a.alibi_max_bias = o->u.attn.alibi_max_bias;
    a.alibi_scale = o->u.attn.alibi_scale;
    a.scratch = c->attend_scratch;
    a.leaves = leaves(w, s);
    c->coded_whole = false;
    return c->in_place.on_host[o->u.attn.layer] ? attend_moved(w, o, kv, &a, err) : attend_all(w, o, &a, err);
}

static nib_status each(const walk *w, const op *o, nib_error *err) {
    const bool acts = o->kind == OP_ACT || o->kind == OP_GATE;
    cuda_each a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.kind = o->kind;
    a.act = acts ? o->u.act.kind : ACT_SILU;
    a.x = at(w, o->in);
    a.y = o->in2 == REG_NONE ? NULL : at(w, o->in2);
    a.value = acts ? 0 : o->u.num.value;
    a.out = at(w, o->out);
    a.n_row = w->g->n_row;
    a.n = o->n;
    a.ldx = ld_of(w, o->in);
    a.ldy = o->in2 == REG_NONE ? 0 : ld_of(w, o->in2);
    a.ldo = ld_of(w, o->out);
    nib_status status;
    gpu_launch *l = replay_add(w->c, LAUNCH_EACH, o, &status, err);
    if (l)
        l->u.each = a;
    return status;
}

static nib_status launch_step(const walk *w, const step *s, nib_error *err) {
    const op *o = &w->ops[s->first];
    switch (s->kind) {
    case STEP_EMBED: return embed(w, s, err);
    case STEP_NORM: return norm(w, o, err);
    case STEP_LINEAR: return products(w, s, err);
    case STEP_ATTEND: return attend(w, s, err);
    case STEP_EACH: return each(w, o, err);
    }
    return NIB_OK;
}

nib_status launch_group(cuda *c, const row_group *g, nib_error *err) {
    const steps *all = &c->blocks[g->block];
    const walk w = {c, g, layout_block(c->setup.layout, g->block)->program.ops,
                    g->block == layout_n_block(c->setup.layout) - 1};
    for (int i = 0; i < all->n; i++) {
        const step *s = &all->list[i];
        if (c->run.visit.cache_only && !s->feeds_cache)
            continue;
        NIB_TRY(launch_step(&w, s, err));
        c->coded = leaves(&w, s).data && !c->run.visit.cache_only ? s->codes_for : NULL;
        c->coded_row = g->row;
    }
    return NIB_OK;
}

nib_status launch_hidden(cuda *c, const row_group *g, reg *out, nib_error *err) {
    const steps *all = &c->blocks[g->block];
    const program *p = &layout_block(c->setup.layout, g->block)->program;
    const op *product = probe_head_product(p);
    const walk w = {c, g, p->ops, true};
    const step *s = all->list;
    for (; product < p->ops + s->first || product >= p->ops + s->first + s->n; s++)
        NIB_TRY(launch_step(&w, s, err));
    *out = product->in;
    c->coded = NULL;
    return s->norm ? norm(&w, s->norm, err) : NIB_OK;
}

nib_status launch_best(cuda *c, int64_t n_row, nib_error *err) {
    static const op of = {.kind = OP_LINEAR};
    cuda_sample a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.logits = c->reg[REG_LOGITS];
    a.n_row = n_row;
    a.ld = c->ld[REG_LOGITS];
    a.n_vocab = model_reg_width(cuda_model(c), REG_LOGITS);
    a.rows = c->change_rows ? c->change_rows + c->run.visit.row : NULL;
    a.changes = c->change_rows ? c->change_list : NULL;
    a.top = c->pass.n_best;
    a.temperature = 1;
    a.top_p = 1;
    a.uniform = c->uniform;
    a.token = c->best_token;
    a.top_ids = c->best;
    a.top_logits = (float *)(void *)(c->best + n_row * c->pass.n_best);
    a.scratch = c->best_scratch;
    nib_status status;
    gpu_launch *l = replay_add(c, LAUNCH_BEST, &of, &status, err);
    if (l)
        l->u.best = a;
    return status;
}
