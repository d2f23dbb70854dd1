/* build_compressed.c - compressed attention (DeepSeek V4): one key/value head whose keys are the values;
 * beside a window, rows see entries of several positions each, all of them or those that an index chooses.
 * The last columns of heads are rotated, and those of the output are rotated back, so that what a row reads
 * depends on distances alone. */
#include "model/builder.h"

#include <math.h>

static void rotate(builder *p, reg r, int64_t n_head, int64_t d_head, int table, bool back) {
    emit_rope(p, r, n_head, d_head, table);
    op *o = &p->ops[p->n - 1];
    o->u.rope.at = d_head - o->u.rope.n_rot;
    o->u.rope.back = back;
}

/* Entries of `width` channels -> out. first: the slots of what makes them; both projections are computed. */
static void pool(builder *p, slot_id first, reg out, reg x, reg gate, int64_t width, int64_t every,
                 int table) {
    const int64_t k = p->b->weights[p->b->slot[first].w].n;
    op *o = emit(p, OP_POOL, out, x, width, k);
    o->in2 = gate;
    o->w = p->b->slot[first + 2].w;
    o->u.rec.n_tap = every;
    o->cost.macs = (uint64_t)k * 2;
    o->cost.act_bytes += (uint64_t)k * 3 * 8; /* the state, read and written */
    emit_norm(p, first + 3, out, out, width, 1);
    rotate(p, out, 1, width, table, false);
}

static void choose(builder *p, int layer, reg chosen, reg queries, reg keys, reg weights) {
    const hparams *hp = &p->m->cfg.hp;
    const int64_t n = hp->index_head, d = hp->index_width;
    op *o = emit(p, OP_SELECT, chosen, queries, 1 + hp->index_used, n * d);
    o->in2 = keys;
    o->in3 = weights;
    o->u.select.layer = layer;
    o->u.select.n_head = n;
    o->u.select.d_head = d;
    o->u.select.n_used = hp->index_used;
    o->u.select.scale = (float)(1 / sqrt((double)d * (double)n));
}

void build_compressed_attention(builder *p, int layer, reg in) {
    const hparams *hp = &p->m->cfg.hp;
    const uint8_t kind = p->m->cfg.layer[layer];
    const bool pooled = kind & LAYER_POOLED, chooses = kind & LAYER_CHOOSES;
    const int64_t n = hp->n_head, d = hp->d_head, every = chooses ? hp->pool_chosen : hp->pool_all;
    const int table = pooled ? 0 : 1, of_entries = chooses ? 2 : 3;
    const reg low_q = model_declare_reg(p->m, "low_q"), low_o = model_declare_reg(p->m, "low_o");
    const reg x = model_declare_reg(p->m, "pool_x"), gate = model_declare_reg(p->m, "pool_gate");
    const reg entry = model_declare_reg(p->m, "entry"), index = model_declare_reg(p->m, "index");
    const reg index_q = model_declare_reg(p->m, "index_q"), index_w = model_declare_reg(p->m, "index_w");
    const reg chosen = model_declare_reg(p->m, "chosen_entries");
    emit_linear(p, SLOT_Q_A, low_q, in);
    emit_linear(p, SLOT_K, REG_K, in);
    emit_norm(p, SLOT_Q_A_NORM, low_q, low_q, hp->q_low_rank, 1);
    emit_linear(p, SLOT_Q_B, REG_Q, low_q);
    emit_plain_norm(p, REG_Q, REG_Q, n * d, n);
    rotate(p, REG_Q, n, d, table, false);
    emit_norm(p, SLOT_K_NORM, REG_K, REG_K, d, 1);
    rotate(p, REG_K, 1, d, table, false);
    if (chooses) {
        emit_linear(p, SLOT_INDEX_X, x, in);
        emit_linear(p, SLOT_INDEX_GATE, gate, in);
        emit_linear(p, SLOT_INDEX_W, index_w, in);
        pool(p, SLOT_INDEX_X, index, x, gate, hp->index_width, every, of_entries);
        emit_linear(p, SLOT_INDEX_Q, index_q, low_q);
        rotate(p, index_q, hp->index_head, hp->index_width, table, false);
        choose(p, layer, chosen, index_q, index, index_w);
    }
    if (pooled) {
        emit_linear(p, SLOT_POOL_X, x, in);
        emit_linear(p, SLOT_POOL_GATE, gate, in);
        pool(p, SLOT_POOL_X, entry, x, gate, d, every, of_entries);
    }
    op *o = emit_attention(p, layer, REG_Q, true);
    o->in3 = pooled ? entry : REG_NONE;
    o->u.attn.shared = true;
    o->cost.act_bytes /= 2;
    o->u.attn.every = pooled ? every : 0;
    o->u.attn.d_index = chooses ? hp->index_width : 0;
    o->u.attn.chosen = chosen;
    o->u.attn.n_chosen = hp->index_used;
    rotate(p, REG_A, n, d, table, true);
    emit_groups(p, OP_GROUPS, SLOT_O_LOW, low_o, REG_A, hp->o_group, hp->o_low_rank, n / hp->o_group * d);
    emit_linear(p, SLOT_O, REG_O, low_o);
}
