/* builder.h - builds a block's program. The builder does not depend on the family: an op exists because its
 * weight exists (a bias, a q/k norm, a norm after a sub-layer), or because a number is set (a clip, a soft
 * cap, a scale). Internal to model/. */
#ifndef NIB_MODEL_BUILDER_H
#define NIB_MODEL_BUILDER_H

#include "model/internal.h"

typedef struct builder {
    model *m;
    const bound *b;
    op *ops;
    int n;
} builder;

static inline bool builder_has(const builder *p, slot_id slot) {
    return p->b->slot[slot].there;
}

/* ---- emit.c: appends one op ---- */

/* An op without weights, zeroed: out [n], in [k]. The caller fills the rest. */
op *emit(builder *p, op_kind kind, reg out, reg in, int64_t n, int64_t k);
void emit_norm(builder *p, slot_id slot, reg out, reg in, int64_t width, int64_t n_group);
void emit_plain_norm(builder *p, reg out, reg in, int64_t width, int64_t n_group); /* without weights */
void emit_linear(builder *p, slot_id slot, reg out, reg in);
/* An op with one number, in place. */
void emit_value(builder *p, op_kind kind, reg r, int64_t width, double value);
void emit_scale(builder *p, reg r, int64_t width, double value); /* none, if value is 1 */
void emit_sum(builder *p, reg to, reg more, int64_t width);      /* to += more */
/* r = act(z) * r */
void emit_gate(builder *p, reg z, reg r, act_kind act, int64_t n);
void emit_reduce(builder *p, int64_t width); /* of REG_O; none, if the model is whole */
void emit_rope(builder *p, reg r, int64_t n_head, int64_t d_head, int table);
/* Copies n_group groups of n columns, `step_in` apart, to places `step` apart from `at` on. */
void emit_copy(builder *p, reg out, reg in, int64_t n_group, int64_t n, int64_t step_in, int64_t at,
               int64_t step, int64_t n_zero);

/* The layer's attention of these queries to REG_K and REG_V -> REG_A (build_attention.c). */
op *emit_attention(builder *p, int layer, reg queries, bool slides);

/* OP_GROUPS or OP_SPREAD with the slot's matrix (build_attention.c). */
void emit_groups(builder *p, op_kind kind, slot_id slot, reg out, reg in, int64_t n_group, int64_t n,
                 int64_t k);

/* ---- the sub-layers: in -> REG_O ---- */
void build_attention(builder *p, int layer, reg in); /* build_attention.c */
/* build_compressed.c */
void build_compressed_attention(builder *p, int layer, reg in);
void build_mixer(builder *p, int layer, reg in);        /* build_mixer.c */
void build_feed_forward(builder *p, int layer, reg in); /* build_ffn.c */

void build_ahead_in(builder *p); /* ahead.c */

/* ---- build_streams.c: a residual of several streams ---- */
/* A layer between AltUp's prediction and correction (arXiv 2301.13310; Gemma 3n). */
void build_altup_layer(builder *p, int layer);
void build_altup_embed(builder *p); /* REG_E -> all streams */
reg build_altup_head(builder *p);   /* the streams' mean; returns its register */
/* Hyper-connections: what sub-layer `site` reads, then what it adds to the streams. */
typedef enum stream_site { SITE_MIXER, SITE_FFN, SITE_HEAD } stream_site;
reg build_streams_read(builder *p, stream_site site);
void build_streams_write(builder *p);
void build_streams_embed(builder *p); /* REG_E -> all streams */

/* ---- build.c ---- */
/* The layer's own part of the per-layer embedding of the row's token; returns its register. */
reg build_own_embedding(builder *p, int layer);

#endif
