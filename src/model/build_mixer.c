/* build_mixer.c - the mixers of recurrent layers. */
#include "model/builder.h"

#include <float.h>
#include <math.h>

/* The short convolution of register r. */
static void convolve(builder *p, reg r, int64_t n, bool silu) {
    const int64_t n_tap = p->m->cfg.hp.rec_tap;
    op *o = emit(p, OP_CONV, r, r, n, n);
    o->w = p->b->slot[SLOT_REC_CONV].w;
    o->b = p->b->slot[SLOT_REC_CONV].b;
    o->u.rec.n_tap = n_tap;
    o->u.rec.silu = silu;
    o->cost.macs = (uint64_t)(n * n_tap);
    o->cost.act_bytes += (uint64_t)(n * (n_tap - 1)) * 8; /* the state, read and written */
}

/* An op with a state of heads: r -> out [rec_inner]. */
static op *carry(builder *p, const layer_shape *shape, op_kind kind, reg out, reg r, int64_t k) {
    const int64_t d_state = p->m->cfg.hp.rec_state;
    op *o = emit(p, kind, out, r, shape->rec_inner, k);
    o->w = p->b->slot[SLOT_REC_A].w;
    o->b = p->b->slot[SLOT_REC_DT_BIAS].w;
    o->w2 = p->b->slot[SLOT_REC_D].w;
    o->u.rec.n_head = shape->rec_head;
    o->u.rec.n_group = shape->rec_group;
    o->u.rec.d_head = shape->rec_head ? shape->rec_inner / shape->rec_head : 1;
    o->u.rec.d_state = d_state;
    o->cost.macs = (uint64_t)(shape->rec_inner * d_state) * (kind == OP_DELTA ? 3 : 2);
    o->cost.act_bytes += (uint64_t)(shape->rec_inner * d_state) * 8;
    return o;
}

/* LFM2: out = (c * conv(b * x)) . w, with b, c and x from one projection. */
static void short_conv(builder *p, const layer_shape *shape, reg in) {
    const int64_t d = shape->rec_inner;
    const reg b = model_declare_reg(p->m, "rec_b");
    const reg c = model_declare_reg(p->m, "rec_z");
    const reg x = model_declare_reg(p->m, "rec_x");
    emit_linear(p, SLOT_REC_B, b, in);
    emit_linear(p, SLOT_REC_Z, c, in);
    emit_linear(p, SLOT_REC_X, x, in);
    emit_gate(p, b, x, ACT_NONE, d);
    convolve(p, x, d, false);
    emit_gate(p, c, x, ACT_NONE, d);
    emit_linear(p, SLOT_REC_OUT, REG_O, x);
}

/* Mamba-2. */
static void state_space(builder *p, const layer_shape *shape, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t n = shape->rec_inner + 2 * shape->rec_group * hp->rec_state;
    const reg z = model_declare_reg(p->m, "rec_z");
    const reg x = model_declare_reg(p->m, "rec_x");
    const reg dt = model_declare_reg(p->m, "rec_dt");
    const reg y = model_declare_reg(p->m, "rec_y");
    emit_linear(p, SLOT_REC_Z, z, in);
    emit_linear(p, SLOT_REC_X, x, in);
    emit_linear(p, SLOT_REC_DT, dt, in);
    emit_scale(p, z, shape->rec_inner, hp->rec_in_scale * hp->rec_z_scale);
    emit_scale(p, dt, shape->rec_head, hp->rec_in_scale * hp->rec_dt_scale);
    convolve(p, x, n, true);
    op *o = carry(p, shape, OP_SSD, y, x, n);
    o->in2 = dt;
    o->u.rec.dt_min = (float)hp->rec_dt_min;
    o->u.rec.dt_max = (float)fmin(hp->rec_dt_max, FLT_MAX);
    if (builder_has(p, SLOT_REC_NORM) && hp->rec_norm_first)
        emit_norm(p, SLOT_REC_NORM, y, y, shape->rec_inner, shape->rec_group);
    emit_gate(p, z, y, ACT_SILU, shape->rec_inner);
    if (builder_has(p, SLOT_REC_NORM) && !hp->rec_norm_first)
        emit_norm(p, SLOT_REC_NORM, y, y, shape->rec_inner, shape->rec_group);
    emit_linear(p, SLOT_REC_OUT, REG_O, y);
    emit_scale(p, REG_O, hp->d_model, hp->rec_out_scale);
}

/* The gated delta net: x, beta and the decay are in their registers. The norm is of the output, before the
 * gate. */
