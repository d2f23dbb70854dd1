/* launch_attend.c - turns attention into launches: storing, packing and moving of keys and values, and
 * attention itself. */
#include "base/num.h"
#include "exec/cuda/launch.h"
#include "kernels/kv_layout.h"
#include "tiers/device_cuda.h"

#include <string.h>

static nib_status add(const launch_walk *w, launch_kind kind, const op *o, const cuda_attend *a,
                      nib_error *err) {
    return replay_add(w->c, kind, o, a, sizeof *a, err);
}

/* The number of rows of the group from r on that belong to one sequence. */
static int64_t rows_of_sequence(const launch_walk *w, int64_t r) {
    int64_t row = w->g->row + r;
    const segment *s = visits_segment(w->c->pass.segments, w->c->pass.n_segment, false, &row);
    return NUM_MIN(s->n_row - row, w->g->n_row - r);
}

/* Prompts: one launch for the rows of each sequence. */
static nib_status attend_prompts(const launch_walk *w, const cuda_attend *all, const op *o, nib_error *err) {
    for (int64_t r = 0, n; r < all->n_row; r += n) {
        cuda_attend a = *all;
        n = rows_of_sequence(w, r);
        a.n_row = n;
        a.q += r * a.ldq, a.k += r * a.ldk, a.v += r * a.ldv, a.out += r * a.ldo;
        a.position += r, a.first_page += r;
        a.cos_sin = a.cos_sin ? a.cos_sin + r * a.n_rot : NULL;
        NIB_TRY(add(w, LAUNCH_PROMPT, o, &a, err));
        if (a.kv.code_bits)
            NIB_TRY(add(w, LAUNCH_STORE, o, &a, err));
    }
    return NIB_OK;
}

static nib_status move(const launch_walk *w, const op *o, const cuda_move *a, nib_error *err) {
    return a->n_page ? replay_add(w->c, LAUNCH_MOVE, o, a, sizeof *a, err) : NIB_OK;
}

/* A prompt's keys and values in codes are stored after attention, which reads the launch's rows instead,
 * because the cache has memory for the newest positions only. */
static nib_status attend_all(const launch_walk *w, const op *o, const cuda_attend *a, nib_error *err) {
    const bool stores = a->stored || w->c->run.visit.cache_only, coded = a->kv.code_bits > 0;
    if (stores && coded)
        NIB_TRY(add(w, LAUNCH_PACK, o, a, err));
    if (stores && (!coded || !w->c->wide || w->c->run.visit.cache_only))
        NIB_TRY(add(w, LAUNCH_STORE, o, a, err));
    if (w->c->run.visit.cache_only)
        return NIB_OK;
    return w->c->wide ? attend_prompts(w, a, o, err) : add(w, LAUNCH_ATTEND, o, a, err);
}

/* Attention of a layer whose keys and values are in host memory. */
static nib_status attend_moved(const launch_walk *w, const op *o, const kv_view *host, cuda_attend *a,
                               nib_error *err) {
    moves_attend(w->c, host, a);
    a->stored = true; /* attention begins after the pages have arrived */
    const cuda_move up = moves_of(w->c, host, a, true), down = moves_of(w->c, host, a, false);
    NIB_TRY(move(w, o, &up, err));
    NIB_TRY(attend_all(w, o, a, err));
    return move(w, o, &down, err);
}

nib_status launch_attend(const launch_walk *w, const step *s, nib_error *err) {
    cuda *c = w->c;
    const op *o = &w->ops[s->first + s->n - 1];
    /* Offsets in a page, the same in every page. */
    const kv_view *kv = &c->pass.segments->kv->layers[o->u.attn.layer];
    const rope_style style = s->rope ? s->rope->u.rope.style : ROPE_HALF;
    const int64_t n_rot = s->rope ? s->rope->u.rope.n_rot : 0;
    view sinks;
    cuda_attend a;
    cuda_weight(c, w->g->block, o->w, &sinks);
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
    a.q = launch_at(w, o->in);
    a.k = launch_at(w, o->in2);
    a.v = launch_at(w, o->in3);
    a.ldq = c->ld[o->in];
    a.ldk = c->ld[o->in2];
    a.ldv = c->ld[o->in3];
    a.out = launch_at(w, o->out);
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
    a.sinks = sinks.data;
    a.scratch = c->attend_scratch;
    a.leaves = launch_leaves(w, s);
    c->coded_whole = false;
    return c->in_place.on_host[o->u.attn.layer] ? attend_moved(w, o, kv, &a, err) : attend_all(w, o, &a, err);
}
