/* build.c - one builder for all families (builder.h): turns the configuration and the bound weights into a
 * block's ops. */
#include "model/builder.h"

#include <math.h>

/* Adds the sub-layer's output in REG_O to the residual stream, or to the sub-layer's input (resid_normed). */
static void emit_add(builder *p, reg read) {
    const hparams *hp = &p->m->cfg.hp;
    op *o = emit(p, OP_ADD, REG_X, hp->resid_normed ? read : REG_X, hp->d_model, hp->d_model);
    o->in2 = REG_O;
    o->u.num.value = (float)hp->residual_scale;
    o->cost.act_bytes = (uint64_t)hp->d_model * 12;
    o->cost.macs = (uint64_t)hp->d_model;
}

/* The embedding and its projection are looked up again in each layer, so that the stream between layers is
 * all that they hand on. */
reg build_own_embedding(builder *p, int layer) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t d = hp->d_model, n = hp->d_ple;
    const reg embed = model_declare_reg(p->m, "ple_embed"), own = model_declare_reg(p->m, "ple");
    op *o = emit(p, OP_EMBED, embed, REG_NONE, d, 0);
    o->w = p->b->slot[SLOT_EMBED].w;
    o->u.num.value = (float)hp->embed_scale;
    emit_linear(p, SLOT_PLE_IN, own, embed);
    emit_value(p, OP_SCALE, own, n, 1 / sqrt((double)d));
    emit_norm(p, SLOT_PLE_IN_NORM, own, own, n, 1);
    o = emit(p, OP_EMBED, own, REG_NONE, n, n * hp->n_layer);
    o->w = p->b->slot[SLOT_PLE_TABLE].w;
    o->adds = true;
    o->u.num.value = (float)sqrt((double)n);
    o->u.num.offset = n * layer;
    emit_value(p, OP_SCALE, own, n, sqrt(0.5));
    return own;
}

/* Adds what the layer's own part of the token's per-layer embedding, and a projection of its embedding, gate
 * (Gemma 4). */
static void per_layer_embedding(builder *p, int layer) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t d = hp->d_model, n = hp->d_ple;
    const reg own = build_own_embedding(p, layer), gated = model_declare_reg(p->m, "ple_gate");
    emit_linear(p, SLOT_PLE_GATE, gated, REG_X);
    op *o = emit(p, OP_GATE, gated, gated, n, n);
    o->in2 = own;
    o->u.act.kind = p->m->cfg.act;
    emit_linear(p, SLOT_PLE_OUT, REG_O, gated);
    emit_norm(p, SLOT_PLE_NORM, REG_O, REG_O, d, 1);
    emit_add(p, REG_X);
}

/* Returns the register that a sub-layer reads: its normed copy, or the stream itself if it has no norm before
 * it. */
static reg normed(builder *p, slot_id slot, reg to) {
    if (!builder_has(p, slot))
        return REG_X;
    emit_norm(p, slot, to, REG_X, p->m->cfg.hp.d_model, 1);
    return to;
}

/* Several streams: a sub-layer reads what it mixes of them, and is added to all. */
static void hyper_layer(builder *p, int layer) {
    const uint8_t kind = p->m->cfg.layer[layer];
    reg in = build_streams_read(p, SITE_MIXER);
    if (builder_has(p, SLOT_ATTN_NORM))
        emit_norm(p, SLOT_ATTN_NORM, in, in, p->m->cfg.hp.d_model, 1);
    if (kind & LAYER_RECURRENT)
        build_mixer(p, layer, in);
    else
        build_attention(p, layer, in);
    build_streams_write(p);
    in = build_streams_read(p, SITE_FFN);
    if (builder_has(p, SLOT_FFN_NORM))
        emit_norm(p, SLOT_FFN_NORM, in, in, p->m->cfg.hp.d_model, 1);
    build_feed_forward(p, layer, in);
    build_streams_write(p);
}

