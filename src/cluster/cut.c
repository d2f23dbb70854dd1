/* cut.c - see cut.h. Dynamic programming over the places where a stage may begin: best[b] is the smallest
 * possible largest stage of blocks [0, b) with the ranks so far. */
#include "cluster/cut.h"

#include "base/mem.h"
#include "base/num.h"
#include "model/stage.h"

#include <math.h>

/* How many times longer a byte takes that is not resident: between memory and disk of a processor, and
 * between a GPU's memory and its link, about 10 to 80. */
#define NOT_RESIDENT 32.0

typedef struct search {
    const cluster_cut_question *q;
    int n_block;
    double *read; /* [n_block + 1]: bytes that a row reads of blocks [0, b) */
    double *held; /* [n_block + 1]: bytes of their weights, and of their keys and values */
    double tied;  /* bytes of the head's matrix, if it is the embedding's */
    double *best; /* [n_rank][n_block + 1] */
    int *from;    /* [n_rank][n_block + 1]: where the last of these stages begins */
    bool *can;    /* [n_block + 1] */
} search;

static double cost_of(const search *s, int rank, int first, int end) {
    const uint64_t cap = s->q->caps[rank];
    const double held = s->held[end] - s->held[first] + (end == s->n_block && first > 0 ? s->tied : 0);
    const double over = cap == UINT64_MAX ? 0 : fmax(held - (double)cap, 0);
    return s->read[end] - s->read[first] + NOT_RESIDENT * over;
}

/* The cost of one block; at least 1, so that no stage is empty of work. */
static void add_block(search *s, int b, double kv_layer) {
    const block *of = layout_block(s->q->layout, b);
    double read = 1, held = (double)of->bytes;
    for (int i = 0; i < of->program.n_op; i++) {
        const op *o = &of->program.ops[i];
        read += op_weight_bytes(o, 1);
        held += o->kind == OP_ATTENTION && op_stores(o) ? kv_layer : 0;
    }
    for (int w = 0; w < of->n_weight; w++)
        s->tied += of->weights[w].shared_block >= 0 ? (double)of->weights[w].bytes : 0;
    s->read[b + 1] = s->read[b] + read;
    s->held[b + 1] = s->held[b] + held;
    s->can[b] = model_can_cut(layout_model(s->q->layout), b);
}

static void extend(search *s, int rank) {
    const int n = s->n_block + 1;
    for (int end = 1; end < n; end++) {
        double *best = &s->best[rank * n + end];
        *best = INFINITY;
        for (int first = rank > 0 ? 1 : 0; first < (rank > 0 ? end : 1) && s->can[end]; first++) {
            const double before = rank > 0 ? s->best[(rank - 1) * n + first] : 0;
            const double all = fmax(before, cost_of(s, rank, first, end));
            if (all < *best) {
                *best = all;
                s->from[rank * n + end] = first;
            }
        }
    }
}

static nib_status find(search *s, cluster_stage *out, nib_error *err) {
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
        end = out[rank].first;
    }
    return NIB_OK;
}

nib_status cluster_cut(const cluster_cut_question *q, cluster_stage *out, nib_error *err) {
    const model *m = layout_model(q->layout);
    const size_t n = (size_t)model_n_block(m) + 1, all = n * (size_t)q->n_rank;
    search s = {.q = q,
                .n_block = (int)n - 1,
                .read = mem_calloc(n, sizeof *s.read),
                .held = mem_calloc(n, sizeof *s.held),
                .best = mem_calloc(all, sizeof *s.best),
                .from = mem_calloc(all, sizeof *s.from),
                .can = mem_calloc(n, sizeof *s.can)};
    nib_status status;
    if (!s.read || !s.held || !s.best || !s.from || !s.can)
        status = nib_fail_nomem(err, all * sizeof *s.best, "a pipeline's stages");
    else {
        for (int b = 0; b < s.n_block; b++)
            add_block(&s, b, (double)q->kv / NUM_MAX(model_n_kv_layer(m), 1));
        s.can[s.n_block] = true;
        status = find(&s, out, err);
    }
    mem_free(s.read);
    mem_free(s.held);
    mem_free(s.best);
    mem_free(s.from);
    mem_free(s.can);
    return status;
}
