/* steps.c - turns a block's program into steps: decides which ops share a launch, and refuses ops that have
 * no kernel. */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"

#include <stdio.h>

typedef struct builder {
    const block *of;
    const op *ops;
    int n_op;
    int n_norm; /* number of following products that read `norm`, which they compute */
    const op *norm;
    bool any_format; /* formats of weights are not known yet */
    bool coded;      /* keys and values are codes */
    bool mixed;      /* activations have 4 and 8 bits by block of channels */
    nib_error *err;
} builder;

static bool reads(const op *o, reg r) {
    return o->in == r || o->in2 == r || o->in3 == r;
}

/* Whether an op from i on reads the value that r has before op i. */
static bool is_read_later(const builder *b, int i, reg r) {
    for (; i < b->n_op; i++) {
        if (reads(&b->ops[i], r))
            return true;
        if (b->ops[i].out == r)
            return !op_writes_all(&b->ops[i]);
    }
    return r == REG_X || r == REG_LOGITS;
}

static nib_status refuse(const builder *b, const op *o, const char *why) {
    const char *name = o->w >= 0 ? b->of->weights[o->w].name : "";
    return nib_fail(b->err, NIB_E_DEVICE, "%s: the cuda back end does not support %s%s%s: %s", b->of->name,
                    op_name(o->kind), name[0] ? " " : "", name, why);
}

/* ---- products ---- */

static nib_status check_format(const builder *b, const op *o) {
    const weight *w = &b->of->weights[o->w];
    const pack_format *f = &w->format;
    char name[PACK_NAME], why[96 + PACK_NAME];
    const bool halves = f->group == 16;
    if (f->layout == PACK_ROWS || b->any_format)
        return NIB_OK;
    if (b->mixed && (!cuda_mixes(f) || o->kind != OP_LINEAR))
        return refuse(b, o,
                      "its kernels have activations ax for 4 bits without minima in groups of 32 (q4_0), 64 "
                      "or 128");
    if (f->packing == PACK_PARTS && f->scale != PACK_SCALE_ZERO && f->bits >= 2 && f->bits <= 8 &&
        w->k <= MAX_PACK_ROW && (!halves || f->bits == 2 || f->bits == 3 || f->bits == 6))
        return NIB_OK;
    pack_name(f, name);
    snprintf(why, sizeof why, "its kernels have no %s", name);
    return refuse(b, o, why);
}

static bool is_same_format(const pack_format *a, const pack_format *b) {
    return a->layout == b->layout && a->packing == b->packing && a->bits == b->bits && a->asym == b->asym &&
           a->scale == b->scale && a->group == b->group && a->table == b->table && a->type == b->type &&
           a->sparse == b->sparse;
}

/* Whether the norm, op i, can be part of the products after it. */
static bool fuses_norm(const builder *b, int i) {
    const op *o = &b->ops[i];
    if (o->fuse.n_codes < 1 || o->u.norm.kind != NORM_RMS || o->u.norm.n_group != 1 || o->w < 0 || o->b >= 0)
        return false;
    for (int p = i + 1; p <= i + o->fuse.n_codes; p++)
        if (b->ops[p].out == o->in)
            return false;
    return true;
}

/* Whether ops i and i + 1 are norms of different rows in groups of the same width, such as those of queries
 * and keys. */
static bool norms_together(const builder *b, int i) {
    const op *o = &b->ops[i];
    return i + 1 < b->n_op && o[1].kind == OP_NORM && !fuses_norm(b, i + 1) && o[1].in != o->out &&
           o[1].out != o->out && o[1].out != o->in && o[1].u.norm.kind == o->u.norm.kind &&
           o[1].k / o[1].u.norm.n_group == o->k / o->u.norm.n_group &&
           o[1].u.norm.w_full == o->u.norm.w_full && o[1].u.norm.eps == o->u.norm.eps;
}

