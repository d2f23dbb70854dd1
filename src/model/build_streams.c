/* build_streams.c - residuals of several streams: AltUp (Gemma 3n) and hyper-connections (arXiv 2409.19606).
 * All streams of a row are next to each other in REG_X. */
#include "model/builder.h"

#include <math.h>

/* out's parts from `first` on, n_out of them, are mixed from n_in parts of `in`. */
static op *mix(builder *p, reg out, reg in, int64_t n_out, int64_t n_in, int64_t width_out,
               int64_t width_in) {
    const int64_t d = p->m->cfg.hp.d_model;
    op *o = emit(p, OP_MIX, out, in, width_out * d, width_in * d);
    o->u.mix.n_out = n_out;
    o->u.mix.n_in = n_in;
    o->u.mix.d = d;
    o->cost.macs = (uint64_t)(n_out * n_in * d);
    return o;
}

/* The factors of mixing are in2's, width of them, n_out rows of n_in. */
static void mix_by(op *o, reg factors, int64_t width, int64_t step_out, int64_t step_in) {
    o->in2 = factors;
    o->u.mix.width = width;
    o->u.mix.step_out = step_out;
    o->u.mix.step_in = step_in;
}

/* One stream of REG_X. */
static void take_stream(builder *p, reg out, int64_t stream) {
    const int64_t d = p->m->cfg.hp.d_model, n = p->m->cfg.hp.n_stream;
    emit_copy(p, out, REG_X, 1, d, n * d, 0, d, 0);
    p->ops[p->n - 1].u.copy.at_in = stream * d;
}

/* Puts n columns of `in` into REG_X from column `at` on. */
static void put_streams(builder *p, reg in, int64_t n, int64_t at) {
    emit_copy(p, REG_X, in, 1, n, n, at, p->m->cfg.hp.n_stream * p->m->cfg.hp.d_model, 0);
}

/* ---- AltUp ---- */

/* The factors that the router gives for a row: linear(tanh(router(norm(of)))). */
static reg factors(builder *p, slot_id slot, reg of, int64_t n) {
    const hparams *hp = &p->m->cfg.hp;
    const reg routed = model_declare_reg(p->m, "routed");
    const reg out = model_declare_reg(p->m, slot == SLOT_ALTUP_PREDICT ? "predict" : "correct");
    emit_norm(p, SLOT_ALTUP_ROUTER_NORM, REG_H, of, hp->d_model, 1);
    emit_linear(p, SLOT_ALTUP_ROUTER, routed, REG_H);
    emit_value(p, OP_SOFTCAP, routed, hp->n_stream, 1); /* tanh */
    emit_linear(p, slot, out, routed);
    p->ops[p->n - 1].cost.macs = (uint64_t)(n * hp->n_stream);
    return out;
}

/* Adds the per-layer embedding, gated by the active stream, to the other streams. */
static void add_own_embedding(builder *p, int layer, reg active) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t d = hp->d_model, n = hp->d_ple;
    const reg own = build_own_embedding(p, layer), gated = model_declare_reg(p->m, "ple_gate");
    take_stream(p, active, hp->stream_active);
    if (hp->stream_scaled)
        emit(p, OP_TIMES, active, active, d, d)->w = p->b->slot[SLOT_ALTUP_SCALE].w;
    emit_linear(p, SLOT_PLE_GATE, gated, active);
    op *o = emit(p, OP_GATE, gated, gated, n, n);
    o->in2 = own;
    o->u.act.kind = p->m->cfg.act;
    emit_linear(p, SLOT_PLE_OUT, REG_O, gated);
    emit_norm(p, SLOT_PLE_NORM, REG_O, REG_O, d, 1);
    o = mix(p, REG_X, REG_O, hp->n_stream - 1, 1, hp->n_stream, 1);
    o->u.mix.first = 1;
    o->u.mix.plus = 1;
    o->adds = true;
}

