/* span_of.c - the name of a launch in a trace, the bytes that it moves and its multiplications, for spans.c.
 * Bytes are operands, results and the data between a launch's kernels, each counted once, whether a cache has
 * them or not. at_least: the kernels are known to move more, because several blocks read the same weights or
 * keys, parts of attention are joined, or newest positions are read beside codes. */
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "kernels/kv_layout.h"
#include "kernels/salient.h"
#include "numbers/tile.h"

#include <math.h>
#include <stdio.h>

enum { FLOAT = sizeof(float), HALF = sizeof(uint16_t) };

/* ---- embeddings ---- */

/* Counts the rows of the table and of the output. */
static void look_up(const cuda_embed *a, nib_span *out) {
    uint64_t panel = 0;
    pack_bytes(&a->w.format, PACK_PANEL, a->w.k, &panel);
    out->bytes =
        (double)a->n_row * ((double)panel / PACK_PANEL + (double)(a->w.k * FLOAT) * (a->adds ? 2 : 1));
    out->at_least = true; /* a row shares its memory lines with 15 others */
}

/* ---- products ---- */

/* Bytes of the codes that are left for a row of k (cuda_codes). Each 32 values have codes with their scale
 * and sum. Wider groups have the largest magnitude instead, and floats if a norm changes the row. With a norm
 * the sum of squares is added. */
static int64_t left_bytes(int64_t k, int64_t group, bool norm) {
    const int64_t squares = norm ? FLOAT : 0, floats = norm ? 32 * FLOAT : 0;
    return k / 32 * (squares + (group > 32 ? FLOAT + floats : 32 + 2 * FLOAT));
}

/* Bytes of the input of few rows: the codes that were left, or one row itself. More rows are first written to
 * scratch. */
static int64_t input_bytes(const cuda *c, const cuda_linear *a, launch_kind kind) {
    const int64_t k = a->w[0].k, x = a->n_row * k * FLOAT, norm = a->norm ? k * FLOAT : 0,
                  group = a->w[0].format.group;
    if (kind == LAUNCH_MIXED)
        return x + norm + a->n_row * (k + NUM_MIN(k, a->n8 * ACT_BLOCK));
    if (kind != LAUNCH_LINEAR)
        return x + norm + 2 * (int64_t)c->k->wide_scratch(a->n_row, k);
    if (a->codes)
        return a->n_row * left_bytes(k, group, a->norm) + (group > 32 && !a->norm ? x : 0);
    return x + norm + (a->n_row > 1 || a->two ? 2 * (int64_t)c->k->linear_scratch(a->n_row, k, a->two) : 0);
}

/* Bytes of a matrix's outliers. */
static int64_t sparse_bytes(const view *w) {
    return num_round_up(w->n, PACK_PANEL) / PACK_PANEL * tile_outliers(&w->format, w->k) * TILE_LINE;
}

/* Bytes that this GPU and the others store for a sum over ranks, and that it reads: a mark beside each float.
 */
static double sum_bytes(const cuda_ranks *of, int64_t n_row, int64_t n) {
    return (double)(of->n_rank * 4 * n_row * n * FLOAT);
}

static void product(const cuda *c, const cuda_linear *a, launch_kind kind, nib_span *out) {
    int64_t bytes = input_bytes(c, a, kind);
    for (int i = 0; i < a->n_w; i++) {
        const int64_t n = a->w[i].n;
        uint64_t of = 0;
        pack_bytes(&a->w[i].format, n, a->w[i].k, &of);
        bytes += (int64_t)of - sparse_bytes(&a->w[i]) + (a->bias[i] ? n * FLOAT : 0);
        if (i == 0 || !a->gated)
            bytes += a->n_row * n * FLOAT * (a->adds ? 2 : 1);
        out->macs += (double)a->n_row * (double)n * (double)a->w[i].k;
    }
    const cuda_codes *leaves = &a->leaves;
    out->bytes = (double)bytes + sum_bytes(&a->sum, a->n_row, a->w[0].n) +
                 (leaves->data ? (double)(a->n_row * left_bytes(a->w[0].n, leaves->group, leaves->norm)) : 0);
    out->at_least = a->n_row > 1;
}

