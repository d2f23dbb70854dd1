/* build_attention.c - attention, with keys and values of its own, of another layer or of low rank. */
#include "base/num.h"
#include "model/builder.h"

op *emit_attention(builder *p, int layer, reg queries, bool slides) {
    const config *c = &p->m->cfg;
    const hparams *hp = &c->hp;
    const layer_shape *shape = &c->shape[layer];
    const bool stores = shape->kv_layer == layer;
    int64_t q = shape->n_head * shape->d_head, kv = shape->n_kv_head * shape->d_head;
    op *o = emit(p, OP_ATTENTION, REG_A, queries, q, q);
    o->in2 = stores ? REG_K : REG_NONE;
    o->in3 = stores ? REG_V : REG_NONE;
    o->w = p->b->slot[SLOT_SINKS].w;
    o->u.attn.layer = (int)shape->kv_layer;
    o->u.attn.n_head = shape->n_head;
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
    return o;
}

static void scale_queries(builder *p, int64_t width) {
    const hparams *hp = &p->m->cfg.hp;
    if (hp->pos_scale == 0)
        return;
    emit_value(p, OP_SCALE_POS, REG_Q, width, hp->pos_scale);
    p->ops[p->n - 1].u.num.every = hp->pos_scale_every;
    p->ops[p->n - 1].u.num.offset = (p->m->arch->flags & A_NOPE_BARE) != 0;
}

static void norm_heads(builder *p, const layer_shape *shape) {
    const int64_t n_head = shape->n_head, n_kv = shape->n_kv_head, d = shape->d_head;
    if (builder_has(p, SLOT_Q_NORM))
        emit_norm(p, SLOT_Q_NORM, REG_Q, REG_Q, n_head * d, n_head);
    if (builder_has(p, SLOT_K_NORM))
        emit_norm(p, SLOT_K_NORM, REG_K, REG_K, n_kv * d, n_kv);
    if (builder_has(p, SLOT_V_NORM))
        emit_norm(p, SLOT_V_NORM, REG_V, REG_V, n_kv * d, n_kv);
}

/* The gate in REG_G is of each column of the output, or of each head. */
static void gate_output(builder *p, int64_t q) {
    const int64_t n = p->b->weights[p->b->slot[SLOT_ATTN_GATE].w].n;
    const bool softplus = p->m->arch->flags & A_GATE_SOFTPLUS;
    if (n == q && !softplus) {
        emit_gate(p, REG_G, REG_A, ACT_SIGMOID, q);
        return;
    }
    op *o = emit(p, softplus ? OP_SOFTPLUS : OP_ACT, REG_G, REG_G, n, n);
    if (!softplus)
        o->u.act.kind = ACT_SIGMOID;
    o = emit(p, OP_SHARE, REG_A, REG_G, q, n);
    o->in2 = REG_A;
}

/* Multi-head latent attention (DeepSeek V2, arXiv 2405.04434): keys and values come from one row of low rank,
 * and each key has a rotated part that all heads share. Heads of q begin with the rotated part.
 *
 * The cache has that row and that part, as the key and value of one head. Queries are multiplied by the
 * matrices of the keys, and the sums of rows by those of the values (section 2.1.2): absorbed products. */

/* in -> REG_Q [n_head * d_head], low_kv and k_turned, rotated */
static void project_latent(builder *p, int layer, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const reg low_q = model_declare_reg(p->m, "low_q"), low_kv = model_declare_reg(p->m, "low_kv");
    const reg k_turned = model_declare_reg(p->m, "k_turned");
    if (builder_has(p, SLOT_Q_A))
        emit_linear(p, SLOT_Q_A, low_q, in);
    else
        emit_linear(p, SLOT_Q, REG_Q, in);
    emit_linear(p, SLOT_LOW_KV, low_kv, in);
    emit_linear(p, SLOT_K_TURNED, k_turned, in);
    if (builder_has(p, SLOT_Q_A)) {
        emit_norm(p, SLOT_Q_A_NORM, low_q, low_q, hp->q_low_rank, 1);
        emit_linear(p, SLOT_Q_B, REG_Q, low_q);
    }
    emit_norm(p, SLOT_KV_A_NORM, low_kv, low_kv, hp->kv_low_rank, 1);
    if (p->m->cfg.layer[layer] & LAYER_NO_ROPE)
        return;
    emit_rope(p, REG_Q, p->m->cfg.shape[layer].n_head, hp->d_head, 0);
    emit_rope(p, k_turned, 1, hp->n_rot, 0);
}

void emit_groups(builder *p, op_kind kind, slot_id slot, reg out, reg in, int64_t n_group, int64_t n,
                 int64_t k) {
    op *o = emit(p, kind, out, in, n_group * n, n_group * k);
    o->w = p->b->slot[slot].w;
    o->u.experts.n_expert = o->u.experts.n_used = n_group;
    o->u.experts.n = n;
    o->u.experts.k = k;
    o->u.experts.each = true;
    o->cost.macs = (uint64_t)(n_group * n) * (uint64_t)k;
}

