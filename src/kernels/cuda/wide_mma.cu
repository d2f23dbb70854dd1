/* wide_mma.cu - products of many rows on sm_90a: packed weights go through registers to the matrix instruction.
 *
 * A block has 8 panels (128 outputs) and N rows of x. Its first warp asks for what all of them read: chunks of
 * panels, and images of x (wide.cuh), each through a ring of stages in shared memory; what it fills anew was
 * read two tiles before. Two groups of 4 warps
 * have 4 panels each, a warp one: it brings a tile (64 of K) of its panel to halves, w = scale * (code - zero)
 * + min, rounded once or twice, and the group multiplies it with the image. While one group does the first,
 * the other one and those of the multiprocessor's other block do the second. Gate and up are the two groups'.
 *
 * A result has one order of sums, that of K: it does not depend on the rows beside it. */
#include "kernels/cuda/wide.cuh"

#include "kernels/cuda/wgmma.cuh"

enum { MMA_GROUPS = 2, MMA_THREADS = 128 * MMA_GROUPS, MMA_STAGES = 8 };
enum { ANY_SCALE = -1 /* the job says which */ };

#ifdef NIB_SM90A
bool wide_mma_is_built(void) {
    return device_major() == 9;
}
#else
bool wide_mma_is_built(void) {
    return false;
}
#endif

__device__ __forceinline__ void bar_init(uint64_t *bar, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void bar_arrive(uint64_t *bar) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ void bar_expect(uint64_t *bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bar_wait(uint64_t *bar, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                 "@p bra there;\n"
                 "bra again;\n"
                 "there:\n}" ::"r"(shared_address(bar)),
                 "r"(phase)
                 : "memory");
#endif
}
__device__ __forceinline__ void bulk_copy(void *to, const void *from, int bytes, uint64_t *bar) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(bar))
                 : "memory");
#endif
}

/* A place in a ring. */
struct turn {
    int slot;
    uint32_t phase;
    __device__ void next(int n) {
        if (++slot == n) {
            slot = 0;
            phase ^= 1;
        }
    }
};

/* Codes of dword i of the tile's half h, in bytes. */
template <int BITS> __device__ __forceinline__ uint32_t four_codes(const tile_lane<BITS> &v, int h, int i) {
    if (BITS == 8)
        return v.d[4 * h + i];
    uint32_t u = 0;
    if (BITS & 4)
        u |= field(v.d[i], 4 * h, 4, BITS & 3);
    if (BITS & 2)
        u |= field(v.d2[i % 2], 4 * h + i / 2 * 2, 2, BITS & 1);
    if (BITS & 1)
        u |= field(v.d1[i % 2], 4 * h + i / 2 * 2, 1, 0);
    return u;
}

/* Scale and minimum of a row's group, twice each. */
struct scale_two {
    __half2 scale, min;
};
template <int KIND>
__device__ __forceinline__ scale_two scale_of(const wide_job &j, const uint8_t *scales, int group, int row,
                                              scale_two whole) {
    const uint8_t *at = scales + j.scale_start + group * j.scale_step + row;
    switch (KIND == ANY_SCALE ? j.scale_kind : KIND) {
    case SCALE_HALF: whole.scale = __half2half2(*(const __half *)(at + row)); break;
    case SCALE_HALF_MIN:
        whole.scale = __half2half2(*(const __half *)(at + row));
        whole.min = __half2half2(*(const __half *)(at + row + 32));
        break;
    case SCALE_SUPER_MIN:
        whole.min = __float2half2_rn(__fmul_rn(half_at(scales + 32 + 2 * row), (float)(int8_t)at[16])); /* fall through */
    case SCALE_SUPER:
        whole.scale = __float2half2_rn(__fmul_rn(half_at(scales + 2 * row), (float)(int8_t)*at));
        break;
    case SCALE_BYTE: whole.scale = __float2half2_rn((float)*at); break;
    default: break;
    }
    return whole;
}

__device__ __forceinline__ __half2 as_halves(uint32_t u) {
    return *(const __half2 *)&u;
}

/* Two codes, exact in halves, by their scale and minimum. */
template <int KIND>
__device__ __forceinline__ uint32_t two_weights(const wide_job &j, __half2 codes, const scale_two &s) {
    const __half2 w = KIND == ANY_SCALE && j.asym ? __hfma2(codes, s.scale, s.min) : __hmul2(codes, s.scale);
    return *(const uint32_t *)&w;
}