static void delta_net(builder *p, const layer_shape *shape, bool by_channel, bool tiled) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t n = shape->rec_inner + 2 * shape->rec_group * hp->rec_state;
    const reg z = model_declare_reg(p->m, "rec_z"), x = model_declare_reg(p->m, "rec_x");
    const reg y = model_declare_reg(p->m, "rec_y");
    convolve(p, x, n, true);
    op *o = carry(p, shape, OP_DELTA, y, x, n);
    o->in2 = model_declare_reg(p->m, "rec_beta");
    o->in3 = model_declare_reg(p->m, "rec_dt");
    o->u.rec.by_channel = by_channel;
    o->u.rec.tiled = tiled;
    emit_norm(p, SLOT_REC_NORM, y, y, shape->rec_inner, shape->rec_head);
    emit_gate(p, z, y, p->m->cfg.gate, shape->rec_inner);
    emit_linear(p, SLOT_REC_OUT, REG_O, y);
}

static void gated_delta_net(builder *p, const layer_shape *shape, reg in) {
    emit_linear(p, SLOT_REC_X, model_declare_reg(p->m, "rec_x"), in);
    emit_linear(p, SLOT_REC_Z, model_declare_reg(p->m, "rec_z"), in);
    emit_linear(p, SLOT_REC_BETA, model_declare_reg(p->m, "rec_beta"), in);
    emit_linear(p, SLOT_REC_DT, model_declare_reg(p->m, "rec_dt"), in);
    delta_net(p, shape, false, mixer_is_tiled(p->m));
}

/* Kimi's: the decay of each channel and the gate are of low rank. */
static void kimi_delta_net(builder *p, const layer_shape *shape, reg in) {
    const reg low = model_declare_reg(p->m, "rec_low");
    emit_linear(p, SLOT_REC_X, model_declare_reg(p->m, "rec_x"), in);
    emit_linear(p, SLOT_REC_BETA, model_declare_reg(p->m, "rec_beta"), in);
    emit_linear(p, SLOT_REC_DT_LOW, low, in);
    emit_linear(p, SLOT_REC_DT, model_declare_reg(p->m, "rec_dt"), low);
    emit_linear(p, SLOT_REC_Z_LOW, low, in);
    emit_linear(p, SLOT_REC_Z, model_declare_reg(p->m, "rec_z"), low);
    delta_net(p, shape, true, false);
}

/* Mamba-1. dt is made of a few columns. */
static void selective_scan(builder *p, const layer_shape *shape, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const reg z = model_declare_reg(p->m, "rec_z");
    const reg x = model_declare_reg(p->m, "rec_x");
    const reg low = model_declare_reg(p->m, "rec_low");
    const reg bc = model_declare_reg(p->m, "rec_bc");
    const reg dt = model_declare_reg(p->m, "rec_dt");
    const reg y = model_declare_reg(p->m, "rec_y");
    emit_linear(p, SLOT_REC_X, x, in);
    emit_linear(p, SLOT_REC_Z, z, in);
    convolve(p, x, shape->rec_inner, true);
    emit_linear(p, SLOT_REC_DT_LOW, low, x);
    emit_linear(p, SLOT_REC_BC, bc, x);
    if (builder_has(p, SLOT_REC_DT_NORM))
        emit_norm(p, SLOT_REC_DT_NORM, low, low, hp->rec_dt_rank, 1);
    if (builder_has(p, SLOT_REC_B_NORM))
        emit_norm(p, SLOT_REC_B_NORM, bc, bc, 2 * hp->rec_state, 2);
    emit_linear(p, SLOT_REC_DT, dt, low);
    op *o = carry(p, shape, OP_SCAN, y, x, shape->rec_inner);
    o->in2 = dt;
    o->in3 = bc;
    emit_gate(p, z, y, ACT_SILU, shape->rec_inner);
    emit_linear(p, SLOT_REC_OUT, REG_O, y);
}

void build_mixer(builder *p, int layer, reg in) {
    const layer_shape *shape = &p->m->cfg.shape[layer];
    switch (p->m->arch->mixer) {
    case MIXER_CONV: short_conv(p, shape, in); break;
    case MIXER_SSD: state_space(p, shape, in); break;
    case MIXER_DELTA: gated_delta_net(p, shape, in); break;
    case MIXER_KDA: kimi_delta_net(p, shape, in); break;
    case MIXER_SCAN: selective_scan(p, shape, in); break;
    case MIXER_NONE:
    case MIXER_COUNT: break;
    }
    emit_reduce(p, p->m->cfg.hp.d_model);
}