/* The number of products from op i on that one launch can compute. */
static int count_together(const builder *b, int i) {
    const op *o = &b->ops[i];
    const weight *w = b->of->weights;
    int n = 1;
    while (n < 3 && i + n < b->n_op && o[n].kind == OP_LINEAR && o[n].in == o->in && !o[n].adds && !o->adds &&
           (!b->norm || n < b->n_norm) && o[n].out != o->out && (n < 2 || o[n].out != o[1].out) &&
           o[n].out != o->in && is_same_format(&w[o[n].w].format, &w[o->w].format))
        n++;
    return n;
}

static bool is_gate(const builder *b, int i) {
    const op *o = &b->ops[i], *gate = o + 2;
    return i + 2 < b->n_op && gate->kind == OP_GATE && gate->in == o[0].out && gate->in2 == o[1].out &&
           (o->kind == OP_EXPERTS || gate->u.act.kind != ACT_SWIGLU_CLAMPED) && gate->out != o->in &&
           o[0].n == o[1].n && gate->n == o->n &&
           (gate->out == gate->in || !is_read_later(b, i + 3, gate->in)) &&
           (gate->out == gate->in2 || !is_read_later(b, i + 3, gate->in2));
}

/* Whether op i is a product, or a sum over ranks, whose output is then added to a register. */
static bool is_residual(const builder *b, int i) {
    const op *o = &b->ops[i], *add = o + 1;
    return i + 1 < b->n_op && add->kind == OP_ADD && add->in == add->out && add->in2 == o->out &&
           add->in3 == REG_NONE && add->in != o->out && add->u.num.value == 1 && add->out != o->in &&
           (!b->norm || add->out != b->norm->in) && add->n == o->n && !o->adds &&
           !is_read_later(b, i + 2, o->out);
}

/* Whether op i is a product and the next op its activation. */
static bool is_activated(const builder *b, int i) {
    const op *o = &b->ops[i], *act = o + 1;
    return i + 1 < b->n_op && act->kind == OP_ACT && act->in == o->out && act->out != o->in &&
           (!b->norm || act->out != b->norm->in) && act->n == o->n && !o->adds &&
           (act->out == o->out || !is_read_later(b, i + 2, o->out));
}

static nib_status take_products(builder *b, int i, step *s) {
    s->kind = STEP_LINEAR;
    s->norm = b->n_norm > 0 ? b->norm : NULL;
    int n = count_together(b, i);
    for (int p = 0; p < n; p++)
        NIB_TRY(check_format(b, &b->ops[i + p]));
    const bool gated = n == 2 && is_gate(b, i);
    if (gated || (n == 1 && (is_residual(b, i) || is_activated(b, i))))
        s->tail = &b->ops[i + n];
    s->n_w = n;
    s->n = n + (s->tail != NULL);
    s->in = s->norm ? s->norm->in : b->ops[i].in;
    s->out = s->tail ? s->tail->out : n == 1 ? b->ops[i].out : REG_NONE;
    s->routes = i + n < b->n_op && b->ops[i + n].kind == OP_ROUTE;
    b->n_norm = NUM_MAX(b->n_norm - n, 0);
    if (b->n_norm == 0)
        b->norm = NULL;
    return NIB_OK;
}

/* ---- experts ---- */

/* Whether ops i and i + 1 are products of one input with the matrices of the same experts. */
static bool are_experts_together(const builder *b, int i) {
    const op *o = &b->ops[i];
    const weight *w = b->of->weights;
    return i + 1 < b->n_op && o[1].kind == OP_EXPERTS && o[1].in == o->in && o[1].in2 == o->in2 && !o->adds &&
           !o[1].adds && !o->u.experts.sum && !o[1].u.experts.sum && o[1].out != o->out && o->out != o->in &&
           o[1].n == o->n && o[1].u.experts.weighted == o->u.experts.weighted &&
           is_same_format(&w[o[1].w].format, &w[o->w].format);
}

