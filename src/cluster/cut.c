/* cut.c - see cut.h. Dynamic programming over the places where a stage may begin: best[b] is the smallest
 * possible largest stage of blocks [0, b) with the ranks so far. */
#include "cluster/cut.h"

#include "base/mem.h"
#include "base/num.h"
#include "model/stage.h"

#include <math.h>

/* Seconds of a byte that must be resident, and is not: above all that can be. */
#define REFUSED_S 1.0
/* How often the bytes of a row's logits are moved: by the last rank, which writes and sends them, and by the
 * first, which receives, stores and reads them. */
enum { LAST_MOVES = 2, FIRST_MOVES = 3 };

typedef struct search {
    const cluster_cut_question *q;
    int n_block;
    double *many, *one;   /* [n_rank][n_block + 1]: seconds of n_row rows and of one row in blocks [0, b) */
    double *weights, *kv; /* [n_block + 1]: bytes that they hold */
    double logits;        /* bytes of a row's */
    double tied;          /* bytes of the head's matrix, if it is the embedding's */
    double *best;         /* [n_rank][n_block + 1] */
    int *from;            /* [n_rank][n_block + 1]: where the last of these stages begins */
    bool *can;            /* [n_block + 1] */
} search;

/* Seconds of the rows' logits, of which only the first and the last rank have some. */
static double logits_seconds(const search *s, int rank, int end, double n_row) {
    const double moves = (rank == 0 ? FIRST_MOVES : 0) + (end == s->n_block ? LAST_MOVES : 0);
    return moves * n_row * s->logits / s->q->rates[rank].at[PLACE_RAM].read;
}

static cluster_stage_cost cost_of(const search *s, int rank, int first, int end) {
    const cluster_cut_question *q = s->q;
    const double *many = &s->many[rank * (s->n_block + 1)], *one = &s->one[rank * (s->n_block + 1)];
    const plan_rates *r = &q->rates[rank];
    cluster_stage_cost c = {.kv = s->kv[end] - s->kv[first]};
    c.held = s->weights[end] - s->weights[first] + c.kv + (end == s->n_block && first > 0 ? s->tied : 0);
    c.over = q->caps[rank] == UINT64_MAX ? 0 : fmax(c.held - (double)q->caps[rank], 0);
    const double each = q->on_gpu    ? 1 / r->at[PLACE_RAM].to[PLACE_GPU]
                        : q->streams ? 1 / r->at[PLACE_DISK].to[PLACE_RAM]
                                     : REFUSED_S;
    c.seconds = many[end] - many[first] + logits_seconds(s, rank, end, (double)q->n_row) + c.over * each;
    c.one_row = one[end] - one[first] + logits_seconds(s, rank, end, 1) + c.over * each;
    return c;
}

/* Seconds of an op that is not a product: of launching it, and of moving activations. */
static double other_seconds(const cluster_cut_question *q, const plan_rates *r, const op *o, double n_row) {
    const bool attends = o->kind == OP_ATTENTION;
    const double moved = n_row * (double)o->cost.act_bytes * (attends ? (double)q->n_position : 1);
    if (q->on_gpu)
        return r->vram_launch + moved / r->at[PLACE_GPU].read;
    return r->op_s + moved / (attends ? r->attend[PLAN_KV_HALVES] : r->at[PLACE_RAM].read);
}

/* Seconds of an op for n_row rows, with its weights where it is computed. */
static double op_seconds(const cluster_cut_question *q, const plan_rates *r, const block *of, const op *o,
                         double n_row) {
    const double bytes = op_weight_bytes(o, n_row), macs = (double)o->cost.macs;
    if (!op_is_product(o))
        return other_seconds(q, r, o, n_row);
    if (q->on_gpu)
        return r->vram_launch + bytes / r->at[PLACE_GPU].read + n_row * macs / r->vram_macs;
    const pack_format *f = &of->weights[o->w].format;
    const int bits = f->layout == PACK_TILE ? f->bits : 0;
    const double asym = f->layout == PACK_TILE && f->asym ? fmax(r->asym, 1) : 1;
    /* the time of one row's products is part of the rate at which weights are read */
    return r->op_s + fmax(asym * bytes / r->one_row[bits], bytes / r->at[PLACE_RAM].read) +
           (n_row - 1) * macs / r->many_rows[bits];
}

