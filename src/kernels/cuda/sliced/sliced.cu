/* sliced.cu - launches of products by slices of both operands; see sliced.cuh. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sliced/launches.h"
#include "kernels/cuda/sliced/sliced.cuh"

/* The number of columns that fit a block's shared memory beside rings of one stage; at most
 * SLICED_COLUMNS. */
static int columns_fit(const linear_job &j, bool sums) {
    enum { OWN = 20480 /* bytes of static arrays and of the driver */ };
    linear_job one = j;
    one.n_col = 1;
    const int64_t stage = stage_bytes_of(j.chunk_bytes), each = column_bytes(j.k_pad);
    const int64_t left =
        device_shared_bytes() - OWN - ALL_WARPS * stage - ((int64_t)sliced_many_bytes(one, sums) - each);
    const int64_t n = left / each;
    return (int)(n < 0 ? 0 : n < SLICED_COLUMNS ? n : SLICED_COLUMNS);
}

/* Sets the depth of the rings beside `others` bytes, for blocks that are alone on their multiprocessor. */
static size_t shared_bytes_of(linear_job *j, size_t others, int blocks) {
    enum { OWN = 20480 };
    j->stage_bytes = stage_bytes_of(j->chunk_bytes);
    j->depth = stages_of(*j, device_shared_bytes() - OWN - (int64_t)others, 1,
                         warp_chunks(*j, job_panels(*j, blocks)));
    return (size_t)(ALL_WARPS * j->depth * j->stage_bytes) + others;
}

size_t sliced_scratch(int64_t, int64_t k) {
    const int64_t k_pad = (k + TILE_CHUNK_K - 1) / TILE_CHUNK_K * TILE_CHUNK_K;
    return sliced_factors_at((int)k_pad) + 2 * SLICED_COLUMNS * sizeof(float);
}

static int run(sliced_kernel kernel, linear_job *j, size_t others, bool alone, cuda_stream s) {
    const int blocks = job_blocks(*j);
    const size_t shared_bytes =
        alone ? shared_bytes_of(j, others, blocks) : linear_shared_bytes(j, others, blocks);
    const int e = prepare(kernel, shared_bytes);
    return e ? e : launch(kernel, dim3((unsigned)blocks), dim3(THREADS), shared_bytes, s, *j);
}

static int run_many(const sliced_kernels &by, const cuda_linear *a, linear_job *j, cuda_stream s) {
    uint8_t *const scratch = (uint8_t *)a->scratch;
    auto *const quantize = by.bitwise ? a->two ? sliced_quantize<true, true> : sliced_quantize<true, false>
                           : a->two ? sliced_quantize<false, true>
                                      : sliced_quantize<false, false>;
    j->codes = (const uint4 *)scratch;
    j->factor = (const float *)(scratch + sliced_factors_at(j->k_pad));
    j->lift = j->factor + SLICED_COLUMNS;
    int e = prepare(quantize, 0);
    if (!e)
        e = launch(quantize, dim3((unsigned)a->n_row), dim3(THREADS), 0, s, *j, a->ldx, scratch);
    return e ? e : run(by.many[a->w[0].format.bits], j, sliced_many_bytes(*j, by.sums), true, s);
}

int sliced_launch(const sliced_kernels &by, const cuda_linear *a, cuda_stream s) {
    linear_job j;
    int e = a->n_row < 1 || a->n_row > CUDA_MAX_ROWS ? CUDA_UNSUPPORTED : linear_job_make(a, &j);
    const int bits = a->w[0].format.bits, each = a->two ? 2 : 1;
    if (e || a->w[0].format.table || j.subgroup != 32 || !by.many[bits] ||
        (j.leaves.codes && !by.one[bits]) || j.leaves_rows.codes)
        return e ? e : CUDA_UNSUPPORTED;
    if (j.n_col == 1 && by.one[bits])
        return run(by.one[bits], &j, sliced_one_bytes(j), bits > 4, s); /* sliced_blocks */
    const int max_rows = columns_fit(j, by.sums) / each;
    for (int64_t first = 0; first < a->n_row && !e; first += max_rows) {
        cuda_linear part = *a;
        if (max_rows < 1)
            return CUDA_UNSUPPORTED;
        part.n_row = a->n_row - first < max_rows ? a->n_row - first : max_rows;
        part.x += first * a->ldx;
        for (int i = 0; i < a->n_w; i++)
            part.y[i] += first * a->ldy[i];
        if (part.n_row < a->n_row) /* only launches of one row leave codes */
            part.leaves.data = nullptr;
        e = linear_job_make(&part, &j);
        e = e ? e : run_many(by, &part, &j, s);
    }
    return e;
}