static void layer_program(builder *p, int layer) {
    const hparams *hp = &p->m->cfg.hp;
    if (builder_has(p, SLOT_ALTUP_ROUTER)) {
        build_altup_layer(p, layer);
        return;
    }
    if (hp->n_stream > 1) {
        hyper_layer(p, layer);
        return;
    }
    if (hp->parallel) {
        /* Both sub-layers read the block's input, so both copies are made before the first addition. */
        reg a = normed(p, SLOT_ATTN_NORM, REG_H);
        reg f = a;
        if (builder_has(p, SLOT_FFN_NORM) && !p->b->slot[SLOT_FFN_NORM].shared)
            f = normed(p, SLOT_FFN_NORM, REG_H2);
        build_attention(p, layer, a);
        emit_add(p, REG_X);
        build_feed_forward(p, layer, f);
        emit_add(p, REG_X);
        return;
    }
    if (hp->post_norm) {
        build_attention(p, layer, REG_X);
        emit_add(p, REG_X);
        normed(p, SLOT_ATTN_NORM, REG_X);
        build_feed_forward(p, layer, REG_X);
        emit_add(p, REG_X);
        normed(p, SLOT_FFN_NORM, REG_X);
        return;
    }
    const uint8_t kind = p->m->cfg.layer[layer];
    reg a =
        normed(p, SLOT_ATTN_NORM, REG_H); /* a layer of one sub-layer may have no mixer, and no such norm */
    if (kind & LAYER_RECURRENT) {
        build_mixer(p, layer, a);
        emit_add(p, a);
    }
    if (!(kind & LAYER_NO_ATTENTION)) {
        build_attention(p, layer, a);
        emit_add(p, a);
    }
    if (!builder_has(p, SLOT_DOWN) && !builder_has(p, SLOT_DOWN_EXPS))
        return;
    reg f = normed(p, SLOT_FFN_NORM, REG_H);
    build_feed_forward(p, layer, f);
    emit_add(p, f);
    if (hp->d_ple > 0)
        per_layer_embedding(p, layer);
    if (p->m->cfg.shape[layer].scale != 1)
        emit_value(p, OP_SCALE, REG_X, hp->d_model, (double)p->m->cfg.shape[layer].scale);
}

static void embed_program(builder *p) {
    const hparams *hp = &p->m->cfg.hp;
    if (p->m->ahead) {
        build_ahead_in(p);
        return;
    }
    const weight *w = &p->b->weights[p->b->slot[SLOT_EMBED].w];
    reg to = builder_has(p, SLOT_EMBED_IN) || hp->n_stream > 1 ? REG_E : REG_X;
    op *o = emit(p, OP_EMBED, to, REG_NONE, w->k, 0);
    o->w = p->b->slot[SLOT_EMBED].w;
    o->u.num.value = (float)hp->embed_scale;
    if (builder_has(p, SLOT_EMBED_IN))
        emit_linear(p, SLOT_EMBED_IN, REG_X, REG_E);
    else if (builder_has(p, SLOT_ALTUP_PROJ))
        build_altup_embed(p);
    else if (hp->n_stream > 1)
        build_streams_embed(p);
    if (builder_has(p, SLOT_POS)) {
        o = emit(p, OP_EMBED_POS, REG_X, REG_X, hp->d_model, hp->d_model);
        o->w = p->b->slot[SLOT_POS].w;
        o->u.num.offset = hp->pos_offset;
    }
    if (builder_has(p, SLOT_EMBED_NORM))
        emit_norm(p, SLOT_EMBED_NORM, REG_X, REG_X, hp->d_model, 1);
}

static void head_program(builder *p) {
    const hparams *hp = &p->m->cfg.hp;
    reg in = REG_X;
    if (hp->n_stream > 1)
        in = builder_has(p, SLOT_ALTUP_UNEMBED) ? build_altup_head(p) : build_streams_read(p, SITE_HEAD);
    if (builder_has(p, SLOT_OUT_NORM)) {
        emit_norm(p, SLOT_OUT_NORM, REG_H, in, hp->d_model, 1);
        in = REG_H;
    }
    if (builder_has(p, SLOT_EMBED_OUT)) {
        emit_linear(p, SLOT_EMBED_OUT, REG_E, in);
        in = REG_E;
    }
    emit_linear(p, SLOT_HEAD, REG_LOGITS, in);
    if (hp->logit_scale != 1)
        emit_value(p, OP_SCALE, REG_LOGITS, hp->n_vocab, hp->logit_scale);
    if (hp->logit_softcap > 0)
        emit_value(p, OP_SOFTCAP, REG_LOGITS, hp->n_vocab, hp->logit_softcap);
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