void build_altup_layer(builder *p, int layer) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t d = hp->d_model, n = hp->n_stream;
    const reg active = model_declare_reg(p->m, "active"), laurel = model_declare_reg(p->m, "laurel");
    const reg low = model_declare_reg(p->m, "laurel_low");
    take_stream(p, active, hp->stream_active);
    const reg predict = factors(p, SLOT_ALTUP_PREDICT, active, n * n);
    op *o = mix(p, REG_X, REG_X, n, n, n, n);
    mix_by(o, predict, n * n, n, 1);
    o->adds = true;
    take_stream(p, active, hp->stream_active);
    emit_norm(p, SLOT_ATTN_NORM, REG_H, active, d, 1);
    emit_linear(p, SLOT_LAUREL_L, low, REG_H);
    emit_linear(p, SLOT_LAUREL_R, laurel, low);
    emit_norm(p, SLOT_LAUREL_NORM, laurel, laurel, d, 1);
    emit_sum(p, laurel, REG_H, d);
    build_attention(p, layer, REG_H);
    emit_sum(p, active, REG_O, d);
    emit_sum(p, active, laurel, d);
    emit_value(p, OP_SCALE, active, d, sqrt(0.5));
    emit_norm(p, SLOT_FFN_NORM, REG_H, active, d, 1);
    build_feed_forward(p, layer, REG_H);
    emit_sum(p, active, REG_O, d);
    const reg correct = factors(p, SLOT_ALTUP_CORRECT, active, n);
    take_stream(p, REG_O, hp->stream_active);
    emit_value(p, OP_SCALE, REG_O, d, -1);
    emit_sum(p, REG_O, active, d); /* what the layer changed */
    o = mix(p, REG_X, REG_O, n, 1, n, 1);
    mix_by(o, correct, n, 1, 0);
    o->u.mix.plus = 1;
    o->adds = true;
    if (hp->d_ple > 0)
        add_own_embedding(p, layer, active);
}

/* g groups of register r get the magnitude of the first columns of `as`, which has `width`. */
static void scale_like(builder *p, reg r, int64_t g, reg as, int64_t width) {
    const int64_t n = g * p->m->cfg.hp.d_model;
    op *o = emit(p, OP_LIKE, r, r, n, n);
    o->in2 = as;
    o->u.num.every = g;
    o->u.num.offset = width;
    o->u.num.value = 1e-5f;
}

void build_altup_embed(builder *p) {
    const int64_t d = p->m->cfg.hp.d_model, n = p->m->cfg.hp.n_stream;
    const reg others = model_declare_reg(p->m, "streams");
    emit_linear(p, SLOT_ALTUP_PROJ, others, REG_E);
    scale_like(p, others, n - 1, REG_E, d);
    put_streams(p, REG_E, d, 0);
    put_streams(p, others, (n - 1) * d, d);
}

/* The matrices of all streams are one under the other: each reads its own stream, so a product computes the
 * outputs of all, of which one part is used. */
reg build_altup_head(builder *p) {
    const int64_t d = p->m->cfg.hp.d_model, n = p->m->cfg.hp.n_stream;
    const reg one = model_declare_reg(p->m, "active"), all = model_declare_reg(p->m, "streams");
    take_stream(p, REG_O, 0);
    for (int64_t i = 1; i < n; i++) {
        take_stream(p, one, i);
        emit_linear(p, SLOT_ALTUP_UNEMBED, all, one);
        emit_copy(p, one, all, 1, d, (n - 1) * d, 0, d, 0);
        p->ops[p->n - 1].u.copy.at_in = (i - 1) * d;
        scale_like(p, one, 1, REG_X, n * d);
        emit_sum(p, REG_O, one, d);
    }
    emit_value(p, OP_SCALE, REG_O, d, 1 / (double)n);
    return REG_O;
}

/* ---- hyper-connections ---- */

void build_streams_embed(builder *p) {
    const int64_t d = p->m->cfg.hp.d_model, n = p->m->cfg.hp.n_stream;
    emit_copy(p, REG_X, REG_E, n, d, 0, 0, d, 0);
}