/* The number of a warp's codes of 0, and its parts. */
struct code_zero {
    __half2 low /* 1024 + zero */, high /* -(64 + zero) */;
};

/* The four weights of dword i of the tile's half h: those of K 0, 2 and of 1, 3. A code in the low bits of
 * the half 1024 is 1024 + code; one that lies 4 bits higher is 1024 + 16 code. */
template <int BITS, int KIND>
__device__ __forceinline__ void four_weights(const wide_job &j, const tile_lane<BITS> &v, int h, int i,
                                             const code_zero &zero, const scale_two &s, uint32_t *even,
                                             uint32_t *odd) {
    const uint32_t one = 0x64006400u;
    __half2 x, y;
    if (BITS == 4) {
        const uint32_t low = v.d[i], next = v.d[i] >> 8;
        const __half2 part = __float2half2_rn(1.0f / 16);
        if (h == 0) {
            x = __hsub2(as_halves((low & 0x000f000fu) | one), zero.low);
            y = __hsub2(as_halves((next & 0x000f000fu) | one), zero.low);
        } else {
            x = __hfma2(as_halves((low & 0x00f000f0u) | one), part, zero.high);
            y = __hfma2(as_halves((next & 0x00f000f0u) | one), part, zero.high);
        }
    } else {
        const uint32_t codes = four_codes(v, h, i);
        x = __hsub2(as_halves(__byte_perm(codes, 0x64646464u, 0x4240)), zero.low);
        y = __hsub2(as_halves(__byte_perm(codes, 0x64646464u, 0x4341)), zero.low);
    }
    *even = two_weights<KIND>(j, x, s);
    *odd = two_weights<KIND>(j, y, s);
}

/* A tile of the warp's panel as operands of four instructions. */
template <int BITS, bool HALVES, int KIND>
__device__ __forceinline__ void tile_halves(const wide_job &j, const uint8_t *stage, int tile, int n_tile,
                                            const code_zero &zero, const scale_two whole[2], uint32_t (&a)[4][4]) {
    const int lane = threadIdx.x % 32, g = lane / 4;
    const uint8_t *scales = stage + n_tile * BITS * 128;
    tile_lane<BITS> v;
    tile_load(&v, stage + tile * BITS * 128, lane);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        scale_two s[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (half == 0 || HALVES) {
                const int group = (HALVES ? 4 * tile + 2 * h + half : 2 * tile + h) >> j.group_shift;
                s[0] = scale_of<KIND>(j, scales, group, g, whole[0]);
                s[1] = scale_of<KIND>(j, scales, group, g + 8, whole[1]);
            }
            uint32_t *to = a[2 * h + half];
            four_weights<BITS, KIND>(j, v, h, 2 * half, zero, s[0], to, to + 2);
            four_weights<BITS, KIND>(j, v, h, 2 * half + 1, zero, s[1], to + 1, to + 3);
        }
    }
}

/* Which matrix a panel of the block's is of, and its number there. */
__device__ __forceinline__ int wide_panel(const wide_job &j, int i, int *matrix) {
    if (j.gated) {
        *matrix = i / 4;
        return blockIdx.y * 4 + i % 4;
    }
    const int p = blockIdx.y * WIDE_PANELS + i;
    *matrix = (p >= j.first[1]) + (p >= j.first[2]);
    return p - j.first[*matrix];
}
__device__ __forceinline__ bool wide_is_there(const wide_job &j, int i) {
    return j.gated ? (int)blockIdx.y * 4 + i % 4 < j.n_panel : (int)blockIdx.y * WIDE_PANELS + i < j.n_panel;
}

/* The chunks of K that a block of its cluster has: one at least (splits_of). */
struct stretch {
    int first, end;
};
__device__ __forceinline__ stretch stretch_of(const wide_job &j) {
    const int blocks = (int)gridDim.z, z = (int)blockIdx.z;
    return {j.n_chunk * z / blocks, j.n_chunk * (z + 1) / blocks};
}

/* What the block reads, asked for by its first warp: lane i asks for panel i's chunks, lane WIDE_PANELS + i
 * for row i of images. */