/* Whether ops i and i + 1 are a product of one column with floats, and a sum that its sigmoid weighs. All
 * blocks of its launch read the product's whole input, four values at a time, so no output may be there. */
static bool is_weighed(const builder *b, int i) {
    const op *o = &b->ops[i], *add = o + 1;
    if (i + 1 >= b->n_op || o->kind != OP_LINEAR || o->n != 1 || o->k % 4 || o->adds || o->b >= 0 ||
        b->norm || b->any_format || add->kind != OP_ADD || add->in3 != o->out || add->out == o->in ||
        is_read_later(b, i + 2, o->out))
        return false;
    const pack_format *f = &b->of->weights[o->w].format;
    return f->layout == PACK_ROWS && (f->type == TYPE_F32 || f->type == TYPE_F16 || f->type == TYPE_BF16);
}

/* The product, the sum, and what the sum is added to. */
static nib_status take_weighed(const builder *b, int i, step *s) {
    s->kind = STEP_ADD;
    s->n = 2;
    if (!is_residual(b, i + 1) || b->ops[i + 2].out == b->ops[i].in)
        return NIB_OK;
    s->tail = &b->ops[i + 2];
    s->n = 3;
    s->out = s->tail->out;
    return NIB_OK;
}

static nib_status take_experts(const builder *b, int i, step *s) {
    const op *o = &b->ops[i];
    const pack_format *f = &b->of->weights[o->w].format;
    s->kind = STEP_EXPERTS;
    NIB_TRY(check_format(b, o));
    if (!b->any_format && f->layout == PACK_TILE && f->sparse)
        return refuse(b, o, "experts with outliers");
    if (o->b >= 0 && o->u.experts.weighted && !o->u.experts.sum)
        return refuse(b, o, "biases that are weighted");
    if (o->u.experts.k % 4)
        return refuse(b, o, "expected inputs in a multiple of 4");
    s->n_w = are_experts_together(b, i) ? 2 : 1;
    if ((s->n_w == 2 && is_gate(b, i)) || (s->n_w == 1 && o->u.experts.sum && is_residual(b, i)))
        s->tail = &b->ops[i + s->n_w];
    s->n = s->n_w + (s->tail != NULL);
    s->out = s->tail ? s->tail->out : o->out;
    return NIB_OK;
}

static bool is_groups(const builder *b, int i) {
    return i < b->n_op && (b->ops[i].kind == OP_GROUPS || b->ops[i].kind == OP_SPREAD);
}

/* Whether op i copies columns to successive parts of a register that only the product after it reads. */
static bool gathers(const builder *b, int i) {
    const op *copy = &b->ops[i], *o = copy + 1;
    return copy->kind == OP_COPY && is_groups(b, i + 1) && o->in == copy->out && o->out != copy->in &&
           copy->u.copy.n_group == o->u.experts.n_expert && copy->u.copy.n == o->u.experts.k &&
           copy->u.copy.at == 0 && copy->u.copy.step == o->u.experts.k && copy->u.copy.n_zero == 0 &&
           !is_read_later(b, i + 2, copy->out);
}

/* Whether op i + 1 copies the outputs of op i, which no other op reads. */
static bool scatters(const builder *b, int i, reg in) {
    const op *o = &b->ops[i], *copy = o + 1;
    return i + 1 < b->n_op && copy->kind == OP_COPY && copy->in == o->out && copy->out != in && !o->adds &&
           copy->u.copy.n_group == o->u.experts.n_expert && copy->u.copy.n == o->u.experts.n &&
           copy->u.copy.at_in == 0 && copy->u.copy.step_in == o->u.experts.n && copy->u.copy.n_zero == 0 &&
           !is_read_later(b, i + 2, o->out);
}

