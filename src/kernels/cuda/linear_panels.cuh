/* linear_panels.cuh - the panels of a block: fills the rings of its warps, and finishes the sums of a
 * panel. */
#ifndef NIB_KERNELS_CUDA_LINEAR_PANELS_CUH
#define NIB_KERNELS_CUDA_LINEAR_PANELS_CUH

#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/linear_weights.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/row_math.cuh"

/* ---- panels ---- */

/* The matrix of this block's panel number q, and the panel's number in it. */
__device__ __forceinline__ int panel_find(const linear_job &j, int q, int *matrix) {
    const int p = j.gated ? q / 2 : q;
    const int panel = ((blockIdx.x + (p >> j.paired) * gridDim.x) << j.paired) + (p & ((1 << j.paired) - 1));
    if (j.gated) {
        *matrix = q % 2;
        return panel;
    }
    *matrix = matrix_of(j, panel);
    return panel - j.first[*matrix];
}
__device__ __forceinline__ const uint8_t *panel_at(const linear_job &j, int q) {
    int matrix;
    const int panel = panel_find(j, q, &matrix);
    return j.w[matrix] + panel * j.panel_bytes;
}
/* Panels of this block. */
__device__ __forceinline__ int panel_count(const linear_job &j) {
    const int units = (j.n_unit - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    return (j.gated ? 2 * units : units) << j.paired;
}

/* The order in which a warp takes its chunks. */
struct chunk_feed {
    const uint8_t *panel;
    int q, chunk, n_panel, piece; /* the next chunk to copy */
};
__device__ __forceinline__ chunk_feed feed_begin(const linear_job &j, int n_panel) {
    const int team = threadIdx.x / 32 / WARPS, chunk = threadIdx.x / 32 % WARPS;
    const int q = chunk < j.n_chunk && team < n_panel ? team : n_panel;
    return chunk_feed{q < n_panel ? panel_at(j, q) : nullptr, q, chunk, n_panel, 0};
}
template <bool PIECES = false>
__device__ __forceinline__ void feed_put(const linear_job &j, chunk_feed *f, ring *r) {
    if (f->q >= f->n_panel)
        return;
    const int all = f->chunk == j.n_chunk - 1 ? j.last_bytes : j.chunk_bytes;
    const uint8_t *const chunk = f->panel + f->chunk * j.chunk_bytes;
    if (PIECES) {
        f->piece ^= 1;
        ring_put(r, chunk + (f->piece ? 0 : CHUNK_PIECE), f->piece ? (int)CHUNK_PIECE : all - CHUNK_PIECE);
        if (f->piece)
            return;
    } else
        ring_put(r, chunk, all);
    f->chunk += WARPS;
    if (f->chunk < j.n_chunk)
        return;
    f->chunk = threadIdx.x / 32 % WARPS;
    f->q += TEAMS;
    if (f->q < f->n_panel)
        f->panel = panel_at(j, f->q);
    else
        launch_next();
}

/* ---- results ---- */

/* A finished output of panel q: the warps' sums in order, the row's own scale and minimum, the norm's factor,
 * the bias. An output of 16-bit activations adds both columns. partial: [WARPS][PACK_PANEL][COLUMNS]. */
template <int COLUMNS, class Facts>
__device__ float output_value(const linear_job &j, int q, int row, int m, const float *partial,
                              const Facts &facts) {
    int matrix;
    const int n = panel_find(j, q, &matrix) * PACK_PANEL + row, each = COLUMNS > 1 && j.two ? 2 : 1;
    float v = 0.0f;
    for (int c = 0; c < each; c++) {
        const int column = m * each + c;
        float u = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            u = __fadd_rn(u, partial[(i * PACK_PANEL + row) * COLUMNS + column]);
        if (j.tail) {
            const uint8_t *tail = j.w[matrix] + n / PACK_PANEL * j.panel_bytes + j.tail_at;
            u = __fmul_rn(half_at(tail + 2 * row), u);
            if (j.asym)
                u = __fmaf_rn(half_at(tail + 32 + 2 * row), facts.lift(column), u);
        }
        if (j.norm)
            u = __fmul_rn(u, facts.factor(column));
        v = c ? __fadd_rn(v, u) : u;
    }
    return j.bias[matrix] && n < j.n[matrix] ? __fadd_rn(v, j.bias[matrix][n]) : v;
}

/* The address of an output of panel q; NULL: it is beyond the matrix. */
__device__ __forceinline__ float *output_at(const linear_job &j, int q, int row, int m) {
    int matrix;
    const int n = panel_find(j, q, &matrix) * PACK_PANEL + row;
    return n < j.n[matrix] ? j.y[matrix] + m * j.ldy[matrix] + n : nullptr;
}

/* The value that an output is added to, and the norm's weight for its codes. */
struct output_ahead {
    float before, weight;
};
/* Starts loading these for the outputs of panels [q0, q0 + n) with one column, each in the thread that writes
 * the output, so that the loads overlap with the products. */
__device__ __forceinline__ void outputs_ahead(const linear_job &j, int q0, int n, output_ahead *ahead) {
    const int o = threadIdx.x, step = j.gated ? 2 : 1;
    if ((j.adds || j.leaves.norm) && o < n / step * PACK_PANEL) {
        const float *y = output_at(j, q0 + o / PACK_PANEL * step, o % PACK_PANEL, 0);
        if (y && j.adds)
            copy_ahead<4>(&ahead[o].before, y);
        if (y && j.leaves.norm)
            copy_ahead<4>(&ahead[o].weight, j.leaves.norm + (y - j.y[0]));
    }
    copies_end_group();
}

/* Bytes of a block's output_ahead, for at most this many panels. */
static inline size_t outputs_ahead_bytes(const linear_job &j, int max_panels) {
    const int blocks = job_blocks(j);
    const int panels = j.adds || j.leaves.norm ? (j.n_unit + blocks - 1) / blocks << j.paired : 0;
    return (size_t)(panels < max_panels ? panels : max_panels) * PACK_PANEL * sizeof(output_ahead);
}

/* Writes the outputs of panels [q0, q0 + n), by all threads of a block. With one column each thread has its
 * own output_ahead. */
template <int COLUMNS, class Facts>
__device__ void outputs_write(const linear_job &j, int q0, int n, const float *partial, const Facts &facts,
                              const output_ahead *ahead) {
    enum { SIZE = WARPS * PACK_PANEL * COLUMNS };
    const int n_out = COLUMNS == 1 ? 1 : j.two ? j.n_col / 2 : j.n_col, step = j.gated ? 2 : 1;
    for (int o = threadIdx.x; o < n / step * PACK_PANEL * n_out; o += THREADS) {
        const int row = o % PACK_PANEL, m = o / PACK_PANEL % n_out, p = o / PACK_PANEL / n_out * step;
        float *y = output_at(j, q0 + p, row, m);
        if (!y)
            continue;
        float v = output_value<COLUMNS>(j, q0 + p, row, m, partial + p * SIZE, facts);
        if (j.gated)
            v = __fmul_rn(act_value(j.act, v),
                          output_value<COLUMNS>(j, q0 + p + 1, row, m, partial + (p + 1) * SIZE, facts));
        if (COLUMNS == 1)
            copies_wait<0>();
        v = j.adds ? __fadd_rn(COLUMNS == 1 ? ahead[o].before : *y, v) : v;
        *y = v;
        if (COLUMNS == 1 && j.leaves.codes) /* panels are in pairs, so a warp has a whole group */
            group_leave(j.leaves, (int)(y - j.y[0]), v, ahead[o].weight);
    }
}

#endif