struct feed {
    const uint8_t *from; /* the lane's next */
    int tiles, chunks;   /* left */
    int w_bytes, x_bytes; /* of a stage */
    turn x, w;
};
template <int N> __device__ __forceinline__ feed feed_of(const wide_job &j, stretch k) {
    const int lane = threadIdx.x % 32, image0 = blockIdx.x * N / WIDE_ROWS;
    const int n_image = min(N / WIDE_ROWS, (j.n_row + WIDE_ROWS - 1) / WIDE_ROWS - image0);
    feed f = {nullptr, min(k.end * TILE_CHUNK, j.n_tile) - k.first * TILE_CHUNK, k.end - k.first, 0,
              n_image * WIDE_IMAGE, {0, 1}, {0, 1}};
    for (int i = 0; i < WIDE_PANELS; i++)
        f.w_bytes += wide_is_there(j, i);
    if (lane < WIDE_PANELS && wide_is_there(j, lane)) {
        int matrix;
        const int p = wide_panel(j, lane, &matrix);
        f.from = j.w[matrix] + p * j.panel_bytes + (int64_t)k.first * j.chunk_bytes;
    } else if (lane >= WIDE_PANELS && lane < WIDE_PANELS + n_image)
        f.from = j.x + ((int64_t)(image0 + lane - WIDE_PANELS) * j.n_tile + k.first * TILE_CHUNK) * WIDE_IMAGE;
    return f;
}
__device__ __forceinline__ void feed_weights(const wide_job &j, feed *f, int to_last, uint8_t *w, uint64_t *full,
                                             uint64_t *empty) {
    if (f->chunks == 0)
        return;
    const int lane = threadIdx.x % 32, bytes = --f->chunks == to_last ? j.last_bytes : j.chunk_bytes;
    bar_wait(empty + f->w.slot, f->w.phase);
    if (lane == 0)
        bar_expect(full + f->w.slot, f->w_bytes * bytes);
    __syncwarp();
    if (lane < WIDE_PANELS && f->from) {
        bulk_copy(w + (f->w.slot * WIDE_PANELS + lane) * j.stage_bytes, f->from, bytes, full + f->w.slot);
        f->from += j.chunk_bytes;
    }
    f->w.next(j.w_stages);
}
template <int N>
__device__ __forceinline__ void feed_images(const wide_job &j, feed *f, uint8_t *x, uint64_t *full, uint64_t *empty) {
    if (f->tiles == 0)
        return;
    const int lane = threadIdx.x % 32;
    f->tiles--;
    bar_wait(empty + f->x.slot, f->x.phase);
    if (lane == 0)
        bar_expect(full + f->x.slot, f->x_bytes);
    __syncwarp();
    if (lane >= WIDE_PANELS && f->from) {
        bulk_copy(x + f->x.slot * (N * 128) + (lane - WIDE_PANELS) * WIDE_IMAGE, f->from, WIDE_IMAGE,
                  full + f->x.slot);
        f->from += WIDE_IMAGE;
    }
    f->x.next(j.x_stages);
}

__device__ __forceinline__ void cluster_meet() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/* An address of this block's shared memory, in the cluster's block `rank`. */
__device__ __forceinline__ uint32_t address_in(uint32_t at, int rank) {
    uint32_t there = at;
#if __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
#endif
    return there;
}
__device__ __forceinline__ void store_in(uint32_t there, float v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(v) : "memory");
#endif
}

/* Floats from row to row of results in shared memory: what a warp writes lies in different banks. */
enum { WIDE_OUTPUTS = WIDE_PANELS * PACK_PANEL, RESULT_LINE = WIDE_OUTPUTS + 4 };

/* Results of N rows, those of the blocks that share K apart: each block gets its part of the rows from all of
 * them, [blocks][N / blocks][RESULT_LINE] in shared memory. */
template <int N> __device__ __forceinline__ void results_leave(const float (&d)[N / 2], float *room) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, rows = N / (int)gridDim.z;
    const uint32_t at = shared_address(room + (blockIdx.z * rows + 2 * t) * RESULT_LINE + threadIdx.x / 32 * PACK_PANEL + g);
    cluster_meet(); /* all have read what they asked for */
#pragma unroll
    for (int e = 0; e < N / 8; e++) {
        const int to = 8 * e / rows;
        const uint32_t there = address_in(at + (8 * e - to * rows) * RESULT_LINE * (uint32_t)sizeof(float), to);
#pragma unroll
        for (int i = 0; i < 4; i++)
            store_in(there + (i % 2 * RESULT_LINE + i / 2 * 8) * (uint32_t)sizeof(float), d[4 * e + i]);
    }
    cluster_meet();
}

