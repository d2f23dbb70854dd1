/* axes.c - see axes.h. Every axis of every weight begins as a node of its own. The programs are read once,
 * with the node of each register's channels, and each op joins the nodes whose channels it combines
 * (union-find). What remains apart are different axes. A register that a norm has written is also marked with
 * that norm, until something else is written: only products may read it if the norm's weights are to be moved
 * into their columns. */
#include "model/axes.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

/* One end of a weight, in the tree of those that are joined to it. */
struct axis_node {
    int parent;
    int number;   /* of the root: its axis, plus 1 */
    int64_t head; /* of the root: mixed in heads of this size only; 0: all channels may be mixed */
    axis_bar bar; /* of the root */
};

typedef struct joining {
    model_axes *a;
    const model *m;
    int b;                   /* the block that is read */
    int reg[REG_MAX];        /* the node of each register; registers pass from block to block */
    axis_norm norm[REG_MAX]; /* whose output the register is */
    int *values;             /* the node of each KV layer's values */
} joining;

enum { NODE_FIXED = 0 /* the node of channels that keep their order; all fixed axes are joined to it */ };

static int root(const model_axes *a, int i) {
    struct axis_node *of = a->node;
    while (of[i].parent != i)
        i = of[i].parent = of[of[i].parent].parent;
    return i;
}

/* No orthogonal matrix for the channels of node x: weight w of this block does something else to each. */
static void bar(joining *j, int x, const char *what, int w) {
    axis_bar *of = &j->a->node[root(j->a, x)].bar;
    if (!of->what)
        *of = (axis_bar){what, j->b, w};
}

/* An orthogonal matrix may mix the channels of node x within heads of d channels only. */
static void set_head(joining *j, int x, int64_t d) {
    struct axis_node *of = &j->a->node[root(j->a, x)];
    if (of->head && of->head != d)
        bar(j, x, "heads of two sizes", -1);
    of->head = d;
}

/* Joins two nodes; the smaller number stays, so that NODE_FIXED does. */
static void join(joining *j, int x, int y) {
    const int a = NUM_MIN(root(j->a, x), root(j->a, y)), b = NUM_MAX(root(j->a, x), root(j->a, y));
    struct axis_node *of = j->a->node;
    if (a == b)
        return;
    if (of[b].head)
        set_head(j, a, of[b].head);
    if (!of[a].bar.what)
        of[a].bar = of[b].bar;
    of[b].parent = a;
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

/* An op other than a product reads a norm's output, so the norm's weights cannot be moved. */
static void keep_norm(joining *j, reg r) {
    if (r != REG_NONE && j->norm[r].w >= 0)
        bar(j, j->reg[r], "the weights of a norm have no product to move into", j->norm[r].w);
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
    axis_norm *norm = &j->a->norm[j->a->first[j->b] + o->w];
    if (norm->w >= 0 && (norm->b != j->norm[o->in].b || norm->w != j->norm[o->in].w))
        bar(j, j->reg[o->in], "one matrix reads the outputs of two norms", o->w);
    *norm = j->norm[o->in];
    join_weight(j, o->w, false, j->reg[o->in]);
    join_weight(j, o->b, false, node(j, o->w, true));
    write(j, o, node(j, o->w, true));
}

static void read_norm(joining *j, const op *o) {
    if (o->u.norm.n_group != 1) {
        fix_all(j, o);
        return;
    }
    join_weight(j, o->w, false, j->reg[o->in]);
    join_weight(j, o->b, false, j->reg[o->in]);
    j->reg[o->out] = j->reg[o->in];
    j->norm[o->out] = (axis_norm){j->b, o->w};
    if (o->u.norm.kind == NORM_LAYER)
        bar(j, j->reg[o->in], "a norm subtracts the mean of the row", o->w);
    else if (o->b >= 0)
        bar(j, j->reg[o->in], "a norm has a bias", o->w);
    else if (o->w >= 0) {
        const weight *w = &model_block(j->m, j->b)->weights[o->w];
        if (w->times || w->minus_exp || w->shared_block >= 0)
            bar(j, j->reg[o->in], "the weights of a norm are not a vector of its own", o->w);
    }
}

/* Channel c of a head's output is the sum of channel c of the values, for all heads that share them. */
static void read_attention(joining *j, const op *o) {
    int *values = &j->values[o->u.attn.layer];
    fix(j, o->in);
    fix(j, o->in2);
    fix_weight(j, o->w);
    if (o->in3 != REG_NONE)
        *values = j->reg[o->in3];
    set_head(j, *values, o->u.attn.d_head);
    j->reg[o->out] = *values;
}

static void read_joined(joining *j, const op *o) {
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
    case OP_NORM: read_norm(j, o); return;
    case OP_ATTENTION: read_attention(j, o); return;
    case OP_LINEAR:
    case OP_SHORTLIST:
    case OP_EXPERTS: read_product(j, o); return;
    case OP_GATE:
    case OP_ADD:
        if (o->kind == OP_GATE)
            bar(j, j->reg[o->in], "an activation function", -1);
        join(j, j->reg[o->in], j->reg[o->in2]);
        fix(j, o->in3);
        j->reg[o->out] = j->reg[o->in];
        return;
    case OP_ACT:
    case OP_CLAMP:
    case OP_SOFTCAP:
    case OP_XIELU:
        bar(j, j->reg[o->in], "an activation function", -1);
        j->reg[o->out] = j->reg[o->in];
        return;
    case OP_SCALE:
    case OP_SCALE_POS: j->reg[o->out] = j->reg[o->in]; return;
    default: fix_all(j, o); return;
    }
}