/* Counts the router's matrix and its input, and the logits. */
static void route(const cuda_route *a, nib_span *out) {
    uint64_t of = 0;
    if (a->w.data) {
        pack_bytes(&a->w.format, a->n_expert, a->w.k, &of);
        out->macs = (double)(a->n_row * a->n_expert) * (double)a->w.k;
        out->bytes = (double)of + (double)(a->n_row * a->w.k * FLOAT) * (a->norm ? 2 : 1);
    }
    out->bytes += (double)(a->n_row * a->n_expert * FLOAT);
    out->at_least = true;
}

/* Counts the matrices of as many of the experts that are here as rows without preference choose, and the
 * rows' inputs and outputs. */
static void experts(const cuda *c, const cuda_experts *a, nib_span *out) {
    const double share = (double)a->n_used / (double)a->n_expert;
    const double here = a->here ? (double)c->base.split->n_kept : (double)a->n_expert;
    const double used = here * (1 - pow(1 - share, (double)a->n_row));
    const int64_t n_pair = a->n_row * a->n_used, k = a->w[0].k;
    for (int i = 0; i < a->n_w; i++) {
        uint64_t of = 0;
        pack_bytes(&a->w[i].format, a->w[i].n / a->n_expert, k, &of);
        out->bytes += used * (double)of;
        out->macs += (double)(n_pair * a->n) * (double)k * here / (double)a->n_expert;
    }
    out->bytes +=
        (double)((a->each ? n_pair : a->n_row) * k * FLOAT + (a->sum ? a->n_row : n_pair) * a->n * FLOAT);
    out->at_least = true;
}

/* Counts the matrix, the inputs and the outputs. */
static void groups(const cuda_groups *a, nib_span *out) {
    uint64_t of = 0;
    pack_bytes(&a->w.format, a->w.n, a->w.k, &of);
    out->bytes = (double)of + (double)(a->n_row * a->n_group * (a->k + a->n * (a->adds ? 2 : 1)) * FLOAT);
    out->macs = (double)(a->n_row * a->n_group * a->n) * (double)a->k;
    out->at_least = a->n_row > 1;
}

/* Counts outliers, the rows, and the outputs before and after. */
static void sparse(const cuda_sparse *a, nib_span *out) {
    const int64_t k = a->w[0].k;
    int64_t bytes = a->n_row * k * FLOAT + (a->norm ? k * FLOAT : 0);
    for (int i = 0; i < a->n_w; i++) {
        const int64_t n = a->w[i].n;
        bytes += sparse_bytes(&a->w[i]) + a->n_row * n * FLOAT * (a->gated && i > 0 ? 1 : 2);
        out->macs += (double)(a->n_row * n * tile_outliers(&a->w[i].format, k));
    }
    out->bytes = (double)bytes;
    out->at_least = true;
}

/* ---- keys and values ---- */

static int64_t position_of(const cuda *c, const cuda_attend *a, int64_t r) {
    int64_t row = a->position - c->mem.position + r;
    const segment *s = visits_segment(c->now.pass.segments, c->now.pass.n_segment, false, &row);
    return s->position + row;
}

/* The number of positions that row r of the launch sees. */
static double seen_by(const cuda *c, const cuda_attend *a, int64_t r) {
    const int64_t seen = position_of(c, a, r) + 1;
    return (double)(a->window ? NUM_MIN(seen, a->window) : seen);
}

/* Keys, and values unless they are the keys. */
static int64_t halves_of(const cuda_kv *kv) {
    return kv->v ? 2 : 1;
}

/* Stored bytes of the keys and values of a page. */
static double page_bytes(const cuda_kv *kv) {
    const type_id type = kv->code_bits == 8 ? TYPE_KV8 : kv->code_bits == 4 ? TYPE_KV4 : TYPE_F16;
    return (double)(halves_of(kv) * kv->n_kv_head * kv_head_bytes(type, kv->d_head));
}

/* Rows of a prompt share the keys and values that they see. */
static void attention(const cuda *c, const cuda_attend *a, bool prompt, nib_span *out) {
    const double width = (double)(a->n_head * a->kv.d_head);
    double seen = 0;
    for (int64_t r = 0; r < a->n_row; r++)
        seen += seen_by(c, a, r);
    const double read = prompt ? seen_by(c, a, a->n_row - 1) : seen;
    out->bytes = page_bytes(&a->kv) / CUDA_PAGE * read + (double)(2 * a->n_row * FLOAT) * width +
                 (double)(a->sinks ? a->n_head * FLOAT : 0);
    out->at_least = true;
    out->macs = 2 * seen * width;
}

