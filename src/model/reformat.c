/* reformat.c - see reformat.h. */
#include "model/reformat.h"

#include "model/internal.h"
#include "quant/recipe.h"

#include <string.h>

/* All matrices of a block at most together stay below what block_sum refuses. */
#define SIZE_MOST (UINT64_MAX / 8 / BLOCK_MAX_WEIGHT)

/* The descriptions were copied to the model's own arena, which is not read-only; only what others see of them
 * is. */
static weight *weights_of(const block *b) {
    return (weight *)b->weights;
}

static bool own_matrix(const weight *w) {
    return !w->vector && w->shared_block < 0 && !weight_is_second(w);
}

/* What w becomes, without its place. */
static nib_status choose(const block *b, const weight *w, const char *format, weight *out, nib_error *err) {
    recipe r;
    uint64_t second;
    *out = *w;
    out->columns = NULL;
    if (!recipe_parse(format, w->k, &r) || (r.n_slice == 0 && !pack_choose(w->type, w->k, &r.slice[0])))
        return nib_fail(err, NIB_E_USAGE,
                        "%s: expected \"file\" or a uniform format (as \"u4g64\") for %s [%lld, %lld], found "
                        "\"%.32s\"",
                        b->name, w->name, (long long)w->n, (long long)w->k, format);
    out->format = r.slice[0];
    out->by_column = r.by_column;
    if (!pack_bytes(&out->format, w->n, w->k, &out->bytes) || out->bytes > SIZE_MOST ||
        (r.n_slice > 1 && (!pack_bytes(&r.slice[1], w->n, w->k, &second) || second > SIZE_MOST)))
        return nib_fail(err, NIB_E_USAGE, "%s: %s is too large in the format %.32s", b->name, w->name,
                        format);
    return NIB_OK;
}

/* Every block's: a tied head's ops read what its owner has. */
static void cost_all(model *m) {
    for (int i = 0; i < m->n_block; i++) {
        const block *b = &m->blocks[i];
        cost_program(m, b->weights, (op *)b->program.ops, b->program.n_op);
    }
}

static void tell_sharers(model *m, int owner) {
    for (int i = 0; i < m->n_block; i++)
        for (int j = 0; j < m->blocks[i].n_weight; j++) {
            weight *w = &weights_of(&m->blocks[i])[j];
            if (w->shared_block == owner && !weight_is_second(w))
                w->format = m->blocks[owner].weights[w->shared_index].format;
        }
}

nib_status model_reformat(model *m, int which, const char *format, nib_error *err) {
    block *b = &m->blocks[which];
    weight as;
    for (int i = 0; i < b->n_weight; i++)
        if (own_matrix(&b->weights[i]))
            NIB_TRY(choose(b, &b->weights[i], format, &as, err));
    for (int i = 0; i < b->n_weight; i++)
        if (own_matrix(&b->weights[i])) {
            NIB_TRY(choose(b, &b->weights[i], format, &as, err));
            weights_of(b)[i] = as;
        }
    tell_sharers(m, which);
    recipe r;
    recipe_parse(format, 1, &r);
    stack_set(m, which, r.n_slice > 1 ? &r.slice[1] : NULL);
    cost_all(m);
    return block_sum(b, err);
}

void model_set_flavour(model *m, int which, int at, pack_flavour flavour) {
    weight *w = &weights_of(&m->blocks[which])[at];
    if (!own_matrix(w) || w->format.layout != PACK_TILE)
        return;
    w->format.flavour = (uint8_t)flavour;
    tell_sharers(m, which);
}

nib_status model_leave_out(model *m, int which, nib_error *err) {
    block *b = &m->blocks[which];
    if (b->layer < 0)
        return nib_fail(err, NIB_E_USAGE, "%s: only layers can be left out", b->name);
    b->n_weight = 0;
    b->program.n_op = 0;
    b->bytes = b->file_bytes = 0;
    return NIB_OK;
}

const op *model_head(const model *m, const weight **matrix) {
    const block *b = &m->blocks[m->n_block - 1];
    const op *head = NULL;
    for (int i = 0; i < b->program.n_op; i++) {
        const op *o = &b->program.ops[i];
        if (o->out != REG_LOGITS || (o->kind != OP_LINEAR && o->kind != OP_SHORTLIST))
            continue;
        if (head || b->weights[o->w].format.layout != PACK_TILE)
            return NULL;
        head = o;
    }
    if (!head)
        return NULL;
    *matrix = &b->weights[head->w];
    if ((*matrix)->shared_block >= 0)
        *matrix = &m->blocks[(*matrix)->shared_block].weights[(*matrix)->shared_index];
    return head;
}

void model_set_shortlist(model *m, bool on) {
    const weight *matrix;
    op *head = (op *)model_head(m, &matrix);
    block *b = &m->blocks[m->n_block - 1];
    head->kind = on ? OP_SHORTLIST : OP_LINEAR;
    fuse_again(b);
    cost_program(m, b->weights, (op *)b->program.ops, b->program.n_op);
}

bool model_is_left_out(const model *m, int which) {
    return m->blocks[which].program.n_op == 0;
}

void model_set_columns(model *m, int which, int w, const float *columns) {
    weights_of(&m->blocks[which])[w].columns = columns;
}

/* The blocks of a file keep their type when they are packed, and floats stay PACK_ROWS. */
bool weight_is_rounded(const weight *w) {
    return !w->vector && w->format.layout == PACK_TILE && w->format.type == TYPE_F32;
}
