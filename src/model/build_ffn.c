/* build_ffn.c - feed-forward layers: dense ones, mixtures of experts, and both in one layer. */
#include "model/builder.h"

#include <math.h>

static double softplus(double x) {
    return x > 30 ? x : log1p(exp(x));
}

static void activate(builder *p, op *o, int layer) {
    const config *c = &p->m->cfg;
    if (c->act == ACT_XIELU) {
        o->kind = OP_XIELU;
        const float *raw = c->xielu[layer];
        o->u.xielu.positive = (float)softplus((double)raw[XIELU_ALPHA_P]);
        o->u.xielu.negative = (float)((double)raw[XIELU_BETA] + softplus((double)raw[XIELU_ALPHA_N]));
        o->u.xielu.linear = raw[XIELU_BETA];
        o->u.xielu.limit = raw[XIELU_EPS];
    } else {
        o->u.act.kind = c->act;
    }
}

/* The router reads its own normed copy of the stream, if it has a norm. */
static void route(builder *p, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const reg logits = model_declare_reg(p->m, "router"), chosen = model_declare_reg(p->m, "chosen");
    if (builder_has(p, SLOT_ROUTER_NORM)) {
        in = REG_H2;
        emit_norm(p, SLOT_ROUTER_NORM, in, REG_X, hp->d_model, 1);
    }
    emit_linear(p, SLOT_ROUTER, logits, in);
    if (hp->router_cap > 0)
        emit_value(p, OP_SOFTCAP, logits, hp->n_expert, hp->router_cap);
    op *o = emit(p, OP_ROUTE, chosen, logits, 2 * hp->n_expert_used, hp->n_expert);
    o->b = p->b->slot[SLOT_CHOICE_BIAS].w;
    o->w2 = p->b->slot[SLOT_EXPERT_SCALE].w;
    o->w = p->b->slot[SLOT_HASH].w;
    o->u.route.score = (score_kind)hp->expert_score;
    o->u.route.n_used = hp->n_expert_used;
    o->u.route.n_group = hp->n_expert_group;
    o->u.route.group_used = hp->n_group_used;
    o->u.route.group_best = hp->expert_score == SCORE_SOFTMAX ? 1 : 2; /* DeepSeek V2; V3 and its followers */
    o->u.route.normalise = hp->expert_norm;
    o->u.route.scale = (float)hp->expert_scale;
    o->cost.macs = (uint64_t)hp->n_expert;
}

/* n, k: of one expert. last: its results are added up. */
static void experts(builder *p, slot_id slot, reg out, reg in, int64_t n, int64_t k, bool last) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t used = hp->n_expert_used;
    op *o = emit(p, OP_EXPERTS, out, in, last ? n : used * n, last ? used * k : k);
    o->in2 = model_declare_reg(p->m, "chosen");
    o->w = p->b->slot[slot].w;
    o->b = p->b->slot[slot].b;
    o->u.experts.n_expert = hp->n_expert;
    o->u.experts.n_used = used;
    o->u.experts.n = n;
    o->u.experts.k = k;
    o->u.experts.each = o->u.experts.sum = last;
    o->u.experts.weighted = last != ((p->m->arch->flags & A_WEIGHTED_INPUT) != 0);
    o->cost.macs = (uint64_t)(used * n) * (uint64_t)k;
}

/* The activation of n neurons in REG_U, whose gates, if there are any, are in REG_G. */
static void emit_neurons(builder *p, bool gated, int64_t n) {
    const double limit = p->m->cfg.hp.gate_limit;
    if (gated && limit > 0) {
        /* act(min(g, limit)): SiLU grows above its minimum, which is above -1, so its value is limited */
        op *o = emit(p, OP_ACT, REG_G, REG_G, n, n);
        o->u.act.kind = p->m->cfg.act;
        emit_value(p, OP_CLAMP, REG_G, n, limit / (1 + exp(-limit)));
        emit_value(p, OP_CLAMP, REG_U, n, limit);
        emit_gate(p, REG_G, REG_U, ACT_NONE, n);
        return;
    }
    if (gated) {
        emit_gate(p, REG_G, REG_U, p->m->cfg.act, n);
        return;
    }
    op *o = emit(p, OP_ACT, REG_U, REG_U, n, n);
    o->u.act.kind = p->m->cfg.act;
    o->cost.macs = (uint64_t)n;
}