/* With codes, only the newest positions are stored, as halves. */
static void store(const cuda_attend *a, nib_span *out) {
    const int64_t width = halves_of(&a->kv) * a->kv.n_kv_head * a->kv.d_head;
    const int64_t n = a->kv.code_bits ? NUM_MIN(a->n_row, (int64_t)KV_BLOCK) : a->n_row;
    out->bytes = (double)(n * width * (FLOAT + HALF));
    out->at_least = a->kv.code_bits > 0;
}

/* Counts the blocks that end with one of the rows; they are read as halves at least. */
static void pack(const cuda *c, const cuda_attend *a, nib_span *out) {
    const double halves = (double)(halves_of(&a->kv) * a->kv.n_kv_head * a->kv.d_head * CUDA_PAGE * HALF);
    for (int64_t r = 0; r < a->n_row; r++)
        if ((position_of(c, a, r) + 1) % CUDA_PAGE == 0)
            out->bytes += page_bytes(&a->kv) + halves;
    out->at_least = true;
}

/* ---- residuals ---- */

/* Counts bytes over the link: the chosen channels of each row, for all weights with a residual. */
static void fetch(const cuda_residual *a, nib_span *out) {
    const int64_t channels = salient_count(a->k, a->k_chunk);
    for (int i = 0; i < a->n_w; i++)
        if (a->step[i])
            out->bytes += (double)(a->n_row * channels * a->step[i] + a->n[i] * FLOAT);
}

/* Groups of q and of k are normed together. */
static void norms(const cuda_norm *a, nib_span *out) {
    const int64_t each = a->k / a->n_group;
    out->bytes = (double)(2 * a->n_row * each * (a->n_group + a->n_group2) * FLOAT);
}

/* ---- recurrent states ---- */

/* The inputs and outputs, and the state, read and written. */
static void recurrent(const cuda *c, const cuda_recurrent *a, nib_span *out) {
    const int64_t n_sequence = a->together ? 1 : c->now.pass.n_segment;
    const int64_t state = a->n * (a->kind == OP_CONV ? a->n_tap - 1 : a->d_state);
    out->bytes = (double)((2 * n_sequence * state + a->n_row * 2 * a->n) * FLOAT);
    out->bytes += (double)(((a->times != NULL) + (a->gate != NULL)) * a->n_row * a->n * FLOAT);
    out->macs = (double)(a->n_row * state) * (a->kind == OP_DELTA ? 3 : a->kind == OP_CONV ? 1 : 2);
    out->at_least = true;
}

/* Counts the rows; and the matrix, its input and the rows of the total. */
static void elements(const cuda_each *a, nib_span *out) {
    uint64_t of = 0;
    out->bytes = (double)((a->y ? 3 : 2) * a->n_row * a->n * FLOAT);
    if (!a->by.data)
        return;
    pack_bytes(&a->by.format, 1, a->by.k, &of);
    out->bytes += (double)of + (double)(a->n_row * (a->by.k + (a->total ? 2 * a->n : 0)) * FLOAT);
    out->macs = (double)(a->n_row * a->by.k);
}

/* ---- all of them ---- */

