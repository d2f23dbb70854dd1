/* experts_few.cuh - products of experts with 8-bit activations: the job of their kernels, for experts_few.cu
 * (several rows) and experts_one.cu (one row). */
#ifndef NIB_KERNELS_CUDA_EXPERTS_FEW_CUH
#define NIB_KERNELS_CUDA_EXPERTS_FEW_CUH

#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/linear_weights.cuh"
#include "kernels/cuda/tables.cuh"

struct few_job {
    linear_job of;
    expert_job x;
    const uint8_t *codes; /* rows of codes, `step` bytes each; then their residuals if `two` */
    uint8_t *leaves;      /* rows of codes of the outputs; NULL: none */
    codes_row row_leaves; /* of one row's sum; codes NULL: none */
    const uint8_t *next;  /* cuda_experts.next; NULL: none */
    int64_t step, leaves_step, expert_bytes, residuals, next_bytes /* of an expert */;
    int n_panel;
    int turns;   /* experts_few.cu: pairs of panels of a block */
    int depth;   /* and stages of a warp's ring */
    bool listed; /* experts_kept.cu: the launch before has used the list of tiles too */
};
typedef void (*few_kernel)(const few_job);

/* The parts of K whose sums are added in order: chunks s, s + parts, ... are part s. In experts_few.cu, where
 * a block has two panels of each matrix, each part has a warp. */
__host__ __device__ constexpr int parts_of(bool gated) {
    return EXPERT_WARPS / (gated ? 4 : 2);
}

enum { COLUMNS = CUDA_EXPERT_FEW };

/* The codes of a column; with 16-bit activations columns 2m and 2m + 1 are those of pair m. Columns without a
 * pair have those of the first: their results are not used. */
__device__ __forceinline__ const uint8_t *column_codes(const few_job &j, const cuda_expert_tile &tile,
                                                       int column) {
    const int at = j.x.two ? column / 2 : column;
    const int pair = j.x.pairs[tile.first + (at < tile.n ? at : 0)];
    return j.codes + expert_input(j.x, pair) * j.step + (j.x.two ? column % 2 * j.residuals : 0);
}

/* The warps' sums: [warp][output][column]. */
struct few_sums {
    float of[EXPERT_WARPS][PACK_PANEL][COLUMNS + 1];
};

/* Fills the job, and quantizes the rows if the launch before left no codes (experts_few.cu). */
int experts_few_make(const cuda_experts *a, const expert_job &x, few_job *j);
int experts_quantize_launch(const cuda_experts *a, const few_job &j, cuda_stream s);

#endif