/* What the shared expert adds to REG_O. */
static void shared_expert(builder *p, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const reg out = model_declare_reg(p->m, "shared"), by = model_declare_reg(p->m, "shared_gate");
    if (builder_has(p, SLOT_GATE_SHEXP))
        emit_linear(p, SLOT_GATE_SHEXP, REG_G, in);
    emit_linear(p, SLOT_UP_SHEXP, REG_U, in);
    emit_neurons(p, builder_has(p, SLOT_GATE_SHEXP), p->b->weights[p->b->slot[SLOT_UP_SHEXP].w].n);
    emit_linear(p, SLOT_DOWN_SHEXP, out, REG_U);
    if (builder_has(p, SLOT_SHEXP_ROUTER))
        emit_linear(p, SLOT_SHEXP_ROUTER, by, in);
    emit_sum(p, REG_O, out, hp->d_model);
    p->ops[p->n - 1].in3 = builder_has(p, SLOT_SHEXP_ROUTER) ? by : REG_NONE;
}

/* in -> REG_O */
static void mixture(builder *p, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const bool latent = builder_has(p, SLOT_LATENT_DOWN);
    const int64_t d = latent ? hp->d_latent : hp->d_model;
    const int64_t ff = p->b->weights[p->b->slot[SLOT_UP_EXPS].w].expert_n;
    const reg from = latent ? model_declare_reg(p->m, "latent") : in, to = latent ? from : REG_O;
    route(p, in);
    if (latent)
        emit_linear(p, SLOT_LATENT_DOWN, from, in);
    if (builder_has(p, SLOT_GATE_EXPS))
        experts(p, SLOT_GATE_EXPS, REG_G, from, ff, d, false);
    experts(p, SLOT_UP_EXPS, REG_U, from, ff, d, false);
    emit_neurons(p, builder_has(p, SLOT_GATE_EXPS), hp->n_expert_used * ff);
    experts(p, SLOT_DOWN_EXPS, to, REG_U, d, ff, true);
    if (latent)
        emit_linear(p, SLOT_LATENT_UP, REG_O, to);
    if (builder_has(p, SLOT_DOWN_SHEXP))
        shared_expert(p, in);
    emit_reduce(p, hp->d_model);
    if (hp->ffn_scale != 1)
        emit_value(p, OP_SCALE, REG_O, hp->d_model, hp->ffn_scale);
}

/* in -> REG_O */
static void dense(builder *p, int layer, reg in) {
    const config *c = &p->m->cfg;
    int64_t d_ff = c->shape[layer].d_ff;
    if (builder_has(p, SLOT_GATE)) {
        emit_linear(p, SLOT_GATE, REG_G, in);
        emit_linear(p, SLOT_UP, REG_U, in);
        emit_scale(p, REG_G, d_ff, c->hp.gate_scale);
        if (isfinite(c->shape[layer].sparsity))
            emit_value(p, OP_SPARSIFY, REG_G, d_ff, (double)c->shape[layer].sparsity);
        emit_gate(p, REG_G, REG_U, c->act, d_ff);
    } else {
        emit_linear(p, SLOT_UP, REG_U, in);
        op *o = emit(p, OP_ACT, REG_U, REG_U, d_ff, d_ff);
        activate(p, o, layer);
        o->cost.macs = (uint64_t)d_ff;
    }
    emit_linear(p, SLOT_DOWN, REG_O, REG_U);
    emit_reduce(p, c->hp.d_model);
    emit_scale(p, REG_O, c->hp.d_model, c->hp.down_scale);
}

/* A dense layer and a mixture with the same input stream, added up. */
static void branches(builder *p, int layer, reg in) {
    const int64_t d = p->m->cfg.hp.d_model;
    const reg of_dense = model_declare_reg(p->m, "dense");
    dense(p, layer, in);
    emit_norm(p, SLOT_DENSE_POST_NORM, of_dense, REG_O, d, 1);
    emit_norm(p, SLOT_EXPERT_NORM, REG_H, REG_X, d, 1);
    mixture(p, REG_H);
    emit_norm(p, SLOT_EXPERT_POST_NORM, REG_O, REG_O, d, 1);
    emit_sum(p, REG_O, of_dense, d);
}

void build_feed_forward(builder *p, int layer, reg in) {
    const config *c = &p->m->cfg;
    if (builder_has(p, SLOT_ROUTER) && builder_has(p, SLOT_DENSE_POST_NORM))
        branches(p, layer, in);
    else if (builder_has(p, SLOT_ROUTER))
        mixture(p, in);
    else
        dense(p, layer, in);
    if (builder_has(p, SLOT_FFN_POST_NORM))
        emit_norm(p, SLOT_FFN_POST_NORM, REG_O, REG_O, c->hp.d_model, 1);
}
