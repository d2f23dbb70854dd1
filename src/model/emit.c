/* emit.c - see builder.h; and what an op's record says of itself. */
#include "base/num.h"
#include "model/builder.h"

#include <math.h>
#include <string.h>

op *emit(builder *p, op_kind kind, reg out, reg in, int64_t n, int64_t k) {
    op *o = &p->ops[p->n++];
    memset(o, 0, sizeof *o);
    o->kind = kind;
    o->out = out;
    o->in = in;
    o->in2 = o->in3 = REG_NONE;
    o->w = o->b = o->w2 = -1;
    o->n = n;
    o->k = k;
    o->cost.act_bytes = (uint64_t)(n + k) * 4;
    return o;
}

void emit_norm(builder *p, slot_id slot, reg out, reg in, int64_t width, int64_t n_group) {
    op *o = emit(p, OP_NORM, out, in, width, width);
    o->w = p->b->slot[slot].w;
    o->b = p->b->slot[slot].b;
    o->u.norm.kind = p->m->arch->norm;
    o->u.norm.n_group = p->b->slot[slot].whole_row ? 1 : n_group;
    o->u.norm.w_full = p->b->slot[slot].per_entry;
    const hparams *hp = &p->m->cfg.hp;
    const bool low_rank = slot == SLOT_Q_A_NORM || slot == SLOT_KV_A_NORM;
    o->u.norm.eps = (float)(low_rank && hp->low_rank_eps > 0 ? hp->low_rank_eps : hp->norm_eps);
    o->cost.macs = (uint64_t)width;
}

void emit_plain_norm(builder *p, reg out, reg in, int64_t width, int64_t n_group) {
    op *o = emit(p, OP_NORM, out, in, width, width);
    o->u.norm.kind = p->m->arch->norm;
    o->u.norm.n_group = n_group;
    o->u.norm.eps = (float)p->m->cfg.hp.norm_eps;
    o->cost.macs = (uint64_t)width;
}

void emit_linear(builder *p, slot_id slot, reg out, reg in) {
    const weight *w = &p->b->weights[p->b->slot[slot].w];
    op *o = emit(p, OP_LINEAR, out, in, w->n, w->k);
    o->w = p->b->slot[slot].w;
    o->b = p->b->slot[slot].b;
    o->cost.macs = (uint64_t)w->n * (uint64_t)w->k;
}

void emit_value(builder *p, op_kind kind, reg r, int64_t width, double value) {
    op *o = emit(p, kind, r, r, width, width);
    o->u.num.value = (float)value;
    o->cost.macs = (uint64_t)width;
}

void emit_scale(builder *p, reg r, int64_t width, double value) {
    if (value != 1)
        emit_value(p, OP_SCALE, r, width, value);
}

void emit_sum(builder *p, reg to, reg more, int64_t width) {
    op *o = emit(p, OP_ADD, to, to, width, width);
    o->in2 = more;
    o->u.num.value = 1;
    o->cost.act_bytes = (uint64_t)width * 12;
    o->cost.macs = (uint64_t)width;
}

void emit_reduce(builder *p, int64_t width) {
    if (p->m->share.n > 1)
        emit(p, OP_REDUCE, REG_O, REG_O, width, width)->cost.macs = (uint64_t)(width * p->m->share.n);
}

void emit_rope(builder *p, reg r, int64_t n_head, int64_t d_head, int table) {
    const config *c = &p->m->cfg;
    int64_t width = n_head * d_head;
    op *o = emit(p, OP_ROPE, r, r, width, width);
    o->u.rope.table = table;
    o->u.rope.style = c->rope;
    o->u.rope.n_head = n_head;
    o->u.rope.d_head = d_head;
    o->u.rope.n_rot = c->ropes[table].n_rot;
    o->cost.macs = (uint64_t)(2 * n_head * c->ropes[table].n_rot);
}

void emit_gate(builder *p, reg z, reg r, act_kind act, int64_t n) {
    op *o = emit(p, OP_GATE, r, z, n, n);
    o->in2 = r;
    o->u.act.kind = act;
    o->cost.macs = (uint64_t)n;
}

void emit_copy(builder *p, reg out, reg in, int64_t n_group, int64_t n, int64_t step_in, int64_t at,
               int64_t step, int64_t n_zero) {
    op *o = emit(p, OP_COPY, out, in, n_group * step, NUM_MAX(n, n_group * step_in));
    o->u.copy.n_group = n_group;
    o->u.copy.n = n;
    o->u.copy.step_in = step_in;
    o->u.copy.at = at;
    o->u.copy.step = step;
    o->u.copy.n_zero = n_zero;
}

void op_copy_row(const op *o, const float *in, float *out) {
    const size_t n = (size_t)o->u.copy.n, n_zero = (size_t)o->u.copy.n_zero;
    for (int64_t i = 0; i < o->u.copy.n_group; i++) {
        float *to = out + o->u.copy.at + i * o->u.copy.step;
        memcpy(to, in + o->u.copy.at_in + i * o->u.copy.step_in, n * sizeof *to);
        memset(to + n, 0, n_zero * sizeof *to);
    }
}

float op_position_scale(const op *o, int64_t position) {
    const float steps = floorf((float)(position + o->u.num.offset) / (float)o->u.num.every);
    return 1 + o->u.num.value * logf(1 + steps);
}

const char *op_name(op_kind kind) {
    static const char *const names[OP_COUNT] = {
        [OP_EMBED] = "embed",
        [OP_EMBED_POS] = "embed_pos",
        [OP_NORM] = "norm",
        [OP_LINEAR] = "linear",
        [OP_SHORTLIST] = "shortlist",
        [OP_ROPE] = "rope",
        [OP_ATTENTION] = "attention",
        [OP_ACT] = "act",
        [OP_GATE] = "gate",
        [OP_ADD] = "add",
        [OP_SCALE] = "scale",
        [OP_CLAMP] = "clamp",
        [OP_SOFTCAP] = "softcap",
        [OP_XIELU] = "xielu",
        [OP_SCALE_POS] = "scale_pos",
        [OP_CONV] = "conv",
        [OP_SSD] = "ssd",
        [OP_SCAN] = "scan",
        [OP_DELTA] = "delta",
        [OP_COPY] = "copy",
        [OP_MIX] = "mix",
        [OP_LIKE] = "like",
        [OP_TIMES] = "times",
        [OP_SHARE] = "share",
        [OP_SOFTPLUS] = "softplus",
        [OP_SPARSIFY] = "sparsify",
        [OP_ROUTE] = "route",
        [OP_EXPERTS] = "experts",
        [OP_GROUPS] = "groups",
        [OP_SPREAD] = "spread",
        [OP_CONNECT] = "connect",
        [OP_POOL] = "pool",
        [OP_SELECT] = "select",
        [OP_REDUCE] = "reduce",
    };
    return kind >= 0 && kind < OP_COUNT ? names[kind] : "?";
}