static nib_status take_groups(const builder *b, int i, step *s) {
    const op *o = &b->ops[i];
    s->kind = STEP_GROUPS;
    s->gather = o->kind == OP_COPY ? o++ : NULL;
    s->n = s->gather ? 2 : 1;
    s->scatter = scatters(b, i + s->n - 1, s->gather ? s->gather->in : o->in) ? o + 1 : NULL;
    s->n += s->scatter != NULL;
    NIB_TRY(check_format(b, o));
    return b->any_format || !b->of->weights[o->w].format.sparse ? NIB_OK
                                                                : refuse(b, o, "matrices with outliers");
}

/* Whether ops i and i + 1 are a router's product with floats, and its choice. */
static bool is_router(const builder *b, int i) {
    const op *o = &b->ops[i];
    return i + 1 < b->n_op && o->kind == OP_LINEAR && o[1].kind == OP_ROUTE && o[1].in == o->out &&
           !o->adds && !b->norm && !b->any_format && b->of->weights[o->w].format.layout == PACK_ROWS;
}

/* Whether the norm, op i, can be part of the router's launch after it. */
static bool norms_router(const builder *b, int i) {
    const op *o = &b->ops[i];
    return o->u.norm.kind == NORM_RMS && o->u.norm.n_group == 1 && o->w >= 0 && o->b < 0 && o->out != o->in &&
           i + 1 < b->n_op && o[1].in == o->out && is_router(b, i + 1);
}

static nib_status take_router(const builder *b, int i, step *s) {
    s->kind = STEP_ROUTE;
    s->norm = b->ops[i].kind == OP_NORM ? &b->ops[i] : NULL;
    s->n = s->norm ? 3 : 2;
    return NIB_OK;
}

/* Connects a router with the products of experts after it, if these can read codes of its input. */
static void join_router(const block *of, step *s, const step *next) {
    const op *router = &of->program.ops[s->first + s->n - 2], *then = &of->program.ops[next->first];
    if (s->kind != STEP_ROUTE || s->n < 2 || next->kind != STEP_EXPERTS || then->u.experts.each ||
        then->in != router->in)
        return;
    const weight *w = &of->weights[then->w];
    const view v = {.n = w->n, .k = w->k, .format = w->format};
    s->rows_for = cuda_experts_leave(&v, false) ? next : NULL;
}

/* Connects products of experts with the next ones, if these can read codes that the first leave. */
static void join_experts(const block *of, steps *all) {
    for (int i = 0; i + 1 < all->n; i++) {
        step *s = &all->list[i];
        const step *next = s + 1;
        join_router(of, s, next);
        const op *o = &of->program.ops[s->first], *then = &of->program.ops[next->first];
        const bool gated = s->tail && s->tail->kind == OP_GATE;
        if (s->kind != STEP_EXPERTS || next->kind != STEP_EXPERTS || next->n_w != 1 ||
            !then->u.experts.each || then->in != (gated ? s->tail->out : o->out) || (s->n_w == 2 && !gated) ||
            of->weights[o->w].format.layout != PACK_TILE || then->u.experts.k != o->u.experts.n || o->adds ||
            o->u.experts.sum)
            continue;
        const weight *w = &of->weights[then->w];
        const view v = {.n = w->n, .k = w->k, .format = w->format};
        s->rows_for = cuda_experts_leave(&v, false) ? next : NULL;
    }
}

/* ---- attention ---- */

static bool is_rope_of(const op *o, reg r, int64_t n_head, const op *like) {
    return o->kind == OP_ROPE && o->in == r && o->out == r && o->u.rope.n_head == n_head &&
           o->u.rope.table == like->u.rope.table && o->u.rope.style == like->u.rope.style &&
           o->u.rope.n_rot == like->u.rope.n_rot && o->u.rope.d_head == like->u.rope.d_head;
}