/* Four outputs of a panel, of which `n` are there: what they are multiplied with and what is added. */
struct four_outputs {
    float4 scale, bias;
    float *y;
    int64_t ld;
    int n;
};
__device__ __forceinline__ four_outputs outputs_of(const wide_job &j, int o) {
    int matrix;
    const int panel = wide_panel(j, o / PACK_PANEL, &matrix), at = panel * PACK_PANEL + o % PACK_PANEL;
    const bool there = wide_is_there(j, o / PACK_PANEL);
    four_outputs f = {make_float4(1.0f, 1.0f, 1.0f, 1.0f), make_float4(0.0f, 0.0f, 0.0f, 0.0f), j.y[matrix] + at,
                      j.ldy[matrix], there ? max(0, min(4, j.n[matrix] - at)) : 0};
    const uint8_t *tail = j.w[matrix] + panel * j.panel_bytes + j.tail_at + 2 * (o % PACK_PANEL);
    const float *bias = j.bias[matrix];
    if (there && j.tail && j.scale_kind != SCALE_NONE)
        f.scale = make_float4(half_at(tail), half_at(tail + 2), half_at(tail + 4), half_at(tail + 6));
    if (bias)
        f.bias = make_float4(f.n > 0 ? bias[at] : 0.0f, f.n > 1 ? bias[at + 1] : 0.0f, f.n > 2 ? bias[at + 2] : 0.0f,
                             f.n > 3 ? bias[at + 3] : 0.0f);
    return f;
}

/* Those of a row: the sums of all blocks in their order, times their factors. */
__device__ __forceinline__ float4 outputs_read(const float *from, int rows, int blocks, float factor,
                                               const four_outputs &f) {
    float4 v = *(const float4 *)from;
    for (int b = 1; b < blocks; b++) {
        const float4 u = *(const float4 *)(from + b * rows * RESULT_LINE);
        v.x = __fadd_rn(v.x, u.x), v.y = __fadd_rn(v.y, u.y), v.z = __fadd_rn(v.z, u.z), v.w = __fadd_rn(v.w, u.w);
    }
    v.x = __fadd_rn(__fmul_rn(__fmul_rn(v.x, factor), f.scale.x), f.bias.x);
    v.y = __fadd_rn(__fmul_rn(__fmul_rn(v.y, factor), f.scale.y), f.bias.y);
    v.z = __fadd_rn(__fmul_rn(__fmul_rn(v.z, factor), f.scale.z), f.bias.z);
    v.w = __fadd_rn(__fmul_rn(__fmul_rn(v.w, factor), f.scale.w), f.bias.w);
    return v;
}

__device__ __forceinline__ void outputs_write(float *to, float4 v, int n, bool adds) {
    if (n == 4 && (uintptr_t)to % sizeof v == 0) {
        if (adds) {
            const float4 u = *(const float4 *)to;
            v.x = __fadd_rn(u.x, v.x), v.y = __fadd_rn(u.y, v.y), v.z = __fadd_rn(u.z, v.z), v.w = __fadd_rn(u.w, v.w);
        }
        *(float4 *)to = v;
        return;
    }
    const float all[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < n)
            to[i] = adds ? __fadd_rn(to[i], all[i]) : all[i];
}

/* The block's part of the rows, to memory: a lane has four outputs. */
template <int N> __device__ __forceinline__ void results_write(const wide_job &j, const float *room) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = (int)gridDim.z, rows = N / blocks;
    const int across = j.gated ? 2 : 1, o = lane % (32 / across) * 4; /* rows of a warp at a time */
    const four_outputs f = outputs_of(j, o), up = outputs_of(j, j.gated ? WIDE_OUTPUTS / 2 + o : o);
    for (int r = warp * across + lane / (32 / across); r < rows; r += MMA_THREADS / 32 * across) {
        const int row = blockIdx.x * N + blockIdx.z * rows + r;
        const float *from = room + r * RESULT_LINE + o;
        if (row >= j.n_row)
            return;
        float4 v = outputs_read(from, rows, blocks, j.factor[row], f);
        if (j.gated) {
            const float4 u = outputs_read(from + WIDE_OUTPUTS / 2, rows, blocks, j.factor[row], up);
            v.x = __fmul_rn(act_value(j.act, v.x), u.x), v.y = __fmul_rn(act_value(j.act, v.y), u.y);
            v.z = __fmul_rn(act_value(j.act, v.z), u.z), v.w = __fmul_rn(act_value(j.act, v.w), u.w);
        }
        outputs_write(f.y + row * f.ld, v, f.n, j.adds);
    }
}

