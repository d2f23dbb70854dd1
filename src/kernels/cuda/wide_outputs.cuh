/* wide_outputs.cuh - outputs of the products of many rows: the matrix and panel of a block's outputs, and the
 * operations on sums before they are written. A thread has four outputs of a row. */
#ifndef NIB_KERNELS_CUDA_WIDE_OUTPUTS_CUH
#define NIB_KERNELS_CUDA_WIDE_OUTPUTS_CUH

#include "kernels/cuda/row_math.cuh"
#include "kernels/cuda/wide.cuh"

/* The first row and panel of a block, gated panels are counted once; the end of the rows, and their expert.
 */
struct place {
    int row, panel, end, expert;
};
__device__ __forceinline__ const uint8_t *wide_panel_at(const wide_job &j, const place &at, int matrix,
                                                        int panel) {
    return j.w[matrix] + at.expert * j.of.expert_bytes + panel * j.panel_bytes;
}
/* The matrix that panel i of the block's PANELS belongs to, and its number in that matrix. */
template <int PANELS>
__device__ __forceinline__ int wide_panel(const wide_job &j, const place &at, int i, int *matrix) {
    if (j.gated) {
        *matrix = i / (PANELS / 2);
        return at.panel + i % (PANELS / 2);
    }
    const int p = at.panel + i;
    *matrix = matrix_of(j, p);
    return p - j.first[*matrix];
}
template <int PANELS>
__device__ __forceinline__ bool wide_is_there(const wide_job &j, const place &at, int i) {
    return at.panel + (j.gated ? i % (PANELS / 2) : i) < j.n_panel;
}

/* Four outputs of a panel, of which the matrix has n: their scales and biases. */
struct four_outputs {
    float4 scale, bias;
    float *y;
    int64_t ld;
    int n;
    bool whole; /* all four exist, and are aligned in every row */
};
template <int PANELS>
__device__ __forceinline__ four_outputs outputs_of(const wide_job &j, const place &in, int o) {
    int matrix;
    const int panel = wide_panel<PANELS>(j, in, o / PACK_PANEL, &matrix),
              at = panel * PACK_PANEL + o % PACK_PANEL;
    const bool there = wide_is_there<PANELS>(j, in, o / PACK_PANEL);
    four_outputs f = {make_float4(1.0f, 1.0f, 1.0f, 1.0f),
                      make_float4(0.0f, 0.0f, 0.0f, 0.0f),
                      j.y[matrix] + at,
                      j.ldy[matrix],
                      there ? max(0, min(4, j.n[matrix] - at)) : 0,
                      false};
    f.whole = f.n == 4 && (uintptr_t)f.y % sizeof(float4) == 0 && f.ld % 4 == 0 &&
              (!j.of.tiles || j.n[matrix] % 4 == 0);
    const uint8_t *tail = wide_panel_at(j, in, matrix, panel) + j.tail_at + 2 * (o % PACK_PANEL);
    const float *bias = j.bias[matrix] ? j.bias[matrix] + (int64_t)in.expert * j.n[matrix] : nullptr;
    if (there && j.tail && j.scale_kind != SCALE_NONE)
        f.scale = make_float4(half_at(tail), half_at(tail + 2), half_at(tail + 4), half_at(tail + 6));
    if (bias)
        f.bias = make_float4(f.n > 0 ? bias[at] : 0.0f, f.n > 1 ? bias[at + 1] : 0.0f,
                             f.n > 2 ? bias[at + 2] : 0.0f, f.n > 3 ? bias[at + 3] : 0.0f);
    return f;
}

/* The outputs of a row: sums times factor and scale, plus bias. */
__device__ __forceinline__ float4 outputs_value(float4 v, float factor, const four_outputs &f) {
    v.x = __fadd_rn(__fmul_rn(__fmul_rn(v.x, factor), f.scale.x), f.bias.x);
    v.y = __fadd_rn(__fmul_rn(__fmul_rn(v.y, factor), f.scale.y), f.bias.y);
    v.z = __fadd_rn(__fmul_rn(__fmul_rn(v.z, factor), f.scale.z), f.bias.z);
    v.w = __fadd_rn(__fmul_rn(__fmul_rn(v.w, factor), f.scale.w), f.bias.w);
    return v;
}
__device__ __forceinline__ float4 four_add(float4 v, float4 u) {
    return make_float4(__fadd_rn(v.x, u.x), __fadd_rn(v.y, u.y), __fadd_rn(v.z, u.z), __fadd_rn(v.w, u.w));
}

/* The outputs of row `row`. */
__device__ __forceinline__ float *output_row(const wide_job &j, const four_outputs &f, int row) {
    if (!j.of.tiles)
        return f.y + row * f.ld;
    const int pair = __ldcg(j.of.pairs + row);
    return f.y +
           (j.of.part ? pair * j.of.part : pair / j.of.n_used * f.ld + pair % j.of.n_used * (int64_t)j.n[0]);
}

/* The present values of four outputs of row `row`, if the product adds to them. */
__device__ __forceinline__ float4 outputs_before(const wide_job &j, const four_outputs &f, int row,
                                                 bool adds) {
    const float *from = adds ? output_row(j, f, row) : f.y;
    if (!adds)
        return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (f.whole)
        return *(const float4 *)from;
    return make_float4(f.n > 0 ? from[0] : 0.0f, f.n > 1 ? from[1] : 0.0f, f.n > 2 ? from[2] : 0.0f,
                       f.n > 3 ? from[3] : 0.0f);
}
__device__ __forceinline__ void outputs_write(const wide_job &j, const four_outputs &f, int row, float4 v,
                                              bool adds, float4 before) {
    float *to = output_row(j, f, row);
    if (adds)
        v = four_add(before, v);
    if (f.whole) {
        *(float4 *)to = v;
        return;
    }
    const float all[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < f.n)
            to[i] = all[i];
}

template <bool SILU> __device__ __forceinline__ float one_gate(int act, float g, float u) {
    return SILU ? __fmul_rn(silu_fast(g), u) : gate_value(act, g, u);
}
template <bool SILU> __device__ __forceinline__ float4 four_gate(int act, float4 v, float4 u) {
    return make_float4(one_gate<SILU>(act, v.x, u.x), one_gate<SILU>(act, v.y, u.y),
                       one_gate<SILU>(act, v.z, u.z), one_gate<SILU>(act, v.w, u.w));
}
__device__ __forceinline__ float4 four_act(int act, float4 v) {
    return make_float4(act_value(act, v.x), act_value(act, v.y), act_value(act, v.z), act_value(act, v.w));
}

#endif