/* Whether ops from i on are both rotations and the attention that reads their results. */
static bool rotates_for(const builder *b, int i) {
    const op *o = &b->ops[i], *a = o + 2;
    return i + 2 < b->n_op && a->kind == OP_ATTENTION && !a->u.attn.shared &&
           o->u.rope.d_head == a->u.attn.d_head &&
           ((is_rope_of(o, a->in, a->u.attn.n_head, o) &&
             is_rope_of(o + 1, a->in2, a->u.attn.n_kv_head, o)) ||
            (is_rope_of(o, a->in2, a->u.attn.n_kv_head, o) &&
             is_rope_of(o + 1, a->in, a->u.attn.n_head, o))) &&
           !is_read_later(b, i + 3, a->in) && !is_read_later(b, i + 3, a->in2);
}

/* Whether op i norms the heads of a register that attention a reads, as its kernel can. */
static bool is_norm_of(const op *o, reg r, int64_t n_head, const op *a) {
    return o->kind == OP_NORM && o->out == r && o->u.norm.kind == NORM_RMS && o->w >= 0 && o->b < 0 &&
           !o->u.norm.w_full && o->u.norm.n_group == n_head && o->k == n_head * a->u.attn.d_head;
}

/* Whether ops i and i + 1 are norms of the heads of q and k, which the rotations and the attention after them
 * read. */
static bool norms_for(const builder *b, int i) {
    const op *o = &b->ops[i], *a = o + 4;
    if (!norms_together(b, i) || !rotates_for(b, i + 2))
        return false;
    const op *q = o->out == a->in ? o : o + 1, *k = q == o ? o + 1 : o;
    return is_norm_of(q, a->in, a->u.attn.n_head, a) && is_norm_of(k, a->in2, a->u.attn.n_kv_head, a) &&
           a->in3 != q->out && a->in3 != k->out;
}

static nib_status take_attention(const builder *b, int i, step *s) {
    const op *o = &b->ops[i];
    s->kind = STEP_ATTEND;
    if (o->kind == OP_NORM) {
        s->q_norm = o->out == o[4].in ? o : o + 1;
        s->k_norm = s->q_norm == o ? o + 1 : o;
        i += 2, o += 2;
    }
    if (o->kind == OP_ROPE && !rotates_for(b, i)) {
        s->kind = STEP_ROPE;
        return o->in == o->out ? NIB_OK : refuse(b, o, "expected it in place");
    }
    s->rope = o->kind == OP_ROPE ? o : NULL;
    o += s->rope ? 2 : 0;
    s->n = (int)(o - &b->ops[s->first]) + 1;
    s->out = o->out;
    if (b->coded && (!op_stores(o) || o->u.attn.d_head % 8))
        return refuse(b, o,
                      "with kv8 and kv4, it must store its keys and values, in heads of a multiple of 8");
    if (o->u.attn.shared && o->u.attn.n_kv_head != 1)
        return refuse(b, o, "keys that are the values must be those of one head");
    if (o->u.attn.d_head > (o->u.attn.shared ? (int64_t)CUDA_MAX_SHARED : 256) ||
        o->u.attn.n_head % o->u.attn.n_kv_head)
        return refuse(b, o,
                      o->u.attn.shared ? "keys that are the values must have at most 576 channels"
                                       : "the width of heads must be at most 256");
    return NIB_OK;
}

/* ---- recurrent states ---- */

/* Whether ops from i on are a convolution between two products of elements, all in the same register. */
static bool is_gated_conv(const builder *b, int i) {
    const op *o = &b->ops[i], *conv = o + 1, *gate = o + 2;
    return i + 2 < b->n_op && conv->kind == OP_CONV && conv->in == conv->out && o->kind == OP_GATE &&
           gate->kind == OP_GATE && o->u.act.kind == ACT_NONE && gate->u.act.kind == ACT_NONE &&
           o->in2 == conv->in && o->out == conv->in && gate->in2 == conv->in && gate->out == conv->in &&
           o->in != conv->in && gate->in != conv->in && o->n == conv->n && gate->n == conv->n;
}

