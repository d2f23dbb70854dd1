/* launch_attend.c - turns attention into launches: storing, packing and moving of keys and values, and
 * attention itself. */
#include "base/num.h"
#include "exec/cuda/launch.h"
#include "kernels/kv_layout.h"
#include "memory/device_cuda.h"

#include <string.h>

static nib_status add(const launch_walk *w, launch_kind kind, const op *o, const cuda_attend *a,
                      nib_error *err) {
    return replay_add(w->c, kind, o, a, sizeof *a, err);
}

int64_t launch_rows_of_sequence(const launch_walk *w, int64_t r) {
    int64_t row = w->g->row + r;
    const segment *s = visits_segment(w->c->now.pass.segments, w->c->now.pass.n_segment, false, &row);
    return NUM_MIN(s->n_row - row, w->g->n_row - r);
}

/* The attention of rows [r, r + n) of a group's. */
static cuda_attend rows_of(const cuda_attend *all, int64_t r, int64_t n) {
    cuda_attend a = *all;
    a.n_row = n;
    a.q += r * a.ldq, a.out += r * a.ldo;
    a.k = a.k ? a.k + r * a.ldk : NULL, a.v = a.v ? a.v + r * a.ldv : NULL;
    a.position += r, a.first_page += r;
    a.cos_sin = a.cos_sin ? a.cos_sin + r * a.n_rot : NULL;
    return a;
}

/* Prompts: one launch for the rows of each sequence. first: row of the group at which they begin. */
static nib_status attend_prompts(const launch_walk *w, const cuda_attend *all, const op *o, int64_t first,
                                 nib_error *err) {
    for (int64_t r = 0, n; r < all->n_row; r += n) {
        n = NUM_MIN(launch_rows_of_sequence(w, first + r), all->n_row - r);
        const cuda_attend a = rows_of(all, r, n);
        NIB_TRY(add(w, LAUNCH_PROMPT, o, &a, err));
        if (a.kv.code_bits)
            NIB_TRY(add(w, LAUNCH_STORE, o, &a, err));
    }
    return NIB_OK;
}

/* The number of rows up to n, from row `first` of the group on, of which those of a sequence are in one block
 * of positions. */
static int64_t rows_of_block(const launch_walk *w, int64_t first, int64_t n) {
    for (int64_t r = 0, more; r < n; r += more) {
        int64_t row = w->g->row + first + r;
        const segment *s = visits_segment(w->c->now.pass.segments, w->c->now.pass.n_segment, false, &row);
        const int64_t left = KV_BLOCK - (s->position + row) % KV_BLOCK;
        more = NUM_MIN(s->n_row - row, n - r);
        if (left < more)
            return r + left;
    }
    return n;
}

bool launch_attends_in_parts(const launch_walk *w, const op *attention) {
    const kv_view *kv = &w->c->now.pass.segments->kv->layers[attention->u.attn.layer];
    return launch_is_staged(w->c, attention) ||
           (kv_is_coded(kv->type) && rows_of_block(w, 0, w->g->n_row) < w->g->n_row);
}

/* A prompt's keys and values in codes are stored after attention, which reads the launch's rows instead,
 * because the cache has memory for the newest block only. Few rows are stored, and then attend, one block of
 * each sequence at a time. */
static nib_status attend_all(const launch_walk *w, const op *o, const cuda_attend *all, int64_t first,
                             nib_error *err) {
    const bool cache_only = w->c->now.run.visit.cache_only, coded = all->kv.code_bits > 0;
    const bool stores = op_stores(o) && (all->stored || cache_only);
    if (w->c->now.wide && !cache_only) {
        if (stores)
            NIB_TRY(add(w, coded ? LAUNCH_PACK : LAUNCH_STORE, o, all, err));
        return attend_prompts(w, all, o, first, err);
    }
    for (int64_t r = 0, n; r < all->n_row; r += n) {
        n = coded && !cache_only ? rows_of_block(w, first + r, all->n_row - r) : all->n_row;
        const cuda_attend a = rows_of(all, r, n);
        if (stores && coded)
            NIB_TRY(add(w, LAUNCH_PACK, o, &a, err));
        if (stores)
            NIB_TRY(add(w, LAUNCH_STORE, o, &a, err));
        if (!cache_only)
            NIB_TRY(add(w, LAUNCH_ATTEND, o, &a, err));
    }
    return NIB_OK;
}

/* Attention of a layer with a window in a pass that reuses parts: rows are stored only when what they
 * overwrite was read. The rows of few never overwrite anything (KV_ROWS). */
