/* axes.c - see axes.h. Every axis of every weight begins as a node of its own. The programs are read once,
 * with the node of each register's channels, and each op joins the nodes whose channels it combines
 * (union-find). What remains apart are different axes. */
#include "model/axes.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

typedef struct joining {
    model_axes *a;
    const model *m;
    int b;            /* the block that is read */
    int reg[REG_MAX]; /* the node of each register; registers pass from block to block */
} joining;

enum { NODE_FIXED = 0 /* the node of channels that keep their order; all fixed axes are joined to it */ };

static int root(const model_axes *a, int i) {
    while (a->parent[i] != i)
        i = a->parent[i] = a->parent[a->parent[i]];
    return i;
}

/* Joins two nodes; the smaller number stays, so that NODE_FIXED does. */
static void join(joining *j, int x, int y) {
    const int a = root(j->a, x), b = root(j->a, y);
    j->a->parent[NUM_MAX(a, b)] = NUM_MIN(a, b);
}

static int node(const joining *j, int w, bool row) {
    const axis_pair *of = &j->a->of[j->a->first[j->b] + w];
    return row ? of->row : of->col;
}

static void join_weight(joining *j, int w, bool row, int with) {
    if (w >= 0)
        join(j, node(j, w, row), with);
}

static void fix(joining *j, reg r) {
    if (r != REG_NONE)
        join(j, j->reg[r], NODE_FIXED);
}

static void fix_weight(joining *j, int w) {
    join_weight(j, w, true, NODE_FIXED);
    join_weight(j, w, false, NODE_FIXED);
}

/* An op that depends on the numbers of its channels. */
static void fix_all(joining *j, const op *o) {
    fix(j, o->in);
    fix(j, o->in2);
    fix(j, o->in3);
    fix_weight(j, o->w);
    fix_weight(j, o->b);
    fix_weight(j, o->w2);
    if (o->out != REG_NONE && !op_writes_all(o))
        fix(j, o->out);
    if (o->out != REG_NONE)
        j->reg[o->out] = NODE_FIXED;
}

/* The op's output has the channels of this node: added to what is there, or instead of it. */
static void write(joining *j, const op *o, int channels) {
    if (op_writes_all(o) && !o->adds)
        j->reg[o->out] = channels;
    else
        join(j, j->reg[o->out], channels);
}

static void read_product(joining *j, const op *o) {
    const weight *w = &model_block(j->m, j->b)->weights[o->w];
    if (w->transposed) {
        fix_all(j, o);
        return;
    }
    join_weight(j, o->w, false, j->reg[o->in]);
    join_weight(j, o->b, false, node(j, o->w, true));
    write(j, o, node(j, o->w, true));
}

static void read_op(joining *j, const op *o) {
    switch (o->kind) {
    case OP_EMBED:
        if (o->u.num.offset != 0 || (o->k != 0 && o->k != o->n)) {
            fix_all(j, o);
            return;
        }
        if (o->adds)
            join(j, j->reg[o->out], node(j, o->w, false));
        else
            j->reg[o->out] = node(j, o->w, false);
        join_weight(j, o->w, true, NODE_FIXED); /* tokens */
        return;
    case OP_EMBED_POS:
        join(j, j->reg[o->out], node(j, o->w, false));
        join_weight(j, o->w, true, NODE_FIXED);
        return;
    case OP_NORM:
        if (o->u.norm.n_group != 1) {
            fix_all(j, o);
            return;
        }
        join_weight(j, o->w, false, j->reg[o->in]);
        join_weight(j, o->b, false, j->reg[o->in]);
        j->reg[o->out] = j->reg[o->in];
        return;
    case OP_LINEAR:
    case OP_SHORTLIST:
    case OP_EXPERTS: read_product(j, o); return;
    case OP_GATE:
    case OP_ADD:
        join(j, j->reg[o->in], j->reg[o->in2]);
        fix(j, o->in3);
        j->reg[o->out] = j->reg[o->in];
        return;
    case OP_ACT:
    case OP_SCALE:
    case OP_CLAMP:
    case OP_SOFTCAP:
    case OP_XIELU:
    case OP_SCALE_POS: j->reg[o->out] = j->reg[o->in]; return;
    default: fix_all(j, o); return;
    }
}