/* The gated delta rule, the norm of heads and the gate after it, all in the same register. */
static nib_status take_recurrent(const builder *b, int i, step *s) {
    const op *o = &b->ops[i], *norm = o + 1, *gate = o + 2;
    s->kind = STEP_RECURRENT;
    s->op = o;
    if (o->kind == OP_GATE) {
        s->op = o + 1;
        s->tail = gate;
        s->n = 3;
        s->out = gate->out;
        return NIB_OK;
    }
    if (o->kind != OP_CONV && o->u.rec.d_state > 256)
        return refuse(b, o, "its state has more than 256 rows");
    if (o->kind != OP_DELTA || i + 2 >= b->n_op || norm->kind != OP_NORM || gate->kind != OP_GATE ||
        norm->in != o->out || norm->out != o->out || gate->in2 != o->out || gate->out != o->out ||
        gate->in == o->out || norm->u.norm.kind != NORM_RMS || norm->w < 0 || norm->b >= 0 ||
        norm->u.norm.w_full || norm->u.norm.n_group != o->u.rec.n_head || o->u.rec.n_head < 2 ||
        norm->k != o->n || gate->n != o->n || o->u.rec.d_head % 32 || o->u.rec.d_head > 256)
        return NIB_OK;
    s->tail = gate;
    s->n = 3;
    s->out = gate->out;
    return NIB_OK;
}

/* ---- all ops ---- */

/* Makes a step of successive look-ups to one register. The first one sets it, the others add to it. */
static nib_status take_look_ups(const builder *b, int i, step *s) {
    const op *o = &b->ops[i];
    s->kind = STEP_EMBED;
    if (o->kind == OP_EMBED_POS)
        return refuse(b, o, "it adds to an output that is not looked up");
    while (!o->adds && i + s->n < b->n_op && o[s->n].out == o->out && o[s->n].n == o->n &&
           (o[s->n].kind == OP_EMBED_POS || (o[s->n].kind == OP_EMBED && o[s->n].adds)))
        s->n++;
    return NIB_OK;
}

static bool has_kernel(op_kind kind) {
    switch (kind) {
    case OP_MIX:
    case OP_LIKE:
    case OP_SPARSIFY:
    case OP_CONNECT:
    case OP_POOL:
    case OP_SELECT:
    case OP_SHORTLIST:
    case OP_COUNT: return false;
    default: return true;
    }
}

/* Makes the step that begins with op i. s->n 0: op i is part of the next steps. */
static nib_status take(builder *b, int i, step *s) {
    const op *o = &b->ops[i];
    *s = (step){.first = i, .n = 1, .in = REG_NONE, .out = REG_NONE};
    if (o->kind == OP_GATE && is_gated_conv(b, i))
        return take_recurrent(b, i, s);
    switch (o->kind) {
    case OP_EMBED:
    case OP_EMBED_POS: return take_look_ups(b, i, s);
    case OP_LINEAR:
        return is_router(b, i)    ? take_router(b, i, s)
               : is_weighed(b, i) ? take_weighed(b, i, s)
                                  : take_products(b, i, s);
    case OP_ROPE:
        if (o->u.rope.at > 0 || o->u.rope.back)
            return refuse(b, o, "it rotates by the negative angle, or the last columns of a head");
        return take_attention(b, i, s);
    case OP_ATTENTION:
        return o->u.attn.every > 0 ? refuse(b, o, "it has entries of several positions")
                                   : take_attention(b, i, s);
    case OP_NORM:
        if (norms_router(b, i))
            return take_router(b, i, s);
        if (norms_for(b, i))
            return take_attention(b, i, s);
        s->kind = STEP_NORM;
        if (fuses_norm(b, i)) {
            b->norm = o;
            b->n_norm = o->fuse.n_codes;
            s->n = 0;
        } else if (norms_together(b, i))
            s->n = 2;
        return NIB_OK;
    case OP_ACT:
    case OP_GATE:
    case OP_ADD:
    case OP_SCALE:
    case OP_CLAMP:
    case OP_XIELU:
    case OP_TIMES:
    case OP_SHARE:
    case OP_SOFTPLUS:
    case OP_SCALE_POS:
    case OP_SOFTCAP:
        s->kind = STEP_EACH;
        s->out = o->out;
        return NIB_OK;
    case OP_COPY:
        if (gathers(b, i))
            return take_groups(b, i, s);
        s->kind = STEP_COLUMNS;
        return NIB_OK;
    case OP_ROUTE:
        s->kind = STEP_ROUTE;
        return o->w < 0 ? NIB_OK : refuse(b, o, "the experts of each token are listed");
    case OP_EXPERTS: return take_experts(b, i, s);
    case OP_REDUCE:
        s->kind = STEP_REDUCE;
        s->tail = is_residual(b, i) ? o + 1 : NULL;
        s->n = s->tail ? 2 : 1;
        s->out = s->tail ? s->tail->out : o->out;
        return o->n % 2 ? refuse(b, o, "expected an even width") : NIB_OK;
    case OP_GROUPS:
    case OP_SPREAD: return take_groups(b, i, s);
    case OP_CONV:
    case OP_SSD:
    case OP_SCAN:
    case OP_DELTA: return take_recurrent(b, i, s);
    case OP_MIX:
    case OP_LIKE:
    case OP_SPARSIFY:
    case OP_CONNECT:
    case OP_POOL:
    case OP_SELECT:
    case OP_SHORTLIST:
    case OP_COUNT: break;
    }
    return refuse(b, o, "there is no kernel for it");
}