/* The block's rings and where a warp is in them. */
template <int BITS, bool HALVES, int N, int KIND> struct walk {
    const wide_job &j;
    uint8_t *x, *w;
    uint64_t *x_full, *x_empty, *w_full, *w_empty;
    int warp, lane;
    code_zero zero;
    scale_two whole[2];
    turn wt, xt;
    int tile, n_tile, chunk; /* the next tile of its chunk, the chunk's tiles, its number */

    /* The next tile of weights. */
    __device__ __forceinline__ void take(uint32_t (&a)[4][4]) {
        if (tile == 0)
            bar_wait(w_full + wt.slot, wt.phase);
        tile_halves<BITS, HALVES, KIND>(j, w + (wt.slot * WIDE_PANELS + warp) * j.stage_bytes, tile, n_tile, zero,
                                        whole, a);
        if (++tile < n_tile)
            return;
        __syncwarp();
        if (lane == 0)
            bar_arrive(w_empty + wt.slot);
        wt.next(j.w_stages);
        tile = 0;
        n_tile = ++chunk == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
    }
    /* Multiplies one of weights with the next of x, in the background. */
    __device__ __forceinline__ void multiply(float (&d)[N / 2], const uint32_t (&a)[4][4]) {
        bar_wait(x_full + xt.slot, xt.phase);
        const uint64_t b = wgmma_operand(shared_address(x + xt.slot * (N * 128)));
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; s++)
            wgmma<N>::add(d, a[s], b + 2 * s);
        wgmma_end_group();
        xt.next(j.x_stages);
    }
};