static nib_status attend_reusing(const launch_walk *w, const op *o, const cuda_attend *all, nib_error *err) {
    for (int64_t r = 0, n; r < all->n_row; r += n) {
        int64_t row = w->g->row + r;
        const cuda_now *now = &w->c->now;
        const segment *s = visits_segment(now->pass.segments, now->pass.n_segment, false, &row);
        n = NUM_MIN(NUM_MIN(s->n_row - row, all->n_row - r), kv_table_rows(s->kv, s->position));
        const cuda_attend a = rows_of(all, r, n);
        NIB_TRY(attend_all(w, o, &a, r, err));
    }
    return NIB_OK;
}

/* Attention of a layer whose keys and values are in host memory. Its launches follow the arrival of pages, so
 * they are in no graph. */
static nib_status attend_staged(const launch_walk *w, const op *o, const cuda_attend *all, nib_error *err) {
    cuda *c = w->c;
    kv_stage *s = c->staged.stage;
    c->replay.copied = true;
    for (int64_t r = 0, n; r < all->n_row; r += n) {
        kv_stage_part part;
        const int64_t row = w->g->row + r;
        NIB_TRY(replay_flush_once(c, err));
        NIB_TRY(kv_stage_acquire(s, o->u.attn.layer, row, &part, err));
        n = NUM_MIN(all->n_row - r, part.end - row);
        cuda_attend a = rows_of(all, r, n);
        a.kv.k = part.key;
        a.kv.v = a.kv.v ? part.value : NULL;
        a.kv.recent_k = a.kv.code_bits ? part.key : NULL;
        a.kv.recent_v = a.kv.code_bits ? part.newest_value : NULL;
        a.pages = part.pages;
        a.stored = true; /* attention begins after the pages have arrived */
        NIB_TRY(attend_all(w, o, &a, r, err));
        NIB_TRY(replay_flush_once(c, err));
        if (row + n == part.end)
            NIB_TRY(kv_stage_release(s, err));
    }
    return NIB_OK;
}

/* ---- heads of any width ----
 *
 * The kernels have heads of a multiple of 8. Others get zeros behind them in registers of their own, for
 * which a page has memory (kv_head_bytes). */

static int64_t width_of(const op *o) {
    return kv_d_head(o->u.attn.d_head);
}

static nib_status copy_heads(const launch_walk *w, const op *o, int64_t n_head, const float *x, int64_t ldx,
                             int64_t d, float *out, int64_t ldo, int64_t d_out, nib_error *err) {
    cuda_columns a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.x = x;
    a.out = out;
    a.n_row = w->g->n_row;
    a.ldx = ldx;
    a.ldo = ldo;
    a.n_group = n_head;
    a.n = NUM_MIN(d, d_out);
    a.step_in = d;
    a.step = d_out;
    a.n_zero = d_out - a.n;
    return replay_add(w->c, LAUNCH_COLUMNS, o, &a, sizeof a, err);
}

/* Sets an input, or its wider copy. */
static nib_status take_input(const launch_walk *w, const op *o, reg from, int64_t n_head, float *wider,
                             const float **at, int64_t *ld, nib_error *err) {
    const int64_t d = o->u.attn.d_head, wide = width_of(o);
    *at = launch_at(w, from);
    *ld = launch_ld(w, from);
    if (d == wide)
        return NIB_OK;
    NIB_TRY(copy_heads(w, o, n_head, *at, *ld, d, wider, n_head * wide, wide, err));
    *at = wider;
    *ld = n_head * wide;
    return NIB_OK;
}

static nib_status take_inputs(const launch_walk *w, const op *o, cuda_attend *a, nib_error *err) {
    cuda *c = w->c;
    const int64_t n_head = o->u.attn.n_head, n_kv = o->u.attn.n_kv_head;
    NIB_TRY(take_input(w, o, o->in, n_head, c->mem.wider[0], &a->q, &a->ldq, err));
    if (op_stores(o)) {
        NIB_TRY(take_input(w, o, o->in2, n_kv, c->mem.wider[1], &a->k, &a->ldk, err));
        if (!o->u.attn.shared)
            NIB_TRY(take_input(w, o, o->in3, n_kv, c->mem.wider[2], &a->v, &a->ldv, err));
    }
    const bool wider = width_of(o) != o->u.attn.d_head;
    a->out = wider ? c->mem.wider[3] : launch_at(w, o->out);
    a->ldo = wider ? n_head * width_of(o) : launch_ld(w, o->out);
    return NIB_OK;
}