/* Notes the registers of op o, unless the step has no use for them: it reads and writes those of copies. */
static void note_registers(cuda *c, const step *s, const op *o) {
    const reg of[] = {o->in, o->in2, o->in3, o->out};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i] != REG_NONE && !(s->gather && of[i] == s->gather->out) &&
            !(s->scatter && of[i] == s->scatter->in))
            c->registers |= (uint32_t)1 << of[i];
}

/* Whether the products of a step can compute the LayerNorm that is the step before. */
static bool norms_layer(const builder *b, const step *norm, const step *s) {
    const op *o = &b->ops[norm->first], *to = &b->ops[s->first];
    if (norm->kind != STEP_NORM || norm->n != 1 || s->kind != STEP_LINEAR || o->u.norm.kind != NORM_LAYER ||
        o->u.norm.n_group != 1 || o->w < 0 || o->k > CUDA_MAX_CENTRED || o->fuse.n_codes != s->n_w)
        return false;
    for (int i = 0; i < s->n; i++)
        if (to[i].out == o->in)
            return false;
    return true;
}

static nib_status make_block(cuda *c, int i, step *to, nib_error *err) {
    builder b = {.of = layout_block(c->setup.layout, i),
                 .coded = kv_is_coded(c->setup.kv.type),
                 .mixed = c->setup.act_bits[i] == NIB_ACT_AX,
                 .err = err};
    steps *s = &c->blocks[i];
    b.ops = b.of->program.ops;
    b.n_op = b.of->program.n_op;
    s->list = to;
    if (c->setup.act_bits[i] == 4)
        return nib_fail(err, NIB_E_DEVICE,
                        "%s: the cuda back end supports activations of 8 and 16 bits, not of 4", b.of->name);
    for (int at = 0; at < b.n_op;) {
        step *now = &s->list[s->n];
        NIB_TRY(take(&b, at, now));
        for (int o = at; o < at + now->n; o++)
            now->feeds_cache = now->feeds_cache || b.ops[o].fuse.feeds_cache;
        for (int o = at; o < at + NUM_MAX(now->n, 1); o++)
            note_registers(c, now, &b.ops[o]);
        if (s->n > 0 && norms_layer(&b, now - 1, now))
            now->layer_norm = &b.ops[at - 1];
        at += NUM_MAX(now->n, 1);
        s->n += now->n > 0;
    }
    join_experts(b.of, s);
    return NIB_OK;
}