static void read_op(joining *j, const op *o) {
    const bool product = op_is_product(o) || o->kind == OP_SHORTLIST;
    if (!product)
        keep_norm(j, o->in);
    keep_norm(j, o->in2);
    keep_norm(j, o->in3);
    if (o->out != REG_NONE && o->kind != OP_NORM && !op_writes_all(o))
        keep_norm(j, o->out);
    read_joined(j, o);
    if (o->out != REG_NONE && o->kind != OP_NORM)
        j->norm[o->out].w = -1;
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
        a->node[i].parent = i;
    for (int i = 0; i < a->first[model_n_block(m)]; i++)
        a->norm[i].w = -1;
}

static void read_programs(model_axes *a, const model *m, int *values) {
    joining j = {.a = a, .m = m, .values = values};
    for (int i = 0; i < REG_MAX; i++)
        j.norm[i].w = -1;
    for (j.b = 0; j.b < model_n_block(m); j.b++)
        for (int i = 0; i < model_block(m, j.b)->program.n_op; i++)
            read_op(&j, &model_block(m, j.b)->program.ops[i]);
    fix(&j, REG_LOGITS); /* in the order of the tokens */
}

/* The axis of a root, which this weight has `size` channels of. Values are repeated for the heads that share
 * them, so weights of such an axis may have different numbers of whole heads. */
static int number_axis(model_axes *a, int at, int64_t size) {
    struct axis_node *of = &a->node[at];
    const bool begins = !of->number;
    if (begins) {
        of->number = ++a->n;
        a->size[a->n - 1] = size;
        a->fixed[a->n - 1] = at == NODE_FIXED || of->head;
        a->mix[a->n - 1] = at == NODE_FIXED || of->bar.what ? 0 : of->head ? of->head : size;
        a->bar[a->n - 1] = at == NODE_FIXED ? (axis_bar){0} : of->bar;
    }
    const int i = of->number - 1;
    a->fixed[i] = a->fixed[i] || a->size[i] != size;
    if (of->head ? size % of->head != 0 : a->size[i] != size)
        a->mix[i] = 0;
    return i;
}

/* Numbers what is left apart. A weight's rows count expert by expert. */
static void number_axes(model_axes *a, const model *m) {
    for (int b = 0; b < model_n_block(m); b++)
        for (int w = 0; w < model_block(m, b)->n_weight; w++) {
            const weight *of = &model_block(m, b)->weights[w];
            axis_pair *pair = &a->of[a->first[b] + w];
            int *ends[] = {&pair->row, &pair->col};
            const int64_t sizes[] = {of->n_expert > 1 ? of->expert_n : of->n, of->k};
            for (int i = 0; i < 2; i++)
                *ends[i] = number_axis(a, root(a, *ends[i]), sizes[i]);
        }
}

nib_status axes_open(model_axes *a, const model *m, nib_error *err) {
    const size_t n_block = (size_t)model_n_block(m);
    size_t n = 0, n_attention = 0;
    memset(a, 0, sizeof *a);
    a->first = mem_calloc(n_block + 1, sizeof *a->first);
    for (size_t b = 0; a->first && b < n_block; b++) {
        a->first[b + 1] = a->first[b] + model_block(m, (int)b)->n_weight;
        for (int i = 0; i < model_block(m, (int)b)->program.n_op; i++)
            if (model_block(m, (int)b)->program.ops[i].kind == OP_ATTENTION)
                n_attention =
                    NUM_MAX(n_attention, (size_t)model_block(m, (int)b)->program.ops[i].u.attn.layer + 1);
    }
    n = a->first ? (size_t)a->first[n_block] : 0;
    int *values = mem_calloc(n_attention + 1, sizeof *values);
    a->of = mem_calloc(n + 1, sizeof *a->of);
    a->norm = mem_calloc(n + 1, sizeof *a->norm);
    a->size = mem_calloc(2 * n + 1, sizeof *a->size);
    a->fixed = mem_calloc(2 * n + 1, sizeof *a->fixed);
    a->mix = mem_calloc(2 * n + 1, sizeof *a->mix);
    a->bar = mem_calloc(2 * n + 1, sizeof *a->bar);
    a->node = mem_calloc(2 * n + 1, sizeof *a->node);
    const bool ok =
        a->first && values && a->of && a->norm && a->size && a->fixed && a->mix && a->bar && a->node;
    if (ok) {
        make_nodes(a, m);
        read_programs(a, m, values);
        number_axes(a, m);
    }
    mem_free(values);
    if (ok)
        return NIB_OK;
    axes_close(a);
    return nib_fail_nomem(err, n * (sizeof *a->of + 2 * sizeof *a->node), "a model's axes");
}

void axes_close(model_axes *a) {
    mem_free(a->size);
    mem_free(a->fixed);
    mem_free(a->mix);
    mem_free(a->bar);
    mem_free(a->norm);
    mem_free(a->first);
    mem_free(a->of);
    mem_free(a->node);
    memset(a, 0, sizeof *a);
}