static nib_status give_output(const launch_walk *w, const op *o, const cuda_attend *a, nib_error *err) {
    if (width_of(o) == o->u.attn.d_head)
        return NIB_OK;
    return copy_heads(w, o, o->u.attn.n_head, a->out, a->ldo, width_of(o), launch_at(w, o->out),
                      launch_ld(w, o->out), o->u.attn.d_head, err);
}

/* Whether a block reads many pages alone: if the sequences that there may be have enough blocks together. It
 * is the same for all passes, because the order of sums depends on it. */
static bool in_one_part(const cuda *c, const op *o) {
    enum { ENOUGH = 256 };
    return c->batched || (int64_t)c->setup.n_sequence * o->u.attn.n_kv_head >= ENOUGH;
}

/* Norms of heads are part of the attention of generated rows, or a launch before it. */
static nib_status take_norms(const launch_walk *w, const step *s, cuda_attend *a, nib_error *err) {
    const cuda *c = w->c;
    if (!s->q_norm)
        return NIB_OK;
    if (c->now.wide || c->now.run.visit.cache_only || launch_is_staged(c, &w->ops[s->first + s->n - 1]) ||
        !cuda_attend_norms(a))
        return launch_norm(w, s->q_norm, s->k_norm, err);
    a->q_norm = launch_vector(w, s->q_norm->w);
    a->k_norm = launch_vector(w, s->k_norm->w);
    a->norm_eps = s->q_norm->u.norm.eps;
    return NIB_OK;
}

nib_status launch_attend(const launch_walk *w, const step *s, nib_error *err) {
    cuda *c = w->c;
    const op *o = &w->ops[s->first + s->n - 1];
    /* Offsets in a page, the same in every page. */
    const kv_view *kv = &c->now.pass.segments->kv->layers[o->u.attn.layer];
    const bool slides = kv->pages == c->now.pass.segments->kv->part_at;
    const rope_style style = s->rope ? s->rope->u.rope.style : ROPE_HALF;
    const int64_t n_rot = s->rope ? s->rope->u.rope.n_rot : 0;
    view sinks;
    cuda_attend a;
    cuda_weight(c, w->g->block, o->w, &sinks);
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.kv.k = c->now.origin + kv->key_at;
    a.kv.v = kv->shared ? NULL : c->now.origin + kv->value_at;
    a.kv.n_kv_head = kv->n_kv_head;
    a.kv.d_head = kv_d_head(kv->d_head);
    a.kv.page = DEVICE_CUDA_ALIGN / 2;
    if (kv_is_coded(kv->type)) {
        a.kv.code_bits = kv_code_bits(kv->type);
        a.kv.recent_k = c->now.origin + kv->recent_key_at;
        a.kv.recent_v = c->now.origin + kv->recent_value_at;
    }
    a.n_row = w->g->n_row;
    a.n_head = o->u.attn.n_head;
    a.position = c->mem.position + w->g->row;
    a.pages = c->mem.page_table;
    a.first_page = (slides ? c->mem.first_part : c->mem.first_page) + w->g->row;
    a.cos_sin = n_rot ? c->mem.cos_sin[s->rope->u.rope.table] + w->g->row * n_rot : NULL;
    a.cos_sin_by_row = true;
    a.many = in_one_part(c, o);
    a.stored = c->now.stored || !op_stores(o) || kv->shared;
    a.style = style;
    a.n_rot = n_rot;
    a.window = o->u.attn.window;
    a.chunked = o->u.attn.chunked;
    a.scale = o->u.attn.scale;
    a.softcap = o->u.attn.softcap;
    a.alibi_max_bias = o->u.attn.alibi_max_bias;
    a.alibi_scale = o->u.attn.alibi_scale;
    a.sinks = sinks.data;
    a.scratch = c->mem.attend_scratch;
    a.leaves = launch_leaves(w, s);
    c->now.coded_whole = false;
    NIB_TRY(take_norms(w, s, &a, err));
    NIB_TRY(take_inputs(w, o, &a, err));
    if (a.q_norm)
        a.q = launch_at(w, s->q_norm->in), a.ldq = launch_ld(w, s->q_norm->in),
        a.k = launch_at(w, s->k_norm->in), a.ldk = launch_ld(w, s->k_norm->in);
    const bool reuses = slides && c->now.wide && c->now.reuses;
    NIB_TRY(launch_is_staged(c, o) ? attend_staged(w, o, &a, err)
            : reuses               ? attend_reusing(w, o, &a, err)
                                   : attend_all(w, o, &a, 0, err));
    return c->now.run.visit.cache_only ? NIB_OK : give_output(w, o, &a, err);
}
