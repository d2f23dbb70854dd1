/* device.cuh - what every kernel shares: early launches, asynchronous copies, the integer matrix instruction.
 * Differences between architectures stand here and nowhere else. */
#ifndef NIB_KERNELS_CUDA_DEVICE_CUH
#define NIB_KERNELS_CUDA_DEVICE_CUH

#include "kernels/act8.h"
#include "kernels/cuda/cuda_kernels.h"

#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* Waits until the launch before this one has finished and its writes can be seen. */
__device__ __forceinline__ void launch_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* The next launch's blocks may start on multiprocessors that have resources for them. */
__device__ __forceinline__ void launch_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- a ring of stages in shared memory, owned by one warp ----
 *
 * sm_90: one thread starts a bulk copy for each stage. sm_80: 16 bytes a thread. Both end on an mbarrier.
 * sm_75 has neither: a stage is read where it lies. */
struct ring {
    uint8_t *data;
    uint64_t *bars;
    int depth, stride; /* stages, bytes of one */
    int put_slot, get_slot;
    uint32_t get_phase;
    const uint8_t *direct;
    uint64_t policy; /* of the second-level cache: weights are not kept */
};

__device__ __forceinline__ void ring_init(ring *r, uint8_t *data, uint64_t *bars, int depth, int stride) {
    *r = ring{data, bars, depth, stride, 0, 0, 0, nullptr, 0};
#if __CUDA_ARCH__ >= 800
    const uint32_t arrivals = __CUDA_ARCH__ >= 900 ? 1 : 32;
    for (int i = threadIdx.x % 32; i < depth; i += 32)
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bars + i)), "r"(arrivals)
                     : "memory");
#if __CUDA_ARCH__ >= 900
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(r->policy));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncwarp();
#endif
}

/* Starts filling the next stage. All lanes call it; the stage's readers are done. */
__device__ __forceinline__ void ring_put(ring *r, const uint8_t *from, int bytes) {
#if __CUDA_ARCH__ >= 800
    const uint32_t to = shared_address(r->data + r->put_slot * r->stride),
                   bar = shared_address(r->bars + r->put_slot);
    const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                     "l"(from), "r"(bytes), "r"(bar), "l"(r->policy)
                     : "memory");
    }
#else
    for (int i = 16 * lane; i < bytes; i += 512)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i), "l"(from + i) : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
#endif
    r->put_slot = r->put_slot + 1 == r->depth ? 0 : r->put_slot + 1;
#else
    r->direct = from;
#endif
}

/* The oldest stage, once it is there. */
__device__ __forceinline__ const uint8_t *ring_get(ring *r) {
#if __CUDA_ARCH__ >= 800
    const uint32_t bar = shared_address(r->bars + r->get_slot);
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
#else
                     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
#endif
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(bar), "r"(r->get_phase)
                     : "memory");
    } while (!done);
    const uint8_t *stage = r->data + r->get_slot * r->stride;
    if (++r->get_slot == r->depth) {
        r->get_slot = 0;
        r->get_phase ^= 1;
    }
    return stage;
#else
    return r->direct;
#endif
}

/* Whether stages are filled ahead; otherwise each is put just before it is got. */
__device__ __forceinline__ constexpr bool ring_ahead() {
#if __CUDA_ARCH__ >= 800
    return true;
#else
    return false;
#endif
}

/* 4 or 16 bytes into shared memory, in the background: the thread sees those of all but its last LEFT groups
 * after copies_wait, others after a barrier. */
template <int BYTES> __device__ __forceinline__ void copy_ahead(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
                     : "memory");
#else
    if (BYTES == 16)
        *(uint4 *)to = *(const uint4 *)from;
    else
        *(uint32_t *)to = *(const uint32_t *)from;
#endif
}
__device__ __forceinline__ void copies_end_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LEFT> __device__ __forceinline__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

