/* build.c - one builder for all families: turns the configuration and the bound weights into a block's ops.
 * The builder does not depend on the family. An op exists because its weight exists (a bias, a q/k norm, a
 * norm after a sub-layer), or because a number is set (a clip, a soft cap, a scale). */
#include "base/num.h"
#include "model/internal.h"

#include <math.h>
#include <float.h>
#include <string.h>

typedef struct builder {
    model *m;
    const bound *b;
    op *ops;
    int n;
} builder;

static op *put(builder *p, op_kind kind, reg out, reg in, int64_t n, int64_t k) {
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

static void norm(builder *p, slot_id slot, reg out, reg in, int64_t width, int64_t n_group) {
    op *o = put(p, OP_NORM, out, in, width, width);
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

static void linear(builder *p, slot_id slot, reg out, reg in) {
    const weight *w = &p->b->weights[p->b->slot[slot].w];
    op *o = put(p, OP_LINEAR, out, in, w->n, w->k);
    o->w = p->b->slot[slot].w;
    o->b = p->b->slot[slot].b;
    o->cost.macs = (uint64_t)w->n * (uint64_t)w->k;
}

static void value_op(builder *p, op_kind kind, reg r, int64_t width, double value) {
    op *o = put(p, kind, r, r, width, width);
    o->u.num.value = (float)value;
    o->cost.macs = (uint64_t)width;
}

static void scale_by(builder *p, reg r, int64_t width, double value) {
    if (value != 1)
        value_op(p, OP_SCALE, r, width, value);
}

/* Adds the sub-layer's output in REG_O to the residual stream, or to the sub-layer's input (resid_normed). */
static void add(builder *p, reg read) {
    const hparams *hp = &p->m->cfg.hp;
    op *o = put(p, OP_ADD, REG_X, hp->resid_normed ? read : REG_X, hp->d_model, hp->d_model);
    o->in2 = REG_O;
    o->u.num.value = (float)hp->residual_scale;
    o->cost.act_bytes = (uint64_t)hp->d_model * 12;
    o->cost.macs = (uint64_t)hp->d_model;
}

static bool has(const builder *p, slot_id slot) {
    return p->b->slot[slot].there;
}

static void rope(builder *p, reg r, int64_t n_head, int64_t d_head, int table) {
    const config *c = &p->m->cfg;
    int64_t width = n_head * d_head;
    op *o = put(p, OP_ROPE, r, r, width, width);
    o->u.rope.table = table;
    o->u.rope.style = c->rope;
    o->u.rope.n_head = n_head;
    o->u.rope.d_head = d_head;
    o->u.rope.n_rot = c->ropes[table].n_rot;
    o->cost.macs = (uint64_t)(2 * n_head * c->ropes[table].n_rot);
}

/* r = act(z) * r */
static void gate(builder *p, reg z, reg r, act_kind act, int64_t n) {
    op *o = put(p, OP_GATE, r, z, n, n);
    o->in2 = r;
    o->u.act.kind = act;
    o->cost.macs = (uint64_t)n;
}

static void attend(builder *p, int layer, reg queries, bool slides) {
    const config *c = &p->m->cfg;
    const hparams *hp = &c->hp;
    const layer_shape *shape = &c->shape[layer];
    const bool stores = shape->kv_layer == layer;
    int64_t q = hp->n_head * shape->d_head, kv = shape->n_kv_head * shape->d_head;
    op *o = put(p, OP_ATTENTION, REG_A, queries, q, q);
    o->in2 = stores ? REG_K : REG_NONE;
    o->in3 = stores ? REG_V : REG_NONE;
    o->w = p->b->slot[SLOT_SINKS].w;
    o->u.attn.layer = (int)shape->kv_layer;
    o->u.attn.n_head = hp->n_head;
    o->u.attn.n_kv_head = shape->n_kv_head;
    o->u.attn.d_head = shape->d_head;
    o->u.attn.window = slides ? hp->window : 0;
    o->u.attn.chunked = slides && (p->m->arch->flags & A_CHUNKED);
    o->u.attn.scale = (float)(hp->scale_by_layer ? hp->attn_scale / (layer + 1) : hp->attn_scale);
    o->u.attn.softcap = (float)hp->attn_softcap;
    o->u.attn.alibi_max_bias = (float)hp->alibi_max_bias;
    o->u.attn.alibi_scale = p->m->arch->flags & A_ALIBI_SCALED ? (float)hp->attn_scale : 1;
    o->cost.macs = (uint64_t)(2 * q);
    o->cost.act_bytes = (uint64_t)(2 * kv) * 2; /* keys and values of one position in f16 */
}

static void scale_queries(builder *p) {
    const hparams *hp = &p->m->cfg.hp;
    if (hp->pos_scale == 0)
        return;
    value_op(p, OP_SCALE_POS, REG_Q, hp->n_head * hp->d_head, hp->pos_scale);
    p->ops[p->n - 1].u.num.every = hp->pos_scale_every;
    p->ops[p->n - 1].u.num.offset = (p->m->arch->flags & A_NOPE_BARE) != 0;
}

static void norm_heads(builder *p, const layer_shape *shape) {
    const int64_t n_head = p->m->cfg.hp.n_head, n_kv = shape->n_kv_head, d = shape->d_head;
    if (has(p, SLOT_Q_NORM))
        norm(p, SLOT_Q_NORM, REG_Q, REG_Q, n_head * d, n_head);
    if (has(p, SLOT_K_NORM))
        norm(p, SLOT_K_NORM, REG_K, REG_K, n_kv * d, n_kv);
    if (has(p, SLOT_V_NORM))
        norm(p, SLOT_V_NORM, REG_V, REG_V, n_kv * d, n_kv);
}

/* Copies n_group groups of n columns, `step_in` apart, to places `step` apart from `at` on. */
static void copy(builder *p, reg out, reg in, int64_t n_group, int64_t n, int64_t step_in, int64_t at,
                 int64_t step, int64_t n_zero) {
    op *o = put(p, OP_COPY, out, in, n_group * step, NUM_MAX(n, n_group * step_in));
    o->u.copy.n_group = n_group;
    o->u.copy.n = n;
    o->u.copy.step_in = step_in;
    o->u.copy.at = at;
    o->u.copy.step = step;
    o->u.copy.n_zero = n_zero;
}

/* Multi-head latent attention (DeepSeek V2, arXiv 2405.04434): keys and values come from one row of low rank,
 * and each key has a rotated part that all heads share. Heads of q and k begin with the rotated part.
 * in -> REG_O */
static void latent_attention(builder *p, int layer, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t n = hp->n_head, d = hp->d_head, turned = hp->n_rot, plain = d - turned, v = hp->d_value;
    const reg low_q = model_declare_reg(p->m, "low_q"), low_kv = model_declare_reg(p->m, "low_kv");
    const reg k_turned = model_declare_reg(p->m, "k_turned"), k_plain = model_declare_reg(p->m, "k_plain");
    const int64_t wide =
        p->m->cfg.shape[layer].d_head; /* of heads in attention: the larger of keys and values */
    const reg narrow = v < wide ? model_declare_reg(p->m, "narrow_v") : REG_V;
    if (has(p, SLOT_Q_A))
        linear(p, SLOT_Q_A, low_q, in);
    else
        linear(p, SLOT_Q, REG_Q, in);
    linear(p, SLOT_LOW_KV, low_kv, in);
    linear(p, SLOT_K_TURNED, k_turned, in);
    if (has(p, SLOT_Q_A)) {
        norm(p, SLOT_Q_A_NORM, low_q, low_q, hp->q_low_rank, 1);
        linear(p, SLOT_Q_B, REG_Q, low_q);
    }
    norm(p, SLOT_KV_A_NORM, low_kv, low_kv, hp->kv_low_rank, 1);
    linear(p, SLOT_K, k_plain, low_kv);
    linear(p, SLOT_V, narrow, low_kv);
    if (!(p->m->cfg.layer[layer] & LAYER_NO_ROPE)) {
        rope(p, REG_Q, n, d, 0);
        rope(p, k_turned, 1, turned, 0);
    }
    scale_queries(p);
    copy(p, REG_K, k_turned, n, turned, 0, 0, wide, 0);
    copy(p, REG_K, k_plain, n, plain, plain, turned, wide, wide - d);
    const reg q = d < wide ? model_declare_reg(p->m, "wide_q") : REG_Q;
    if (d < wide)
        copy(p, q, REG_Q, n, d, d, 0, wide, wide - d);
    if (v < wide)
        copy(p, REG_V, narrow, n, v, v, 0, wide, wide - v);
    attend(p, layer, q, p->m->cfg.layer[layer] & LAYER_SLIDES);
    if (v < wide)
        copy(p, narrow, REG_A, n, v, wide, 0, v, 0);
    linear(p, SLOT_O, REG_O, v < wide ? narrow : REG_A);
    if (has(p, SLOT_ATTN_POST_NORM))
        norm(p, SLOT_ATTN_POST_NORM, REG_O, REG_O, hp->d_model, 1);
}

/* in -> REG_O */
static void attention(builder *p, int layer, reg in) {
    const config *c = &p->m->cfg;
    const hparams *hp = &c->hp;
    const layer_shape *shape = &c->shape[layer];
    const bool stores = shape->kv_layer == layer;
    int64_t q = hp->n_head * shape->d_head, kv = shape->n_kv_head * shape->d_head;
    bool slides = c->layer[layer] & LAYER_SLIDES;
    if (has(p, SLOT_LOW_KV)) {
        latent_attention(p, layer, in);
        return;
    }
    const int64_t d = shape->d_head, v = hp->d_value; /* values narrower than keys are padded for attention */
    const bool pads = hp->kv_low_rank == 0 && v < d && hp->d_head == d;
    const reg narrow = pads ? model_declare_reg(p->m, "narrow_v") : REG_V;
    linear(p, SLOT_Q, REG_Q, in);
    if (has(p, SLOT_ATTN_GATE))
        linear(p, SLOT_ATTN_GATE, REG_G, in);
    if (stores) {
        linear(p, SLOT_K, REG_K, in);
        if (has(p, SLOT_V))
            linear(p, SLOT_V, narrow, in);
        else /* values are the keys, before these are normed and rotated */
            copy(p, REG_V, REG_K, 1, kv, kv, 0, kv, 0);
    }
    scale_by(p, REG_Q, q, hp->attn_in_scale);
    scale_by(p, REG_K, kv, hp->attn_in_scale * hp->key_scale);
    scale_by(p, REG_V, kv, hp->attn_in_scale);
    if (hp->qkv_clip > 0) {
        value_op(p, OP_CLAMP, REG_Q, q, hp->qkv_clip);
        value_op(p, OP_CLAMP, REG_K, kv, hp->qkv_clip);
        value_op(p, OP_CLAMP, REG_V, kv, hp->qkv_clip);
    }
    const bool norm_last = p->m->arch->flags & A_NORM_AFTER_ROPE;
    if (!norm_last)
        norm_heads(p, shape);
    if (!(c->layer[layer] & LAYER_NO_ROPE)) {
        int table = slides && c->n_rope > 1;
        rope(p, REG_Q, hp->n_head, shape->d_head, table);
        if (stores)
            rope(p, REG_K, shape->n_kv_head, shape->d_head, table);
    }
    const bool bare = p->m->arch->flags & A_NOPE_BARE, turns = !(c->layer[layer] & LAYER_NO_ROPE);
    if (norm_last && (turns || !bare))
        norm_heads(p, shape);
    if (!turns || !bare)
        scale_queries(p);
    if (pads && stores)
        copy(p, REG_V, narrow, shape->n_kv_head, v, v, 0, d, d - v);
    attend(p, layer, REG_Q, slides);
    if (has(p, SLOT_ATTN_GATE))
        gate(p, REG_G, REG_A, ACT_SIGMOID, q);
    if (pads)
        copy(p, narrow, REG_A, hp->n_head, v, d, 0, v, 0);
    linear(p, SLOT_O, REG_O, pads ? narrow : REG_A);
    scale_by(p, REG_O, hp->d_model, hp->attn_out_scale);
    if (has(p, SLOT_ATTN_POST_NORM))
        norm(p, SLOT_ATTN_POST_NORM, REG_O, REG_O, hp->d_model, 1);
}

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

/* ---- recurrent layers ---- */

/* The short convolution of register r. */
static void convolve(builder *p, reg r, int64_t n, bool silu) {
    const int64_t n_tap = p->m->cfg.hp.rec_tap;
    op *o = put(p, OP_CONV, r, r, n, n);
    o->w = p->b->slot[SLOT_REC_CONV].w;
    o->b = p->b->slot[SLOT_REC_CONV].b;
    o->u.rec.n_tap = n_tap;
    o->u.rec.silu = silu;
    o->cost.macs = (uint64_t)(n * n_tap);
    o->cost.act_bytes += (uint64_t)(n * (n_tap - 1)) * 8; /* the state, read and written */
}

/* An op with a state of heads: r -> out [rec_inner]. */
static op *carry(builder *p, op_kind kind, reg out, reg r, int64_t k) {
    const hparams *hp = &p->m->cfg.hp;
    op *o = put(p, kind, out, r, hp->rec_inner, k);
    o->w = p->b->slot[SLOT_REC_A].w;
    o->b = p->b->slot[SLOT_REC_DT_BIAS].w;
    o->w2 = p->b->slot[SLOT_REC_D].w;
    o->u.rec.n_head = hp->rec_head;
    o->u.rec.n_group = hp->rec_group;
    o->u.rec.d_head = hp->rec_head ? hp->rec_inner / hp->rec_head : 1;
    o->u.rec.d_state = hp->rec_state;
    o->cost.macs = (uint64_t)(hp->rec_inner * hp->rec_state) * (kind == OP_DELTA ? 3 : 2);
    o->cost.act_bytes += (uint64_t)(hp->rec_inner * hp->rec_state) * 8;
    return o;
}

/* LFM2: out = (c * conv(b * x)) . w, with b, c and x from one projection. */
static void short_conv(builder *p, reg in) {
    const int64_t d = p->m->cfg.hp.d_model;
    const reg b = model_declare_reg(p->m, "rec_b");
    const reg c = model_declare_reg(p->m, "rec_z");
    const reg x = model_declare_reg(p->m, "rec_x");
    linear(p, SLOT_REC_B, b, in);
    linear(p, SLOT_REC_Z, c, in);
    linear(p, SLOT_REC_X, x, in);
    gate(p, b, x, ACT_NONE, d);
    convolve(p, x, d, false);
    gate(p, c, x, ACT_NONE, d);
    linear(p, SLOT_REC_OUT, REG_O, x);
}

/* Mamba-2. */
static void state_space(builder *p, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t n = hp->rec_inner + 2 * hp->rec_group * hp->rec_state;
    const reg z = model_declare_reg(p->m, "rec_z");
    const reg x = model_declare_reg(p->m, "rec_x");
    const reg dt = model_declare_reg(p->m, "rec_dt");
    const reg y = model_declare_reg(p->m, "rec_y");
    linear(p, SLOT_REC_Z, z, in);
    linear(p, SLOT_REC_X, x, in);
    linear(p, SLOT_REC_DT, dt, in);
    scale_by(p, z, hp->rec_inner, hp->rec_in_scale * hp->rec_z_scale);
    scale_by(p, dt, hp->rec_head, hp->rec_in_scale * hp->rec_dt_scale);
    convolve(p, x, n, true);
    op *o = carry(p, OP_SSD, y, x, n);
    o->in2 = dt;
    o->u.rec.dt_min = (float)hp->rec_dt_min;
    o->u.rec.dt_max = (float)fmin(hp->rec_dt_max, FLT_MAX);
    if (has(p, SLOT_REC_NORM) && hp->rec_norm_first)
        norm(p, SLOT_REC_NORM, y, y, hp->rec_inner, hp->rec_group);
    gate(p, z, y, ACT_SILU, hp->rec_inner);
    if (has(p, SLOT_REC_NORM) && !hp->rec_norm_first)
        norm(p, SLOT_REC_NORM, y, y, hp->rec_inner, hp->rec_group);
    linear(p, SLOT_REC_OUT, REG_O, y);
    scale_by(p, REG_O, hp->d_model, hp->rec_out_scale);
}

/* The gated delta net. The norm is of the output, before the gate. */
static void delta_net(builder *p, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t n = hp->rec_inner + 2 * hp->rec_group * hp->rec_state;
    const reg z = model_declare_reg(p->m, "rec_z");
    const reg x = model_declare_reg(p->m, "rec_x");
    const reg decay = model_declare_reg(p->m, "rec_dt");
    const reg beta = model_declare_reg(p->m, "rec_beta");
    const reg y = model_declare_reg(p->m, "rec_y");
    linear(p, SLOT_REC_X, x, in);
    linear(p, SLOT_REC_Z, z, in);
    linear(p, SLOT_REC_BETA, beta, in);
    linear(p, SLOT_REC_DT, decay, in);
    convolve(p, x, n, true);
    op *o = carry(p, OP_DELTA, y, x, n);
    o->in2 = beta;
    o->in3 = decay;
    o->u.rec.tiled = p->m->gguf_arch != NULL && (p->m->arch->flags & A_TILED_GGUF);
    norm(p, SLOT_REC_NORM, y, y, hp->rec_inner, hp->rec_head);
    gate(p, z, y, ACT_SILU, hp->rec_inner);
    linear(p, SLOT_REC_OUT, REG_O, y);
}

/* Kimi's: the decay of each channel and the gate are of low rank, and the gate is a sigmoid. */
static void kimi_delta(builder *p, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t n = hp->rec_inner + 2 * hp->rec_group * hp->rec_state;
    const reg z = model_declare_reg(p->m, "rec_z");
    const reg x = model_declare_reg(p->m, "rec_x");
    const reg low = model_declare_reg(p->m, "rec_low");
    const reg decay = model_declare_reg(p->m, "rec_dt");
    const reg beta = model_declare_reg(p->m, "rec_beta");
    const reg y = model_declare_reg(p->m, "rec_y");
    linear(p, SLOT_REC_X, x, in);
    linear(p, SLOT_REC_BETA, beta, in);
    linear(p, SLOT_REC_DT_LOW, low, in);
    linear(p, SLOT_REC_DT, decay, low);
    linear(p, SLOT_REC_Z_LOW, low, in);
    linear(p, SLOT_REC_Z, z, low);
    convolve(p, x, n, true);
    op *o = carry(p, OP_DELTA, y, x, n);
    o->in2 = beta;
    o->in3 = decay;
    o->u.rec.by_channel = true;
    norm(p, SLOT_REC_NORM, y, y, hp->rec_inner, hp->rec_head);
    gate(p, z, y, ACT_SIGMOID, hp->rec_inner);
    linear(p, SLOT_REC_OUT, REG_O, y);
}

/* Mamba-1. dt is made of a few columns. */
static void selective_scan(builder *p, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const reg z = model_declare_reg(p->m, "rec_z");
    const reg x = model_declare_reg(p->m, "rec_x");
    const reg low = model_declare_reg(p->m, "rec_low");
    const reg bc = model_declare_reg(p->m, "rec_bc");
    const reg dt = model_declare_reg(p->m, "rec_dt");
    const reg y = model_declare_reg(p->m, "rec_y");
    linear(p, SLOT_REC_X, x, in);
    linear(p, SLOT_REC_Z, z, in);
    convolve(p, x, hp->rec_inner, true);
    linear(p, SLOT_REC_DT_LOW, low, x);
    linear(p, SLOT_REC_BC, bc, x);
    if (has(p, SLOT_REC_DT_NORM))
        norm(p, SLOT_REC_DT_NORM, low, low, hp->rec_dt_rank, 1);
    if (has(p, SLOT_REC_B_NORM))
        norm(p, SLOT_REC_B_NORM, bc, bc, 2 * hp->rec_state, 2);
    linear(p, SLOT_REC_DT, dt, low);
    op *o = carry(p, OP_SCAN, y, x, hp->rec_inner);
    o->in2 = dt;
    o->in3 = bc;
    gate(p, z, y, ACT_SILU, hp->rec_inner);
    linear(p, SLOT_REC_OUT, REG_O, y);
}

/* in -> REG_O */
static void recurrent(builder *p, reg in) {
    switch (p->m->arch->mixer) {
    case MIXER_CONV: short_conv(p, in); break;
    case MIXER_SSD: state_space(p, in); break;
    case MIXER_DELTA: delta_net(p, in); break;
    case MIXER_KDA: kimi_delta(p, in); break;
    case MIXER_SCAN: selective_scan(p, in); break;
    case MIXER_NONE:
    case MIXER_COUNT: break;
    }
}

static void route(builder *p, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const reg logits = model_declare_reg(p->m, "router"), chosen = model_declare_reg(p->m, "chosen");
    linear(p, SLOT_ROUTER, logits, in);
    op *o = put(p, OP_ROUTE, chosen, logits, 2 * hp->n_expert_used, hp->n_expert);
    o->b = p->b->slot[SLOT_CHOICE_BIAS].w;
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
    op *o = put(p, OP_EXPERTS, out, in, last ? n : used * n, last ? used * k : k);
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
static void neurons(builder *p, bool gated, int64_t n) {
    if (gated) {
        gate(p, REG_G, REG_U, p->m->cfg.act, n);
        return;
    }
    op *o = put(p, OP_ACT, REG_U, REG_U, n, n);
    o->u.act.kind = p->m->cfg.act;
    o->cost.macs = (uint64_t)n;
}

/* What the shared expert adds to REG_O. */
static void shared_expert(builder *p, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const reg out = model_declare_reg(p->m, "shared"), by = model_declare_reg(p->m, "shared_gate");
    if (has(p, SLOT_GATE_SHEXP))
        linear(p, SLOT_GATE_SHEXP, REG_G, in);
    linear(p, SLOT_UP_SHEXP, REG_U, in);
    neurons(p, has(p, SLOT_GATE_SHEXP), hp->d_shared);
    linear(p, SLOT_DOWN_SHEXP, out, REG_U);
    if (has(p, SLOT_SHEXP_ROUTER))
        linear(p, SLOT_SHEXP_ROUTER, by, in);
    op *o = put(p, OP_ADD, REG_O, REG_O, hp->d_model, hp->d_model);
    o->in2 = out;
    o->in3 = has(p, SLOT_SHEXP_ROUTER) ? by : REG_NONE;
    o->u.num.value = 1;
    o->cost.act_bytes = (uint64_t)hp->d_model * 12;
    o->cost.macs = (uint64_t)hp->d_model;
}

/* in -> REG_O */
static void mixture(builder *p, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t d = hp->d_model, ff = hp->d_expert;
    route(p, in);
    if (has(p, SLOT_GATE_EXPS))
        experts(p, SLOT_GATE_EXPS, REG_G, in, ff, d, false);
    experts(p, SLOT_UP_EXPS, REG_U, in, ff, d, false);
    neurons(p, has(p, SLOT_GATE_EXPS), hp->n_expert_used * ff);
    experts(p, SLOT_DOWN_EXPS, REG_O, REG_U, d, ff, true);
    if (has(p, SLOT_DOWN_SHEXP))
        shared_expert(p, in);
    if (hp->ffn_scale != 1)
        value_op(p, OP_SCALE, REG_O, d, hp->ffn_scale);
}

/* in -> REG_O */
static void dense(builder *p, int layer, reg in) {
    const config *c = &p->m->cfg;
    int64_t d_ff = c->shape[layer].d_ff;
    if (has(p, SLOT_GATE)) {
        linear(p, SLOT_GATE, REG_G, in);
        linear(p, SLOT_UP, REG_U, in);
        scale_by(p, REG_G, d_ff, c->hp.gate_scale);
        gate(p, REG_G, REG_U, c->act, d_ff);
    } else {
        linear(p, SLOT_UP, REG_U, in);
        op *o = put(p, OP_ACT, REG_U, REG_U, d_ff, d_ff);
        activate(p, o, layer);
        o->cost.macs = (uint64_t)d_ff;
    }
    linear(p, SLOT_DOWN, REG_O, REG_U);
    scale_by(p, REG_O, c->hp.d_model, c->hp.down_scale);
}

/* in -> REG_O */
static void feed_forward(builder *p, int layer, reg in) {
    const config *c = &p->m->cfg;
    if (has(p, SLOT_ROUTER))
        mixture(p, in);
    else
        dense(p, layer, in);
    if (has(p, SLOT_FFN_POST_NORM))
        norm(p, SLOT_FFN_POST_NORM, REG_O, REG_O, c->hp.d_model, 1);
}

/* Adds what the layer's own part of the token's per-layer embedding, and a projection of its embedding, gate
 * (Gemma 3n and 4). Both are looked up again in each layer, so that the stream between layers is all that
 * they hand on. */
static void per_layer_embedding(builder *p, int layer) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t d = hp->d_model, n = hp->d_ple;
    const reg embed = model_declare_reg(p->m, "ple_embed"), own = model_declare_reg(p->m, "ple");
    const reg gated = model_declare_reg(p->m, "ple_gate");
    op *o = put(p, OP_EMBED, embed, REG_NONE, d, 0);
    o->w = p->b->slot[SLOT_EMBED].w;
    o->u.num.value = (float)hp->embed_scale;
    linear(p, SLOT_PLE_IN, own, embed);
    value_op(p, OP_SCALE, own, n, 1 / sqrt((double)d));
    norm(p, SLOT_PLE_IN_NORM, own, own, n, 1);
    o = put(p, OP_EMBED, own, REG_NONE, n, n * hp->n_layer);
    o->w = p->b->slot[SLOT_PLE_TABLE].w;
    o->adds = true;
    o->u.num.value = (float)sqrt((double)n);
    o->u.num.offset = n * layer;
    value_op(p, OP_SCALE, own, n, sqrt(0.5));
    linear(p, SLOT_PLE_GATE, gated, REG_X);
    o = put(p, OP_GATE, gated, gated, n, n);
    o->in2 = own;
    o->u.act.kind = p->m->cfg.act;
    linear(p, SLOT_PLE_OUT, REG_O, gated);
    norm(p, SLOT_PLE_NORM, REG_O, REG_O, d, 1);
    add(p, REG_X);
}

/* Returns the register that a sub-layer reads: its normed copy, or the stream itself if it has no norm before
 * it. */
static reg normed(builder *p, slot_id slot, reg to) {
    if (!has(p, slot))
        return REG_X;
    norm(p, slot, to, REG_X, p->m->cfg.hp.d_model, 1);
    return to;
}

static void layer_program(builder *p, int layer) {
    const hparams *hp = &p->m->cfg.hp;
    if (hp->parallel) {
        /* Both sub-layers read the block's input, so both copies are made before the first addition. */
        reg a = normed(p, SLOT_ATTN_NORM, REG_H);
        reg f = a;
        if (has(p, SLOT_FFN_NORM) && !p->b->slot[SLOT_FFN_NORM].shared)
            f = normed(p, SLOT_FFN_NORM, REG_H2);
        attention(p, layer, a);
        add(p, REG_X);
        feed_forward(p, layer, f);
        add(p, REG_X);
        return;
    }
    if (hp->post_norm) {
        attention(p, layer, REG_X);
        add(p, REG_X);
        normed(p, SLOT_ATTN_NORM, REG_X);
        feed_forward(p, layer, REG_X);
        add(p, REG_X);
        normed(p, SLOT_FFN_NORM, REG_X);
        return;
    }
    const uint8_t kind = p->m->cfg.layer[layer];
    reg a =
        normed(p, SLOT_ATTN_NORM, REG_H); /* a layer of one sub-layer may have no mixer, and no such norm */
    if (kind & LAYER_RECURRENT) {
        recurrent(p, a);
        add(p, a);
    }
    if (!(kind & LAYER_NO_ATTENTION)) {
        attention(p, layer, a);
        add(p, a);
    }
    if (!has(p, SLOT_DOWN) && !has(p, SLOT_DOWN_EXPS))
        return;
    reg f = normed(p, SLOT_FFN_NORM, REG_H);
    feed_forward(p, layer, f);
    add(p, f);
    if (hp->d_ple > 0)
        per_layer_embedding(p, layer);
    if (p->m->cfg.shape[layer].scale != 1)
        value_op(p, OP_SCALE, REG_X, hp->d_model, (double)p->m->cfg.shape[layer].scale);
}

static void embed_program(builder *p) {
    const hparams *hp = &p->m->cfg.hp;
    const weight *w = &p->b->weights[p->b->slot[SLOT_EMBED].w];
    reg to = has(p, SLOT_EMBED_IN) ? REG_E : REG_X;
    op *o = put(p, OP_EMBED, to, REG_NONE, w->k, 0);
    o->w = p->b->slot[SLOT_EMBED].w;
    o->u.num.value = (float)hp->embed_scale;
    if (has(p, SLOT_EMBED_IN))
        linear(p, SLOT_EMBED_IN, REG_X, REG_E);
    if (has(p, SLOT_POS)) {
        o = put(p, OP_EMBED_POS, REG_X, REG_X, hp->d_model, hp->d_model);
        o->w = p->b->slot[SLOT_POS].w;
        o->u.num.offset = hp->pos_offset;
    }
    if (has(p, SLOT_EMBED_NORM))
        norm(p, SLOT_EMBED_NORM, REG_X, REG_X, hp->d_model, 1);
}

static void head_program(builder *p) {
    const hparams *hp = &p->m->cfg.hp;
    reg in = normed(p, SLOT_OUT_NORM, REG_H);
    if (has(p, SLOT_EMBED_OUT)) {
        linear(p, SLOT_EMBED_OUT, REG_E, in);
        in = REG_E;
    }
    linear(p, SLOT_HEAD, REG_LOGITS, in);
    if (hp->logit_scale != 1)
        value_op(p, OP_SCALE, REG_LOGITS, hp->n_vocab, hp->logit_scale);
    if (hp->logit_softcap > 0)
        value_op(p, OP_SOFTCAP, REG_LOGITS, hp->n_vocab, hp->logit_softcap);
}

int build_program(model *m, block_part part, int layer, const bound *b, op *ops) {
    builder p = {m, b, ops, 0};
    if (part == PART_EMBED)
        embed_program(&p);
    else if (part == PART_LAYER)
        layer_program(&p, layer);
    else
        head_program(&p);
    return p.n;
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
        [OP_ROUTE] = "route",
        [OP_EXPERTS] = "experts",
    };
    return kind >= 0 && kind < OP_COUNT ? names[kind] : "?";
}
