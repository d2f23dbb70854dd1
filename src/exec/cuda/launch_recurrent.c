/* launch_recurrent.c - ops with a recurrent state. */
#include "exec/cuda/launch.h"
#include "memory/device_cuda.h"

#include <string.h>

/* Prompts: one launch for the rows of each sequence. */
static nib_status add_prompts(const launch_walk *w, const cuda_recurrent *all, const op *o, nib_error *err) {
    for (int64_t r = 0, n; r < all->n_row; r += n) {
        cuda_recurrent a = *all;
        n = launch_rows_of_sequence(w, r);
        a.n_row = n;
        a.together = true;
        a.x += r * a.ldx, a.out += r * a.ldo;
        a.x2 = a.x2 ? a.x2 + r * a.ldx2 : NULL;
        a.x3 = a.x3 ? a.x3 + r * a.ldx3 : NULL;
        a.times = a.times ? a.times + r * a.ldt : NULL;
        a.gate = a.gate ? a.gate + r * a.ldg : NULL;
        a.position += r, a.state += r, a.save += r;
        NIB_TRY(replay_add(w->c, LAUNCH_RECURRENT, o, &a, sizeof a, err));
    }
    return NIB_OK;
}

nib_status launch_recurrent(const launch_walk *w, const step *s, nib_error *err) {
    cuda *const c = w->c;
    const op *o = s->op, *before = o > &w->ops[s->first] ? o - 1 : NULL, *norm = o + 1;
    cuda_recurrent a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.kind = o->kind;
    a.x = launch_at(w, o->in);
    a.ldx = launch_ld(w, o->in);
    if (o->in2 != REG_NONE)
        a.x2 = launch_at(w, o->in2), a.ldx2 = launch_ld(w, o->in2);
    if (o->in3 != REG_NONE)
        a.x3 = launch_at(w, o->in3), a.ldx3 = launch_ld(w, o->in3);
    a.out = launch_at(w, o->out);
    a.ldo = launch_ld(w, o->out);
    a.n_row = w->g->n_row;
    a.n = o->n;
    a.w = launch_vector(w, o->w);
    a.b = launch_vector(w, o->b);
    a.skip = launch_vector(w, o->w2);
    a.n_tap = o->u.rec.n_tap;
    a.n_head = o->u.rec.n_head;
    a.n_group = o->u.rec.n_group;
    a.d_head = o->u.rec.d_head;
    a.d_state = o->u.rec.d_state;
    a.dt_min = o->u.rec.dt_min;
    a.dt_max = o->u.rec.dt_max;
    a.silu = o->u.rec.silu;
    a.by_channel = o->u.rec.by_channel;
    a.tiled = o->u.rec.tiled;
    a.position = c->mem.position + w->g->row;
    a.state = c->mem.state + w->g->row;
    a.save = c->mem.save + w->g->row;
    a.origin = c->now.origin;
    a.unit = DEVICE_CUDA_ALIGN;
    a.at = o->u.rec.at;
    a.scratch = c->mem.recurrent_scratch;
    if (before) {
        a.times = launch_at(w, before->in);
        a.ldt = launch_ld(w, before->in);
    }
    if (s->tail) {
        if (norm != s->tail) {
            a.norm = launch_vector(w, norm->w);
            a.eps = norm->u.norm.eps;
        }
        a.gate = launch_at(w, s->tail->in);
        a.ldg = launch_ld(w, s->tail->in);
        a.act = s->tail->u.act.kind;
        a.leaves = launch_leaves(w, s);
    }
    c->now.coded_whole = false;
    return c->now.wide ? add_prompts(w, &a, o, err)
                       : replay_add(w->c, LAUNCH_RECURRENT, o, &a, sizeof a, err);
}