template <int BITS, bool HALVES, int N, int KIND>
__global__ void __launch_bounds__(MMA_THREADS, N <= 64 ? 2 : 1) wide_mma(const __grid_constant__ wide_job j) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t x_full[MMA_STAGES], x_empty[MMA_STAGES], w_full[MMA_STAGES], w_empty[MMA_STAGES];
    uint8_t *const x = raw + (1024 - shared_address(raw) % 1024) % 1024, *const w = x + j.x_stages * (N * 128);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const stretch k = stretch_of(j);
    if (threadIdx.x == 0) {
        for (int i = 0; i < MMA_STAGES; i++) {
            bar_init(x_full + i, 1), bar_init(w_full + i, 1);
            bar_init(x_empty + i, 4 * MMA_GROUPS), bar_init(w_empty + i, 4 * MMA_GROUPS);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    launch_next();
    const int to_last = k.end == j.n_chunk ? 0 : -1;
    feed f;
    if (warp == 0) {
        f = feed_of<N>(j, k);
        for (int i = 0; i < j.w_stages; i++)
            feed_weights(j, &f, to_last, w, w_full, w_empty);
        launch_wait();
        for (int i = 0; i < j.x_stages - 2; i++)
            feed_images<N>(j, &f, x, x_full, x_empty);
    }
    int matrix;
    const int panel = wide_panel(j, warp, &matrix);
    const bool there = wide_is_there(j, warp);
    const int g = lane / 4;
    const uint8_t *tail = j.w[matrix] + panel * j.panel_bytes + j.tail_at;
    const __half2 none = __float2half2_rn(0.0f);
    walk<BITS, HALVES, N, KIND> on = {
        j, x, w, x_full, x_empty, w_full, w_empty, warp, lane,
        {__float2half2_rn((float)(1024 + j.zero)), __float2half2_rn(-(float)(64 + j.zero))},
        {{none, none}, {none, none}}, {0, 0}, {0, 0}, 0, k.first == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK, k.first};
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (there && KIND == ANY_SCALE && j.scale_kind == SCALE_NONE) {
            on.whole[i].scale = __half2half2(*(const __half *)(tail + 2 * (g + 8 * i)));
            if (j.asym)
                on.whole[i].min = __half2half2(*(const __half *)(tail + 32 + 2 * (g + 8 * i)));
        }
    float d[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = 0.0f;
    const int n_tile = min(k.end * TILE_CHUNK, j.n_tile) - k.first * TILE_CHUNK;
    uint32_t a[2][4][4];
    on.take(a[0]);
    for (int i = 0; i < n_tile; i += 2) {
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            if (i + odd >= n_tile)
                break;
            const int slot = on.xt.slot;
            on.multiply(d, a[odd]);
            if (i + odd > 0) {
                /* What was multiplied before has been read: its place is free, and so are its weights. */
                wgmma_wait<1>();
                if (lane == 0)
                    bar_arrive(x_empty + (slot ? slot : j.x_stages) - 1);
            }
            if (warp == 0) {
                feed_images<N>(j, &f, x, x_full, x_empty);
                if (on.tile == 1 && on.chunk > k.first)
                    feed_weights(j, &f, to_last, w, w_full, w_empty);
            }
            if (i + odd + 1 < n_tile)
                on.take(a[1 - odd]);
        }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        asm volatile("" : "+f"(d[i])::"memory");
    results_leave<N>(d, (float *)x);
    launch_wait();
    results_write<N>(j, (const float *)x);
#endif
}

/* ---- launching ---- */

typedef void (*wide_kernel)(const wide_job);

template <int N> static wide_kernel kernel_of(const wide_job *j, int bits, bool halves) {
    static const wide_kernel all[9] = {nullptr,
                                       nullptr,
                                       wide_mma<2, false, N, ANY_SCALE>,
                                       wide_mma<3, false, N, ANY_SCALE>,
                                       wide_mma<4, false, N, ANY_SCALE>,
                                       wide_mma<5, false, N, ANY_SCALE>,
                                       wide_mma<6, false, N, ANY_SCALE>,
                                       wide_mma<7, false, N, ANY_SCALE>,
                                       wide_mma<8, false, N, ANY_SCALE>};
    if (bits == 4 && j->scale_kind == SCALE_HALF)
        return wide_mma<4, false, N, SCALE_HALF>;
    if (!halves)
        return all[bits];
    return bits == 2   ? wide_mma<2, true, N, ANY_SCALE>
           : bits == 3 ? wide_mma<3, true, N, ANY_SCALE>
           : bits == 6 ? wide_mma<6, true, N, ANY_SCALE>
                       : nullptr;
}

/* Room for `blocks` of them on a multiprocessor: weights in two stages, the rest images. */
static size_t room_of(wide_job *j, int n, int blocks) {
    enum { RESERVED = 1024, STATIC = 512, ALIGN = 1024 };
    const int all = (device_shared_bytes() + RESERVED) / blocks - RESERVED - STATIC - ALIGN;
    const int weights = WIDE_PANELS * j->stage_bytes;
    j->w_stages = 2;
    j->x_stages = (all - 2 * weights) / (n * 128);
    j->x_stages = j->x_stages > MMA_STAGES ? MMA_STAGES : j->x_stages;
    return (size_t)(j->x_stages * n * 128 + 2 * weights + ALIGN);
}

/* Blocks that share K: few outputs leave multiprocessors without work. It depends on the matrix and not on
 * the rows, so a row's sums have one order. */
static unsigned splits_of(const wide_job *j) {
    enum { FEW = 384, VERY_FEW = 192 /* panels */, MIN_CHUNKS = 4 };
    if (j->gated || j->n_panel > FEW || j->n_chunk < 2 * MIN_CHUNKS)
        return 1;
    return j->n_panel <= VERY_FEW ? 4 : 2;
}

int wide_mma_launch(wide_job *j, int bits, bool halves, cuda_stream s) {
    enum { MIN_STAGES = 4 }; /* N x RESULT_LINE floats are no more */
    static_assert(RESULT_LINE * (int)sizeof(float) <= MIN_STAGES * 2 * TILE_K + TILE_K, "results fit");
    const int n = j->n_row <= 128 ? 64 : 256;
    const wide_kernel kernel = n == 64 ? kernel_of<64>(j, bits, halves) : kernel_of<256>(j, bits, halves);
    if (!kernel || (j->scale_kind == SCALE_BYTE && j->asym))
        return CUDA_UNSUPPORTED;
    size_t room = room_of(j, n, n == 64 ? 2 : 1);
    if (j->x_stages < MIN_STAGES)
        room = room_of(j, n, 1);
    if (j->x_stages < MIN_STAGES)
        return CUDA_UNSUPPORTED;
    const int each = j->gated ? WIDE_PANELS / 2 : WIDE_PANELS;
    const dim3 grid((unsigned)((j->n_row + n - 1) / n), (unsigned)((j->n_panel + each - 1) / each), splits_of(j));
    const int e = prepare(kernel, room);
    return e ? e : launch_cluster(kernel, grid, dim3(MMA_THREADS), grid.z, room, s, *j);
}
