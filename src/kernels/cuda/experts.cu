/* experts.cu - products of rows with the matrices of their experts (OP_EXPERTS): chooses the kernels, and
 * adds up the results of a row's experts.
 *
 * `route` has listed the rows by expert (cuda_expert_list), so the host does not know which expert a block
 * has, nor how many blocks have work: a launch has as many as any choice needs. Each pair of a row and an
 * expert is computed on its own, in an order that depends on the matrix alone. A sum over experts first has
 * memory for the result of each pair; then they are added in the order of the row's experts. */
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"

struct sum_job {
    const float *part, *chosen;
    float *y;
    int64_t ldc, ldy;
    int n, n_used;
    bool weighted, adds;
};

__global__ void __launch_bounds__(EXPERT_THREADS) experts_sum(const __grid_constant__ sum_job j) {
    const int i = blockIdx.x * EXPERT_THREADS + threadIdx.x, row = blockIdx.y;
    launch_next();
    launch_wait();
    if (i >= j.n)
        return;
    const float *const part = j.part + (int64_t)row * j.n_used * j.n + i, *const weights = j.chosen +
                                                                                           row * j.ldc +
                                                                                           j.n_used;
    float v = 0.0f;
    for (int u = 0; u < j.n_used; u++) {
        const float x = __ldcg(part + (int64_t)u * j.n);
        v = __fadd_rn(v, j.weighted ? __fmul_rn(x, weights[u]) : x);
    }
    float *const y = j.y + row * j.ldy + i;
    *y = j.adds ? __fadd_rn(*y, v) : v;
}

static int sum_launch(const cuda_experts *a, const float *part, cuda_stream s) {
    const sum_job j = {part,      a->chosen,      a->y[0],     a->ldc, a->ldy[0],
                       (int)a->n, (int)a->n_used, a->weighted, a->adds};
    const int e = prepare(experts_sum, 0);
    return e ? e
             : launch(experts_sum,
                      dim3((unsigned)((a->n + EXPERT_THREADS - 1) / EXPERT_THREADS), (unsigned)a->n_row),
                      dim3(EXPERT_THREADS), 0, s, j);
}

/* Leaves codes of one row that has been computed. A warp has 32 elements. */
__global__ void __launch_bounds__(EXPERT_THREADS)
    experts_leave(const float *y, int n, const __grid_constant__ codes_row to) {
    const int i = blockIdx.x * EXPERT_THREADS + threadIdx.x;
    launch_next();
    launch_wait();
    if (i < n)
        group_leave(to, i, __ldcg(y + i), to.norm ? to.norm[i] : 1.0f);
}
static int leave_launch(const cuda_experts *a, cuda_stream s) {
    if (!a->row_leaves.data)
        return 0;
    const int e = prepare(experts_leave, 0);
    return e ? e
             : launch(experts_leave, dim3((unsigned)((a->n + EXPERT_THREADS - 1) / EXPERT_THREADS)),
                      dim3(EXPERT_THREADS), 0, s, a->y[0], (int)a->n, codes_of(a->row_leaves, a->n));
}

static bool experts_are(const cuda_experts *a) {
    const int64_t n_pair = a->n_row * a->n_used;
    return (a->n_w == 1 || (a->n_w == 2 && !a->sum)) && (!a->gated || a->n_w == 2) && a->n_row >= 1 &&
           a->n_row <= CUDA_MAX_WIDE && a->n_used >= 1 && n_pair < INT32_MAX && a->n >= 1 &&
           (!a->row_leaves.data || (a->sum && a->n_row == 1 && a->n % 32 == 0)) && (!a->here || !a->wide) &&
           (!a->apart || (a->sum && !a->wide && !a->row_leaves.data)) && a->w[0].n % a->n_expert == 0 &&
           a->w[0].k >= 1 && a->w[0].k <= MAX_PACK_ROW;
}

int experts_launch(const cuda_experts *a, cuda_stream s) {
    if (!experts_are(a))
        return CUDA_UNSUPPORTED;
    const bool rows = a->w[0].format.layout == PACK_ROWS, wide = a->wide && !rows;
    const int64_t n_pair = a->n_row * a->n_used;
    const cuda_expert_list l =
        wide ? cuda_expert_wide_of(n_pair, a->n_expert) : cuda_expert_few_of(n_pair, a->n_expert, a->two);
    const uint8_t *const list = (const uint8_t *)(wide ? a->wide : a->few);
    float *const part = cuda_experts_part(a);
    expert_job j = {};
    j.tiles = (const cuda_expert_tile *)(list + l.tiles);
    j.n_tile = (const int *)list;
    j.pairs = (const int *)(list + l.pairs);
    j.x = a->x, j.ldx = a->ldx;
    j.chosen = a->chosen, j.ldc = a->ldc;
    for (int i = 0; i < a->n_w; i++) {
        j.y[i] = a->sum ? part : a->y[i];
        j.ldy[i] = a->ldy[i];
        j.bias[i] = a->bias[i];
    }
    j.n = (int)a->n, j.k = (int)a->w[0].k;
    j.n_used = (int)a->n_used, j.n_w = a->n_w, j.act = a->act;
    j.here = a->here;
    j.each = a->each, j.sum = a->sum, j.weighted = a->weighted;
    j.gated = a->gated, j.adds = a->adds, j.two = a->two;
    if (!rows && !wide && a->n_row == 1 && !a->apart) {
        const int one = experts_one_launch(a, j, s);
        if (one != CUDA_UNSUPPORTED) /* on 9.0 it leaves codes itself */
            return one || device_major() >= 9 ? one : leave_launch(a, s);
    }
    int e = rows   ? experts_float_launch(a, j, s)
            : wide ? experts_wide_launch(a, j, s)
                   : experts_few_launch(a, j, s);
    e = e || !a->sum || a->apart ? e : sum_launch(a, part, s);
    return e ? e : leave_launch(a, s);
}
