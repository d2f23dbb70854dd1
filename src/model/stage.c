/* stage.c - see stage.h. */
#include "model/stage.h"

#include "base/num.h"
#include "model/internal.h"

void model_place_state(model *m, op *o) {
    if (!op_is_recurrent(o->kind))
        return;
    o->u.rec.at = m->n_state;
    m->n_state += num_round_up(op_state(o), STATE_ALIGN);
}

/* A sequence has the recurrent states of the stage's layers only. A rank without such layers has a small
 * state that no op uses, because all ranks decide alike whether sequences have one. */
static void place_states(model *m) {
    const int64_t whole = m->n_state;
    m->n_state = 0;
    for (int b = 0; b < m->n_block; b++)
        for (int i = 0; i < m->blocks[b].program.n_op && model_in_stage(m, b); i++)
            model_place_state(m, (op *)(uintptr_t)&m->blocks[b].program.ops[i]); /* the model's own */
    m->n_state = NUM_MAX(m->n_state, NUM_MIN(whole, (int64_t)STATE_ALIGN));
}

void model_set_stage(model *m, int first, int end) {
    m->stage_first = first;
    m->stage_end = end;
    place_states(m);
}

bool model_in_stage(const model *m, int which) {
    return m->stage_end == 0 || (which >= m->stage_first && which < m->stage_end);
}

/* Whether an op of a block before this one stores the keys of a layer. */
static bool stored_before(const model *m, int which, int layer) {
    for (int b = 0; b < which; b++)
        for (int i = 0; i < m->blocks[b].program.n_op; i++) {
            const op *o = &m->blocks[b].program.ops[i];
            if (o->kind == OP_ATTENTION && op_stores(o) && o->u.attn.layer == layer)
                return true;
        }
    return false;
}

/* Whether the op reads a register that none of the stage's ops before it has written. */
static bool reads_others(const op *o, const bool *written) {
    const bool chooses = o->kind == OP_ATTENTION && o->u.attn.d_index > 0;
    const bool keeps = o->adds || o->kind == OP_EMBED_POS;
    const reg read[] = {o->in, o->in2, o->in3, chooses ? o->u.attn.chosen : REG_NONE,
                        keeps ? o->out : REG_NONE};
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        if (read[i] > REG_X && !written[read[i]])
            return true;
    return false;
}

bool model_can_cut(const model *m, int which) {
    bool written[REG_MAX] = {false};
    if (which < 1 || which >= m->n_block)
        return which == 0;
    for (int b = which; b < m->n_block; b++)
        for (int i = 0; i < m->blocks[b].program.n_op; i++) {
            const op *o = &m->blocks[b].program.ops[i];
            if (reads_others(o, written) ||
                (o->kind == OP_ATTENTION && !op_stores(o) && stored_before(m, which, o->u.attn.layer)))
                return false;
            if (o->out >= 0)
                written[o->out] = true;
        }
    return true;
}