nib_status steps_check_ops(const model *m, nib_error *err) {
    for (int i = 0; i < model_n_block(m); i++) {
        builder b = {.of = model_block(m, i), .any_format = true, .err = err};
        b.ops = b.of->program.ops;
        b.n_op = b.of->program.n_op;
        for (int at = 0; at < b.n_op; at++)
            if (!has_kernel(b.ops[at].kind))
                return refuse(&b, &b.ops[at], "there is no kernel for it");
        for (int at = 0; at < b.n_op;) {
            step now;
            NIB_TRY(take(&b, at, &now));
            at += NUM_MAX(now.n, 1);
        }
    }
    return NIB_OK;
}

/* ---- codes for the next step ---- */

/* Whether the step can leave codes of its output, which must be a multiple of 32 wide. Products with float
 * weights, and those before an activation, leave none. */
static bool can_leave(const block *of, const step *s) {
    const op *first = &of->program.ops[s->first];
    if (s->kind == STEP_LINEAR && of->weights[first->w].format.layout == PACK_ROWS)
        return false;
    if (s->kind == STEP_EXPERTS && !first->u.experts.sum)
        return false;
    if (s->out == REG_NONE || s->out == REG_LOGITS || (s->tail && s->tail->kind == OP_ACT))
        return false;
    const op *last = &first[s->n - 1];
    if (s->kind == STEP_ATTEND)
        return !last->u.attn.shared && last->u.attn.d_head % 32 == 0;
    const int64_t n = s->kind == STEP_EXPERTS ? first->u.experts.n : s->kind == STEP_ADD ? last->n : first->n;
    return n % (s->kind == STEP_REDUCE ? 64 : 32) == 0;
}

static bool can_take(const block *of, const step *s) {
    if (s->kind != STEP_LINEAR)
        return false;
    const pack_format *f = &of->weights[of->program.ops[s->first].w].format;
    return f->layout == PACK_TILE &&
           (f->group == 32 || ((f->group == 64 || f->group == 128) && f->bits < 8)) &&
           f->scale != PACK_SCALE_TWO;
}

/* Connects each step to the next one that reads its codes, in the same block or at the beginning of a later
 * one. */
static void join_steps(const cuda *c) {
    step *before = NULL;
    const block *its = NULL;
    for (int b = 0; b < layout_n_block(c->setup.layout); b++)
        for (int i = 0; i < c->blocks[b].n; i++) {
            step *s = &c->blocks[b].list[i];
            const block *of = layout_block(c->setup.layout, b);
            if (before && before->out == s->in && can_leave(its, before) && can_take(of, s)) {
                before->codes_for = s;
                before->codes_for_block = b;
            }
            before = s;
            its = of;
        }
}

nib_status steps_open(cuda *c, nib_error *err) {
    const int n_block = layout_n_block(c->setup.layout);
    int n = 0;
    for (int b = 0; b < n_block; b++)
        n += layout_block(c->setup.layout, b)->program.n_op;
    c->all = mem_calloc((size_t)NUM_MAX(n, 1), sizeof *c->all);
    c->blocks = mem_calloc((size_t)n_block, sizeof *c->blocks);
    if (!c->all || !c->blocks)
        return nib_fail_nomem(err, (size_t)n * sizeof *c->all, "the steps of a token");
    step *to = c->all;
    for (int b = 0; b < n_block; b++) {
        NIB_TRY(make_block(c, b, to, err));
        to += c->blocks[b].n;
    }
    join_steps(c);
    return NIB_OK;
}

void steps_close(cuda *c) {
    mem_free(c->all);
    mem_free(c->blocks);
}

bool steps_has_outliers(const cuda *c, int b, const step *s) {
    const block *of = layout_block(c->setup.layout, b);
    return s->kind == STEP_LINEAR && of->weights[of->program.ops[s->first].w].format.sparse;
}