static void add_block(search *s, int b, double kv_layer) {
    const cluster_cut_question *q = s->q;
    const block *of = layout_block(q->layout, b);
    const int n = s->n_block + 1;
    double kv = 0;
    for (int i = 0; i < of->program.n_op; i++)
        kv += of->program.ops[i].kind == OP_ATTENTION && op_stores(&of->program.ops[i]) ? kv_layer : 0;
    for (int w = 0; w < of->n_weight; w++)
        s->tied += of->weights[w].shared_block >= 0 ? (double)of->weights[w].bytes : 0;
    s->weights[b + 1] = s->weights[b] + (double)of->bytes;
    s->kv[b + 1] = s->kv[b] + kv;
    s->can[b] = model_can_cut(layout_model(q->layout), b);
    for (int rank = 0; rank < q->n_rank; rank++) {
        double many = 0, one = 0;
        for (int i = 0; i < of->program.n_op; i++) {
            const op *o = &of->program.ops[i];
            many += op_seconds(q, &q->rates[rank], of, o, (double)q->n_row);
            one += op_seconds(q, &q->rates[rank], of, o, 1);
        }
        s->many[rank * n + b + 1] = s->many[rank * n + b] + many;
        s->one[rank * n + b + 1] = s->one[rank * n + b] + one;
    }
}

static void extend(search *s, int rank) {
    const int n = s->n_block + 1;
    for (int end = 1; end < n; end++) {
        double *best = &s->best[rank * n + end];
        *best = INFINITY;
        for (int first = rank > 0 ? 1 : 0; first < (rank > 0 ? end : 1) && s->can[end]; first++) {
            const double before = rank > 0 ? s->best[(rank - 1) * n + first] : 0;
            const double all = fmax(before, cost_of(s, rank, first, end).seconds);
            if (all < *best) {
                *best = all;
                s->from[rank * n + end] = first;
            }
        }
    }
}

static nib_status find(search *s, cluster_stage *out, cluster_stage_cost *costs, nib_error *err) {
    const int n = s->n_block + 1, n_rank = s->q->n_rank;
    int n_place = 1;
    for (int b = 1; b < s->n_block; b++)
        n_place += s->can[b];
    for (int rank = 0; rank < n_rank; rank++)
        extend(s, rank);
    if (isinf(s->best[(n_rank - 1) * n + s->n_block]))
        return nib_fail(
            err, NIB_E_USAGE,
            "the model can be cut into at most %d stages, because each has a block of its own and "
            "reads nothing of others but the residual stream; found %d devices",
            n_place, n_rank);
    for (int rank = n_rank - 1, end = s->n_block; rank >= 0; rank--) {
        out[rank] = (cluster_stage){rank > 0 ? s->from[rank * n + end] : 0, end};
        if (costs)
            costs[rank] = cost_of(s, rank, out[rank].first, end);
        end = out[rank].first;
    }
    return NIB_OK;
}

nib_status cluster_cut(const cluster_cut_question *q, cluster_stage *out, cluster_stage_cost *costs,
                       nib_error *err) {
    const model *m = layout_model(q->layout);
    const size_t n = (size_t)model_n_block(m) + 1, all = n * (size_t)q->n_rank;
    search s = {.q = q,
                .n_block = (int)n - 1,
                .logits = (double)model_hparams(m)->n_vocab * sizeof(float),
                .many = mem_calloc(all, sizeof *s.many),
                .one = mem_calloc(all, sizeof *s.one),
                .weights = mem_calloc(n, sizeof *s.weights),
                .kv = mem_calloc(n, sizeof *s.kv),
                .best = mem_calloc(all, sizeof *s.best),
                .from = mem_calloc(all, sizeof *s.from),
                .can = mem_calloc(n, sizeof *s.can)};
    nib_status status;
    if (!s.many || !s.one || !s.weights || !s.kv || !s.best || !s.from || !s.can)
        status = nib_fail_nomem(err, all * sizeof *s.best, "a pipeline's stages");
    else {
        for (int b = 0; b < s.n_block; b++)
            add_block(&s, b, (double)q->kv / NUM_MAX(model_n_kv_layer(m), 1));
        s.can[s.n_block] = true;
        status = find(&s, out, costs, err);
    }
    mem_free(s.many);
    mem_free(s.one);
    mem_free(s.weights);
    mem_free(s.kv);
    mem_free(s.best);
    mem_free(s.from);
    mem_free(s.can);
    return status;
}