/* Gives each axis of each weight a node, and weights that another block owns the nodes of their owners. */
static void make_nodes(model_axes *a, const model *m) {
    a->n_node = NODE_FIXED + 1;
    for (int b = 0; b < model_n_block(m); b++)
        for (int w = 0; w < model_block(m, b)->n_weight; w++) {
            const weight *of = &model_block(m, b)->weights[w];
            a->of[a->first[b] + w] = of->shared_block >= 0
                                         ? a->of[a->first[of->shared_block] + of->shared_index]
                                         : (axis_pair){a->n_node, a->n_node + 1};
            a->n_node += of->shared_block >= 0 ? 0 : 2;
        }
    for (int i = 0; i < a->n_node; i++)
        a->parent[i] = i;
}

static void read_programs(model_axes *a, const model *m) {
    joining j = {.a = a, .m = m};
    for (j.b = 0; j.b < model_n_block(m); j.b++)
        for (int i = 0; i < model_block(m, j.b)->program.n_op; i++)
            read_op(&j, &model_block(m, j.b)->program.ops[i]);
    fix(&j, REG_LOGITS); /* in the order of the tokens */
}

/* Numbers what is left apart. A weight's rows count expert by expert. */
static void number_axes(model_axes *a, const model *m) {
    int *number = a->parent + a->n_node; /* of each root, plus 1 */
    for (int i = 0; i < a->n_node; i++)
        a->parent[i] = root(a, i);
    for (int b = 0; b < model_n_block(m); b++)
        for (int w = 0; w < model_block(m, b)->n_weight; w++) {
            const weight *of = &model_block(m, b)->weights[w];
            axis_pair *pair = &a->of[a->first[b] + w];
            int *ends[] = {&pair->row, &pair->col};
            const int64_t sizes[] = {of->n_expert > 1 ? of->expert_n : of->n, of->k};
            for (int i = 0; i < 2; i++) {
                int *is = &number[a->parent[*ends[i]]];
                if (!*is) {
                    *is = ++a->n;
                    a->size[a->n - 1] = sizes[i];
                    a->fixed[a->n - 1] = a->parent[*ends[i]] == NODE_FIXED;
                }
                a->fixed[*is - 1] = a->fixed[*is - 1] || a->size[*is - 1] != sizes[i];
                *ends[i] = *is - 1;
            }
        }
}

nib_status axes_open(model_axes *a, const model *m, nib_error *err) {
    const size_t n_block = (size_t)model_n_block(m);
    size_t n = 0;
    memset(a, 0, sizeof *a);
    a->first = mem_calloc(n_block + 1, sizeof *a->first);
    for (size_t b = 0; a->first && b < n_block; b++)
        a->first[b + 1] = a->first[b] + model_block(m, (int)b)->n_weight;
    n = a->first ? (size_t)a->first[n_block] : 0;
    a->of = mem_calloc(n + 1, sizeof *a->of);
    a->size = mem_calloc(2 * n + 1, sizeof *a->size);
    a->fixed = mem_calloc(2 * n + 1, sizeof *a->fixed);
    a->parent = mem_calloc(2 * (2 * n + 1), sizeof *a->parent);
    if (!a->first || !a->of || !a->size || !a->fixed || !a->parent) {
        axes_close(a);
        return nib_fail_nomem(err, n * (sizeof *a->of + sizeof *a->parent), "a model's axes");
    }
    make_nodes(a, m);
    read_programs(a, m);
    number_axes(a, m);
    return NIB_OK;
}

void axes_close(model_axes *a) {
    mem_free(a->size);
    mem_free(a->fixed);
    mem_free(a->first);
    mem_free(a->of);
    mem_free(a->parent);
    memset(a, 0, sizeof *a);
}