/* Manifold-constrained hyper-connections (DeepSeek V4): a sub-layer reads a weighted sum of the streams. */
static reg read_connected(builder *p, stream_site site) {
    static const slot_id at[] = {SLOT_CONNECT, SLOT_CONNECT_FFN, SLOT_CONNECT_OUT};
    const hparams *hp = &p->m->cfg.hp;
    const int64_t n = hp->n_stream, all = n * hp->d_model, width = site == SITE_HEAD ? n : n * (n + 2);
    const reg streams = model_declare_reg(p->m, "streams"), by = model_declare_reg(p->m, "mix");
    emit_plain_norm(p, streams, REG_X, all, 1);
    emit_linear(p, at[site], by, streams);
    op *o = emit(p, OP_CONNECT, by, by, width, width);
    o->w = p->b->slot[at[site] + 1].w;
    o->b = p->b->slot[at[site] + 2].w;
    o->u.num.offset = n;
    o->u.num.every = hp->connect_iterations;
    o->u.num.value = (float)hp->connect_eps;
    mix_by(mix(p, REG_H, REG_X, 1, n, 1, n), by, width, 0, 1);
    return REG_H;
}

/* The streams are mixed, and the sub-layer's output is added to each. */
static void write_connected(builder *p) {
    const int64_t n = p->m->cfg.hp.n_stream, width = n * (n + 2);
    const reg by = model_declare_reg(p->m, "mix");
    op *o = mix(p, REG_X, REG_X, n, n, n, n);
    mix_by(o, by, width, 1, n);
    o->u.mix.at = 2 * n;
    o = mix(p, REG_X, REG_O, n, 1, n, 1);
    mix_by(o, by, width, 1, 0);
    o->u.mix.at = n;
    o->adds = true;
}

/* A sub-layer reads the mean of the normed streams, each column gated by a factor of low rank. */
reg build_streams_read(builder *p, stream_site site) {
    static const slot_id at[] = {SLOT_MIX_NORM, SLOT_MIX_FFN_NORM, SLOT_MIX_OUT_NORM};
    const hparams *hp = &p->m->cfg.hp;
    const int64_t n = hp->n_stream, all = n * hp->d_model;
    if (builder_has(p, SLOT_CONNECT) || builder_has(p, SLOT_CONNECT_OUT))
        return read_connected(p, site);
    const reg streams = model_declare_reg(p->m, "streams"), low = model_declare_reg(p->m, "mix_low");
    const reg by = model_declare_reg(p->m, "mix"), inject = model_declare_reg(p->m, "inject");
    const slot_id first = at[site];
    emit_norm(p, first, streams, REG_X, all, n);
    emit_linear(p, first + 1, low, streams);
    if (site != SITE_HEAD) {
        emit_linear(p, first + 3, inject, streams);
        emit_value(p, OP_SCALE, inject, n, 1 / (double)n);
        emit(p, OP_ACT, inject, inject, n, n)->u.act.kind = ACT_SIGMOID;
        emit_value(p, OP_SCALE, inject, n, 2);
    }
    emit_value(p, OP_SCALE, low, hp->stream_rank, 1 / (double)n);
    emit(p, OP_ACT, low, low, hp->stream_rank, hp->stream_rank)->u.act.kind = ACT_SILU;
    emit_linear(p, first + 2, by, low);
    emit_gate(p, by, streams, ACT_SIGMOID, all);
    mix(p, REG_H, streams, 1, n, 1, n)->u.mix.plus = (float)(1 / (double)n);
    return REG_H;
}

void build_streams_write(builder *p) {
    const int64_t n = p->m->cfg.hp.n_stream;
    if (builder_has(p, SLOT_CONNECT)) {
        write_connected(p);
        return;
    }
    op *o = mix(p, REG_X, REG_O, n, 1, n, 1);
    mix_by(o, model_declare_reg(p->m, "inject"), n, 1, 0);
    o->adds = true;
}