/* d += a . b, 16 rows x 32 of K x 8 columns, unsigned times signed bytes. */
__device__ __forceinline__ void mma(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
#define NIB_MMA(c, a_, b_)                                                                                   \
    asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"                       \
        : "+r"(d[c]), "+r"(d[c + 1])                                                                         \
        : "r"(a_), "r"(b_))
    NIB_MMA(0, a[0], b0);
    NIB_MMA(0, a[2], b1);
    NIB_MMA(2, a[1], b0);
    NIB_MMA(2, a[3], b1);
#undef NIB_MMA
#endif
}

/* N 8 x 8 matrices of halves, transposed: lane 8i + r gives the address of row r of matrix i (shared memory,
 * 16 bytes); lane 4g + t gets the halves at column g of rows 2t and 2t + 1. From 7.5 on. */
__device__ __forceinline__ void matrices_load(uint32_t d[2], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(d[0]), "=r"(d[1])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void matrices_load_four(uint32_t d[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ float2 floats_of(uint32_t halves) {
    return __half22float2(*(const __half2 *)&halves);
}

__device__ __forceinline__ float act_value(int kind, float x) {
    switch (kind) {
    case ACT_SILU: return x / (1.0f + expf(-x));
    case ACT_GELU: return 0.5f * x * erfcf(-x * 0.70710678118654752f);
    case ACT_GELU_TANH: return x / (1.0f + expf(-1.5957691216057308f * fmaf(x * x * x, 0.044715f, x)));
    case ACT_GELU_QUICK: return x / (1.0f + expf(-1.702f * x));
    case ACT_RELU: return x < 0 ? 0 : x;
    default: return x < 0 ? 0 : x * x;
    }
}

/* ---- activations ---- */

/* A slice of activations: its group's scale, and the sum of its codes. */
struct __align__(8) slice_meta {
    float scale;
    int sum;
};

/* A group's scale and its reciprocal, from the bits of the largest of its sizes: they compare as the sizes
 * do, and NaN is the largest. */
__device__ __forceinline__ float2 group_scales(uint32_t most, float top) {
    const float largest = __uint_as_float(most);
    const bool some = most < 0x7f800000u && largest >= ACT8_TINY;
    return make_float2(most >= 0x7f800000u ? __uint_as_float(0x7fc00000u)
                       : some              ? __fdiv_rn(largest, top)
                                           : 0.0f,
                       some ? __fdiv_rn(top, largest) : 0.0f);
}
/* A code in the lowest byte of a float's bits: adding the magic number rounds to the nearest whole, to even.
 */
#define CODE_MAGIC 12582912.0f
__device__ __forceinline__ float code_float(float v, float inverse) {
    return __fadd_rn(__fmul_rn(v, inverse), CODE_MAGIC);
}

/* Where a row's quad of codes lies, counted in dwords: lane t of the matrix instruction takes the quads t and
 * t + 4 of each 32 of K, next to each other. */
__host__ __device__ __forceinline__ int code_quad(int quad) {
    return quad / 8 * 8 + quad % 4 * 2 + quad / 4 % 2;
}

/* The parts of what a launch leaves (cuda_codes): codes, the scale and the sum of each 32; of each 32 the sum
 * of squares before the norm's weights; the largest size of each 32, and floats times these weights. Groups
 * of 32 have the first two, wider ones the last two. They lie apart, so that what stands behind a row stays
 * zero whatever is left. */
struct codes_row {
    uint8_t *codes;
    slice_meta *meta;
    float *squares;
    uint32_t *most; /* bits of floats */
    float *floats;
    const float *norm;
    bool wide;
};
__host__ __device__ __forceinline__ codes_row codes_of(const cuda_codes &c, int64_t k) {
    const int64_t n = (k + TILE_CHUNK_K - 1) / TILE_CHUNK_K * (TILE_CHUNK_K / 32);
    uint8_t *const p = (uint8_t *)c.data;
    return codes_row{p,
                     (slice_meta *)(p + 32 * n),
                     (float *)(p + 40 * n),
                     (uint32_t *)(p + 44 * n),
                     (float *)(p + 48 * n),
                     c.norm,
                     c.group > 32};
}

/* The same of several rows of k, a multiple of 256, in groups of 32: codes and scales in the order in which
 * linear_kept.cu and linear_pair.cu copy them, with room for so many columns, and each row's sums of squares.
 */
struct codes_rows {
    uint8_t *codes;
    float *scales, *squares; /* squares: [column][n_32] */
    const float *norm;
    int columns, n_32;
};
enum { MAX_LEFT_ROWS = 16 };
enum {
    LEFT_ONE = 32 + 8 + 4 + 4 + 128 /* bytes of each 32 of a row alone */,
    LEFT_EACH = 32 + 4 + 4 /* of several */,
    LEFT_BYTES = LEFT_ONE > MAX_LEFT_ROWS *LEFT_EACH ? (int)LEFT_ONE : (int)MAX_LEFT_ROWS *(int)LEFT_EACH
};
__host__ __device__ __forceinline__ int left_columns(int64_t n_row) {
    return n_row <= 4 ? 4 : n_row <= 8 ? 8 : 16;
}
__host__ __device__ __forceinline__ codes_rows codes_rows_of(void *data, const float *norm, int64_t k,
                                                             int64_t n_row) {
    const int columns = left_columns(n_row), n_32 = (int)(k / 32);
    uint8_t *const p = (uint8_t *)data;
    float *const scales = (float *)(p + k * columns);
    return codes_rows{p, scales, scales + (int64_t)n_32 * columns, norm, columns, n_32};
}

/* Where a column's element lies, in bytes, and its slice's scale, in floats, with room for so many columns.
 * Of each tile and eight columns 16 bytes a lane, of each tile and pair of columns the scales of both slices.
 * With room for four columns there are half of the lanes and pairs. */
__host__ __device__ __forceinline__ int code_place(int columns, int column, int i) {
    const int eights = columns > 8 ? 2 : 1, lanes = columns < 8 ? 16 : 32, quad = i / 4 % 8;
    return (((i / 64 * eights + column / 8) * lanes + column % 8 * 4 + quad % 4) * 4 + i / 32 % 2 * 2 +
            quad / 4) *
               4 +
           i % 4;
}
__host__ __device__ __forceinline__ int scale_place(int columns, int column, int slice) {
    const int eights = columns > 8 ? 2 : 1, pairs = columns < 8 ? 2 : 4;
    return ((slice / 2 * eights + column / 8) * pairs + column % 8 / 2) * 4 + slice % 2 * 2 + column % 2;
}

__device__ __forceinline__ uint32_t max_warp(uint32_t m) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(~0u, m);
#else
    for (int o = 1; o < 32; o *= 2)
        m = max(m, __shfl_xor_sync(~0u, m, o));
    return m;
#endif
}
__device__ __forceinline__ int warp_sum(int s) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(~0u, s);
#else
    for (int o = 1; o < 32; o *= 2)
        s += __shfl_xor_sync(~0u, s, o);
    return s;
#endif
}

/* The codes of 32 elements of a row by the largest of their group; a lane has element i. */
__device__ __forceinline__ void codes_leave(const codes_row &to, int i, float v, uint32_t most) {
    const float2 scales = group_scales(most, 127.0f);
    const int code = (int8_t)__float_as_uint(code_float(v, scales.y)), sum = warp_sum(code);
    to.codes[4 * code_quad(i / 4) + i % 4] = (uint8_t)code;
    if (i % 32 == 0)
        to.meta[i / 32] = slice_meta{scales.x, sum};
}

/* Element i of a row among several, v times the norm's weight, by the largest of its 32. */
__device__ __forceinline__ void code_leave(const codes_rows &to, int row, int i, float v, uint32_t most) {
    const float2 scales = group_scales(most, 127.0f);
    to.codes[code_place(to.columns, row, i)] = (uint8_t)__float_as_uint(code_float(v, scales.y));
    if (i % 32 == 0) /* over 16: nibbles.cuh */
        to.scales[scale_place(to.columns, row, i / 32)] = __fmul_rn(scales.x, 0.0625f);
}
/* The sum over the first `lanes` lanes, each with its neighbour, then those of the pairs, and so on. */
__device__ __forceinline__ float pairs_sum(float v, int lanes) {
#pragma unroll
    for (int o = 1; o < 32; o *= 2)
        if (o < lanes)
            v = __fadd_rn(v, __shfl_xor_sync(~0u, v, o));
    return v;
}
/* Leaves element i of a row among several, whose norm's weight is w; a warp has 32 in a row. */
__device__ __forceinline__ void group_leave_among(const codes_rows &to, int row, int i, float v, float w) {
    if (to.norm) {
        const float square = pairs_sum(__fmul_rn(v, v), 32);
        if (i % 32 == 0)
            to.squares[row * to.n_32 + i / 32] = square;
        v = __fmul_rn(v, w);
    }
    code_leave(to, row, i, v, max_warp(__float_as_uint(v) & 0x7fffffffu));
}

/* Leaves element i of a row, whose norm's weight is w; a warp has 32 in a row. */
__device__ __forceinline__ void group_leave(const codes_row &to, int i, float v, float w) {
    const int group = i / 32, in = i % 32;
    if (to.norm) {
        float square = __fmul_rn(v, v);
#pragma unroll
        for (int o = 1; o < 32; o *= 2)
            square = __fadd_rn(square, __shfl_xor_sync(~0u, square, o));
        if (in == 0)
            to.squares[group] = square;
        v = __fmul_rn(v, w);
    }
    const uint32_t most = max_warp(__float_as_uint(v) & 0x7fffffffu);
    if (to.wide) {
        if (to.norm)
            to.floats[i] = v;
        if (in == 0)
            to.most[group] = most;
        return;
    }
    codes_leave(to, i, v, most);
}

/* A launch that may start before the one before it has finished; `together` blocks along z are a cluster. */
template <class... Parameters, class... Arguments>
static int launch_cluster(void (*kernel)(Parameters...), dim3 grid, dim3 block, unsigned together,
                          size_t shared, cuda_stream stream, Arguments... arguments) {
    cudaLaunchAttribute with[2];
    with[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    with[0].val.programmaticStreamSerializationAllowed = 1;
    with[1].id = cudaLaunchAttributeClusterDimension;
    with[1].val.clusterDim.x = with[1].val.clusterDim.y = 1;
    with[1].val.clusterDim.z = together;
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = (cudaStream_t)stream;
    c.attrs = with;
    c.numAttrs = together > 1 ? 2 : 1;
    return (int)cudaLaunchKernelEx(&c, kernel, Parameters(arguments)...);
}
template <class... Parameters, class... Arguments>
static int launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cuda_stream stream,
                  Arguments... arguments) {
    return launch_cluster(kernel, grid, block, 1, shared, stream, arguments...);
}

/* *most becomes at most so many clusters of `together` blocks, which the device has at once. */
template <class Kernel>
static int clusters_max(Kernel kernel, unsigned threads, unsigned together, size_t shared, int *most) {
    cudaLaunchAttribute with = {};
    with.id = cudaLaunchAttributeClusterDimension;
    with.val.clusterDim.x = with.val.clusterDim.y = 1;
    with.val.clusterDim.z = together;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(1, 1, together);
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.attrs = &with;
    c.numAttrs = 1;
    int n = 0;
    const cudaError_t e = cudaOccupancyMaxActiveClusters(&n, kernel, &c);
    *most = n > 0 && n < *most ? n : *most;
    return (int)e;
}

/* Every kernel asks for the same split of a multiprocessor's memory, all of it shared: blocks of two launches
 * can be there together only then. */
template <class Kernel> static int prepare(Kernel kernel, size_t shared) {
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    if (e == cudaSuccess && shared)
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    return (int)e;
}

/* Defined by the files of their families, gathered in table.cu. */
int gtile_launch(const view *w, bool to_gpu, cuda_stream s);
size_t linear_scratch(int64_t n_row, int64_t k, bool two);
/* With matrices of floats (linear_float.cu), any number of rows; scratch is float_scratch() bytes. */
size_t float_scratch(int64_t n_row, int64_t k);
int float_launch(const cuda_linear *a, cuda_stream s);
/* By one of its kernels, as strategies are; by the rule: whichever suits the rows and the device. */
enum linear_kind {
    LINEAR_BY_RULE,
    LINEAR_ONE,
    LINEAR_KEPT,
    LINEAR_PAIR,
    LINEAR_STREAM,
    LINEAR_CLUSTER,
    LINEAR_MANY
};
int linear_launch_as(const cuda_linear *a, linear_kind kind, cuda_stream s);
/* The same products by slices of both operands (sliced.cuh). */
size_t sliced_scratch(int64_t k);
int bitwise_launch(const cuda_linear *a, cuda_stream s);
int bitwise_xor_launch(const cuda_linear *a, cuda_stream s);
int split_launch(const cuda_linear *a, cuda_stream s);
/* strategies.cu */
const cuda_strategy *device_strategies(int *n);
const cuda_unit *device_units(int *n);
int linear_launch(const cuda_linear *a, cuda_stream s);
bool linear_leaves_whole(const cuda_linear *a);
int64_t linear_left_rows(const view *w);
size_t codes_bytes(int64_t k);
bool has_wide(void);
size_t wide_scratch(int64_t n_row, int64_t k);
int wide_launch(const cuda_linear *a, cuda_stream s);
bool has_batch(void);
int batch_launch(const cuda_linear *a, cuda_stream s);
int sparse_launch(const cuda_sparse *a, cuda_stream s);
int prompt_launch(const cuda_attend *a, cuda_stream s);
/* CUDA_UNSUPPORTED: not on this device, or not such heads. */
int prompt_wgmma_launch(const cuda_attend *a, cuda_stream s);
size_t attend_scratch(int64_t n_row, int64_t n_head, int64_t d_head);
int attend_launch(const cuda_attend *a, cuda_stream s);
int store_launch(const cuda_attend *a, cuda_stream s);
int pack_launch(const cuda_attend *a, cuda_stream s);
int move_launch(const cuda_move *a, cuda_stream s);
/* Bytes that are taken of a device, by everybody; 0: not known. */
size_t device_used(int device);
int each_launch(const cuda_each *a, cuda_stream s);
int norm_launch(const cuda_norm *a, cuda_stream s);
int embed_launch(const cuda_embed *a, cuda_stream s);
size_t residual_scratch(int64_t n_row, int64_t k, int64_t k_chunk);
int residual_launch(const cuda_residual *a, cuda_stream s);
int residual_add_launch(const cuda_residual_add *a, cuda_stream s);
size_t sample_scratch(int64_t n_row);
int sample_launch(const cuda_sample *a, cuda_stream s);
bool sketch_takes(const view *head);
int sketch_launch(const view *head, const view *sketch, float *step, cuda_stream s);
size_t shortlist_scratch(void);
int shortlist_launch(const cuda_shortlist *a, cuda_stream s);
int read_all_launch(const void *data, size_t bytes, unsigned *sink, cuda_stream s);
int random_matrix_launch(const view *w, float scale, uint64_t seed, cuda_stream s);
/* Of this thread's device; asked for once. */
int device_sm_count(void);
int device_shared_bytes(void);
int device_major(void);
int device_capability(void); /* 75, 80, ... */

#endif