static void measure(const cuda *c, const gpu_launch *l, nib_span *out) {
    const cuda_each *each = &l->u.each;
    const cuda_residual_add *add = &l->u.residual_add;
    switch (l->kind) {
    case LAUNCH_EMBED: look_up(&l->u.embed, out); return;
    case LAUNCH_LINEAR:
    case LAUNCH_WIDE:
    case LAUNCH_BATCH:
    case LAUNCH_MIXED: product(c, &l->u.linear, l->kind, out); return;
    case LAUNCH_SPARSE: sparse(&l->u.sparse, out); return;
    case LAUNCH_ATTEND:
    case LAUNCH_PROMPT: attention(c, &l->u.attend, l->kind == LAUNCH_PROMPT, out); return;
    case LAUNCH_STORE: store(&l->u.attend, out); return;
    case LAUNCH_PACK: pack(c, &l->u.attend, out); return;
    case LAUNCH_NORM: norms(&l->u.norm, out); return;
    case LAUNCH_EACH: elements(each, out); return;
    case LAUNCH_COLUMNS:
        out->bytes = (double)(2 * l->u.columns.n_row * l->u.columns.n_group * l->u.columns.n * FLOAT);
        return;
    case LAUNCH_GATHER:
        out->bytes = sum_bytes(&l->u.gather.of, l->u.gather.n_row, cuda_gather_width(&l->u.gather));
        return;
    case LAUNCH_REDUCE:
        out->bytes = sum_bytes(&l->u.reduce.of, l->u.reduce.n_row, l->u.reduce.n) +
                     (double)(2 * l->u.reduce.n_row * l->u.reduce.n * FLOAT);
        return;
    case LAUNCH_ROPE:
        out->bytes = (double)(2 * l->u.rope.n_row * l->u.rope.n_head * l->u.rope.n_rot * FLOAT);
        return;
    case LAUNCH_RECURRENT: recurrent(c, &l->u.recurrent, out); return;
    case LAUNCH_ROUTE: route(&l->u.route, out); return;
    case LAUNCH_EXPERTS: experts(c, &l->u.experts, out); return;
    case LAUNCH_HAND_DOWN:
        out->bytes = (double)(l->u.hand_down.n_row * (l->u.hand_down.k + 2 * l->u.hand_down.n_used) * FLOAT);
        return;
    case LAUNCH_HAND_UP:
        out->bytes = (double)(l->u.hand_up.n_row * (l->u.hand_up.n_used + 1) * l->u.hand_up.n * FLOAT);
        return;
    case LAUNCH_GROUPS: groups(&l->u.groups, out); return;
    case LAUNCH_FETCH: fetch(&l->u.residual, out); return;
    case LAUNCH_ADD: /* the part, what it is added to, the sum; gated: of two one comes out */
        out->bytes = (double)(add->n_row * add->ldp * FLOAT) * (add->gated ? 2.5 : 3);
        return;
    case LAUNCH_SHORTLIST: /* estimates, their errors, and logits */
        out->bytes = (double)(3 * l->u.shortlist.head.n_row * l->u.shortlist.head.w[0].n * FLOAT);
        out->at_least = true;
        return;
    case LAUNCH_BEST:
        out->bytes = (double)(l->u.sample.n_row * l->u.sample.n_vocab * FLOAT);
        out->at_least = true;
        return;
    }
}

/* Writes the name of a launch. Launches with one name share a row of the table, so the name has no layer. */
static void label(const cuda *c, const gpu_launch *l, char *out, size_t size) {
    static const char *const names[] = {[LAUNCH_EMBED] = "look up embeddings",
                                        [LAUNCH_SPARSE] = "add outliers of weights",
                                        [LAUNCH_STORE] = "rope, store keys and values",
                                        [LAUNCH_PACK] = "keys and values to codes",
                                        [LAUNCH_ATTEND] = "rope, attention",
                                        [LAUNCH_PROMPT] = "rope, attention",
                                        [LAUNCH_REDUCE] = "add over ranks",
                                        [LAUNCH_GATHER] = "logits of all ranks",
                                        [LAUNCH_ROUTE] = "route",
                                        [LAUNCH_HAND_DOWN] = "rows to the processor's experts",
                                        [LAUNCH_HAND_UP] = "add up experts",
                                        [LAUNCH_FETCH] = "fetch residuals",
                                        [LAUNCH_ADD] = "add residuals",
                                        [LAUNCH_SHORTLIST] = "exact logits of the head",
                                        [LAUNCH_BEST] = "sampling"};
    const block *b = layout_block(c->setup.layout, l->block);
    if (l->kind == LAUNCH_ATTEND && l->u.attend.q_norm) {
        snprintf(out, size, "norm, rope, attention");
        return;
    }
    const bool is_product = l->kind == LAUNCH_LINEAR || l->kind == LAUNCH_WIDE || l->kind == LAUNCH_BATCH ||
                            l->kind == LAUNCH_MIXED || l->kind == LAUNCH_EXPERTS;
    if (!is_product && names[l->kind]) {
        snprintf(out, size, "%s", names[l->kind]);
        return;
    }
    size_t at = (size_t)snprintf(out, size, "%s", op_name(l->of->kind));
    const int n = l->kind == LAUNCH_EXPERTS ? l->u.experts.n_w : is_product ? l->u.linear.n_w : 1;
    for (int i = 0; i < n && at < size && l->of[i].w >= 0; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? "+" : " ", b->weights[l->of[i].w].name);
}

nib_span span_of(const cuda *c, const gpu_launch *l) {
    nib_span out = {.lane = l->kind == LAUNCH_FETCH ? NIB_LANE_SIDE : NIB_LANE_COMPUTE,
                    .link = l->kind == LAUNCH_FETCH};
    label(c, l, out.what, sizeof out.what);
    measure(c, l, &out);
    return out;
}
