/* launch_rows.c - ops on whole rows: norms, rotations, copies of columns, and ops element by element. */
#include "exec/cuda/launch.h"

#include <string.h>

nib_status launch_norm(const launch_walk *w, const op *o, const op *second, nib_error *err) {
    cuda_norm a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.kind = o->u.norm.kind;
    a.x = launch_at(w, o->in);
    a.w = launch_vector(w, o->w);
    a.b = launch_vector(w, o->b);
    a.out = launch_at(w, o->out);
    a.n_row = w->g->n_row;
    a.ldx = launch_ld(w, o->in);
    a.ldo = launch_ld(w, o->out);
    a.k = o->k;
    a.n_group = o->u.norm.n_group;
    a.w_full = o->u.norm.w_full;
    a.eps = o->u.norm.eps;
    if (second) {
        a.x2 = launch_at(w, second->in);
        a.w2 = launch_vector(w, second->w);
        a.b2 = launch_vector(w, second->b);
        a.out2 = launch_at(w, second->out);
        a.ldx2 = launch_ld(w, second->in);
        a.ldo2 = launch_ld(w, second->out);
        a.n_group2 = second->u.norm.n_group;
    }
    return replay_add(w->c, LAUNCH_NORM, o, &a, sizeof a, err);
}

static cuda_each each_of(const launch_walk *w, const op *o) {
    const bool acts = o->kind == OP_ACT || o->kind == OP_GATE;
    cuda_each a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.kind = o->kind;
    a.act = acts ? o->u.act.kind : ACT_SILU;
    a.x = launch_at(w, o->in);
    a.y = o->in2 == REG_NONE ? NULL : launch_at(w, o->in2);
    a.z = o->in3 == REG_NONE ? NULL : launch_at(w, o->in3);
    const bool plain =
        o->kind == OP_XIELU || o->kind == OP_TIMES || o->kind == OP_SHARE || o->kind == OP_SOFTPLUS;
    a.value = acts || plain ? 0 : o->u.num.value;
    a.out = launch_at(w, o->out);
    a.n_row = w->g->n_row;
    a.n = o->n;
    a.ldx = launch_ld(w, o->in);
    a.ldy = o->in2 == REG_NONE ? 0 : launch_ld(w, o->in2);
    a.ldz = o->in3 == REG_NONE ? 0 : launch_ld(w, o->in3);
    a.ldo = launch_ld(w, o->out);
    if (o->kind == OP_TIMES)
        a.y = launch_vector(w, o->w);
    if (o->kind == OP_SHARE)
        a.each = o->n / o->k;
    if (o->kind == OP_XIELU)
        a.xielu = o->u.xielu;
    if (o->kind == OP_SCALE_POS) {
        a.position = w->c->mem.position + w->g->row;
        a.offset = o->u.num.offset;
        a.every = o->u.num.every;
    }
    return a;
}

nib_status launch_each(const launch_walk *w, const op *o, nib_error *err) {
    const cuda_each a = each_of(w, o);
    return replay_add(w->c, LAUNCH_EACH, o, &a, sizeof a, err);
}

nib_status launch_elements(const launch_walk *w, const step *s, nib_error *err) {
    const op *o = &w->ops[s->first];
    cuda_each a = each_of(w, s->kind == STEP_ADD ? o + 1 : o);
    if (s->kind == STEP_ADD) {
        cuda_weight(w->c, w->g->block, o->w, &a.by);
        a.z = launch_at(w, o->in);
        a.ldz = launch_ld(w, o->in);
    }
    if (s->tail) {
        a.total = launch_at(w, s->tail->out);
        a.ldt = launch_ld(w, s->tail->out);
    }
    a.leaves = launch_leaves(w, s);
    w->c->now.coded_whole = false;
    return replay_add(w->c, LAUNCH_EACH, o, &a, sizeof a, err);
}

nib_status launch_columns(const launch_walk *w, const op *o, nib_error *err) {
    cuda_columns a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.x = launch_at(w, o->in);
    a.out = launch_at(w, o->out);
    a.n_row = w->g->n_row;
    a.ldx = launch_ld(w, o->in);
    a.ldo = launch_ld(w, o->out);
    a.n_group = o->u.copy.n_group;
    a.n = o->u.copy.n;
    a.at_in = o->u.copy.at_in;
    a.step_in = o->u.copy.step_in;
    a.at = o->u.copy.at;
    a.step = o->u.copy.step;
    a.n_zero = o->u.copy.n_zero;
    return replay_add(w->c, LAUNCH_COLUMNS, o, &a, sizeof a, err);
}

nib_status launch_rope(const launch_walk *w, const op *o, nib_error *err) {
    cuda_rope a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.x = launch_at(w, o->out);
    a.n_row = w->g->n_row;
    a.ldx = launch_ld(w, o->out);
    a.n_head = o->u.rope.n_head;
    a.d_head = o->u.rope.d_head;
    a.n_rot = o->u.rope.n_rot;
    a.style = o->u.rope.style;
    a.cos_sin = w->c->mem.cos_sin[o->u.rope.table] + w->g->row * a.n_rot;
    return replay_add(w->c, LAUNCH_ROPE, o, &a, sizeof a, err);
}