/* in -> REG_O */
static void latent_attention(builder *p, int layer, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const layer_shape *shape = &p->m->cfg.shape[layer];
    const int64_t n = shape->n_head, d = hp->d_head, turned = hp->n_rot, plain = d - turned, v = hp->d_value;
    const int64_t low = hp->kv_low_rank, wide = shape->d_head;
    const reg queries = model_declare_reg(p->m, "wide_q"), q_plain = model_declare_reg(p->m, "q_plain");
    const reg q_low = model_declare_reg(p->m, "q_low"), sums = model_declare_reg(p->m, "low_sums");
    project_latent(p, layer, in);
    scale_queries(p, n * d);
    emit_copy(p, REG_K, model_declare_reg(p->m, "k_turned"), 1, turned, turned, 0, wide, 0);
    emit_copy(p, REG_K, model_declare_reg(p->m, "low_kv"), 1, low, low, turned, wide, 0);
    emit_copy(p, queries, REG_Q, n, turned, d, 0, wide, 0);
    emit_copy(p, q_plain, REG_Q, n, plain, d, 0, plain, 0);
    p->ops[p->n - 1].u.copy.at_in = turned;
    emit_groups(p, OP_SPREAD, SLOT_K, q_low, q_plain, n, low, plain);
    emit_copy(p, queries, q_low, n, low, low, turned, wide, 0);
    op *o = emit_attention(p, layer, queries, p->m->cfg.layer[layer] & LAYER_SLIDES);
    o->in3 = REG_NONE;
    o->u.attn.shared = true;
    o->cost.act_bytes /= 2;
    emit_copy(p, sums, REG_A, n, low, wide, 0, low, 0);
    p->ops[p->n - 1].u.copy.at_in = turned;
    emit_groups(p, OP_GROUPS, SLOT_V, REG_V, sums, n, v, low);
    emit_linear(p, SLOT_O, REG_O, REG_V);
    emit_reduce(p, hp->d_model);
    if (builder_has(p, SLOT_ATTN_POST_NORM))
        emit_norm(p, SLOT_ATTN_POST_NORM, REG_O, REG_O, hp->d_model, 1);
}

void build_attention(builder *p, int layer, reg in) {
    const config *c = &p->m->cfg;
    const hparams *hp = &c->hp;
    const layer_shape *shape = &c->shape[layer];
    const bool stores = shape->kv_layer == layer;
    int64_t q = shape->n_head * shape->d_head, kv = shape->n_kv_head * shape->d_head;
    bool slides = c->layer[layer] & LAYER_SLIDES;
    if (builder_has(p, SLOT_LOW_KV)) {
        latent_attention(p, layer, in);
        return;
    }
    if (builder_has(p, SLOT_O_LOW)) {
        build_compressed_attention(p, layer, in);
        return;
    }
    const int64_t d = shape->d_head, v = hp->d_value; /* values narrower than keys are padded for attention */
    const bool pads = hp->kv_low_rank == 0 && v < d && hp->d_head == d;
    const reg narrow = pads ? model_declare_reg(p->m, "narrow_v") : REG_V;
    emit_linear(p, SLOT_Q, REG_Q, in);
    if (builder_has(p, SLOT_ATTN_GATE))
        emit_linear(p, SLOT_ATTN_GATE, REG_G, in);
    if (stores) {
        emit_linear(p, SLOT_K, REG_K, in);
        if (builder_has(p, SLOT_V))
            emit_linear(p, SLOT_V, narrow, in);
        else /* values are the keys, before these are normed and rotated */
            emit_copy(p, REG_V, REG_K, 1, kv, kv, 0, kv, 0);
    }
    emit_scale(p, REG_Q, q, hp->attn_in_scale);
    emit_scale(p, REG_K, kv, hp->attn_in_scale * hp->key_scale);
    emit_scale(p, REG_V, kv, hp->attn_in_scale);
    const bool norm_last = p->m->arch->flags & A_NORM_AFTER_ROPE;
    if (!norm_last)
        norm_heads(p, shape);
    if (hp->qkv_clip > 0) {
        emit_value(p, OP_CLAMP, REG_Q, q, hp->qkv_clip);
        emit_value(p, OP_CLAMP, REG_K, kv, hp->qkv_clip);
        emit_value(p, OP_CLAMP, REG_V, kv, hp->qkv_clip);
    }
    if (!(c->layer[layer] & LAYER_NO_ROPE)) {
        int table = slides && c->n_rope > 1;
        emit_rope(p, REG_Q, shape->n_head, shape->d_head, table);
        if (stores)
            emit_rope(p, REG_K, shape->n_kv_head, shape->d_head, table);
    }
    const bool bare = p->m->arch->flags & A_NOPE_BARE, turns = !(c->layer[layer] & LAYER_NO_ROPE);
    if (norm_last && (turns || !bare))
        norm_heads(p, shape);
    if (!turns || !bare)
        scale_queries(p, shape->n_head * hp->d_head);
    if (pads && stores)
        emit_copy(p, REG_V, narrow, shape->n_kv_head, v, v, 0, d, d - v);
    emit_attention(p, layer, REG_Q, slides);
    if (builder_has(p, SLOT_ATTN_GATE))
        gate_output(p, q);
    if (pads)
        emit_copy(p, narrow, REG_A, shape->n_head, v, d, 0, v, 0);
    emit_linear(p, SLOT_O, REG_O, pads ? narrow : REG_A);
    emit_reduce(p, hp->d_model);
    emit_scale(p, REG_O, hp->d_model, hp->attn_out_scale);
    if (builder_has(p, SLOT_ATTN_POST_NORM))
        emit_norm(p, SLOT_ATTN_POST_NORM, REG_O, REG_O, hp->d_model, 1);
}
