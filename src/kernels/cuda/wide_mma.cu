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
__device__ __forceinline__ scale_two scale_of(const wide_job &j, const uint8_t *scales, int group, int row,
                                              scale_two whole) {
    const uint8_t *at = scales + j.scale_start + group * j.scale_step + row;
    switch (j.scale_kind) {
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

/* Four codes as halves: of K 0, 1 and 2, 3. */
__device__ __forceinline__ void four_halves(const wide_job &j, uint32_t codes, __half2 offset, scale_two s,
                                            uint32_t *low, uint32_t *high) {
    const uint32_t a = __byte_perm(codes, 0x64646464u, 0x4140), b = __byte_perm(codes, 0x64646464u, 0x4342);
    __half2 x = __hsub2(*(const __half2 *)&a, offset), y = __hsub2(*(const __half2 *)&b, offset);
    x = j.asym ? __hfma2(x, s.scale, s.min) : __hmul2(x, s.scale);
    y = j.asym ? __hfma2(y, s.scale, s.min) : __hmul2(y, s.scale);
    *low = *(const uint32_t *)&x;
    *high = *(const uint32_t *)&y;
}

/* A tile of the warp's panel as operands of four instructions. */
template <int BITS, bool HALVES>
__device__ __forceinline__ void tile_halves(const wide_job &j, const uint8_t *stage, int tile, int n_tile,
                                            __half2 offset, const scale_two whole[2], uint32_t a[4][4]) {
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
                s[0] = scale_of(j, scales, group, g, whole[0]);
                s[1] = scale_of(j, scales, group, g + 8, whole[1]);
            }
            uint32_t *to = a[2 * h + half];
            four_halves(j, four_codes(v, h, 2 * half), offset, s[0], to, to + 2);
            four_halves(j, four_codes(v, h, 2 * half + 1), offset, s[1], to + 1, to + 3);
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

/* What the block reads, asked for by its first warp: lane i asks for panel i's chunks and row i of images. */
struct feed {
    const uint8_t *panel, *image;
    int tile, chunk, n_there, n_image; /* what is asked for next */
    turn x, w;
};
template <int N> __device__ __forceinline__ feed feed_of(const wide_job &j) {
    const int lane = threadIdx.x % 32, image0 = blockIdx.x * N / WIDE_ROWS;
    int matrix;
    feed f = {nullptr, nullptr, 0, 0, 0, 0, {0, 1}, {0, 1}};
    for (int i = 0; i < WIDE_PANELS; i++)
        f.n_there += wide_is_there(j, i);
    f.n_image = min(N / WIDE_ROWS, (j.n_row + WIDE_ROWS - 1) / WIDE_ROWS - image0);
    if (lane < WIDE_PANELS && wide_is_there(j, lane)) {
        const int p = wide_panel(j, lane, &matrix);
        f.panel = j.w[matrix] + p * j.panel_bytes;
    }
    if (lane < f.n_image)
        f.image = j.x + (int64_t)(image0 + lane) * j.n_tile * WIDE_IMAGE;
    return f;
}
__device__ __forceinline__ void feed_weights(const wide_job &j, feed *f, uint8_t *w, uint64_t *full,
                                             uint64_t *empty) {
    if (f->chunk >= j.n_chunk)
        return;
    const int bytes = f->chunk == j.n_chunk - 1 ? j.last_bytes : j.chunk_bytes, lane = threadIdx.x % 32;
    bar_wait(empty + f->w.slot, f->w.phase);
    if (lane == 0)
        bar_expect(full + f->w.slot, f->n_there * bytes);
    __syncwarp();
    if (f->panel)
        bulk_copy(w + (f->w.slot * WIDE_PANELS + lane) * j.stage_bytes,
                  f->panel + (int64_t)f->chunk * j.chunk_bytes, bytes, full + f->w.slot);
    f->w.next(j.w_stages);
    f->chunk++;
}
template <int N>
__device__ __forceinline__ void feed_images(const wide_job &j, feed *f, uint8_t *x, uint64_t *full, uint64_t *empty) {
    if (f->tile >= j.n_tile)
        return;
    const int lane = threadIdx.x % 32;
    bar_wait(empty + f->x.slot, f->x.phase);
    if (lane == 0)
        bar_expect(full + f->x.slot, f->n_image * WIDE_IMAGE);
    __syncwarp();
    if (f->image)
        bulk_copy(x + f->x.slot * (N * 128) + lane * WIDE_IMAGE, f->image + (int64_t)f->tile * WIDE_IMAGE,
                  WIDE_IMAGE, full + f->x.slot);
    f->x.next(j.x_stages);
    f->tile++;
}

template <int BITS, bool HALVES, int N>
__global__ void __launch_bounds__(MMA_THREADS, 2) wide_mma(const __grid_constant__ wide_job j) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t x_full[MMA_STAGES], x_empty[MMA_STAGES], w_full[MMA_STAGES], w_empty[MMA_STAGES];
    uint8_t *const x = raw + (1024 - shared_address(raw) % 1024) % 1024, *const w = x + j.x_stages * (N * 128);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < MMA_STAGES; i++) {
            bar_init(x_full + i, 1), bar_init(w_full + i, 1);
            bar_init(x_empty + i, 4 * MMA_GROUPS), bar_init(w_empty + i, 4 * MMA_GROUPS);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    launch_next();
    feed f;
    if (warp == 0) {
        f = feed_of<N>(j);
        for (int i = 0; i < j.w_stages; i++)
            feed_weights(j, &f, w, w_full, w_empty);
        launch_wait();
        for (int i = 0; i < j.x_stages - 2; i++)
            feed_images<N>(j, &f, x, x_full, x_empty);
    }
    int matrix;
    const int panel = wide_panel(j, warp, &matrix);
    const bool there = wide_is_there(j, warp);
    const int g = lane / 4, t = lane % 4, at = panel * PACK_PANEL + g;
    const uint8_t *tail = j.w[matrix] + panel * j.panel_bytes + j.tail_at;
    const __half2 offset = __float2half2_rn((float)(1024 + j.zero)), zero = __float2half2_rn(0.0f);
    scale_two whole[2] = {{zero, zero}, {zero, zero}};
    float of_row[2] = {1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = g + 8 * i;
        if (there && j.scale_kind == SCALE_NONE) {
            whole[i].scale = __half2half2(*(const __half *)(tail + 2 * row));
            if (j.asym)
                whole[i].min = __half2half2(*(const __half *)(tail + 32 + 2 * row));
        } else if (there && j.tail)
            of_row[i] = half_at(tail + 2 * row);
    }
    float d[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = 0.0f;
    turn wt = {0, 0}, xt = {0, 0};
    for (int c = 0; c < j.n_chunk; c++) {
        const int n_tile = c == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
        const uint8_t *stage = w + (wt.slot * WIDE_PANELS + warp) * j.stage_bytes;
        bar_wait(w_full + wt.slot, wt.phase);
        for (int i = 0; i < n_tile; i++) {
            uint32_t a[4][4];
            if (warp == 0) {
                feed_images<N>(j, &f, x, x_full, x_empty);
                if (i == 1 && c > 0)
                    feed_weights(j, &f, w, w_full, w_empty);
            }
            tile_halves<BITS, HALVES>(j, stage, i, n_tile, offset, whole, a);
            if (i == n_tile - 1) {
                __syncwarp();
                if (lane == 0)
                    bar_arrive(w_empty + wt.slot);
            }
            bar_wait(x_full + xt.slot, xt.phase);
            const uint64_t b = wgmma_operand(shared_address(x + xt.slot * (N * 128)));
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 4; s++)
                wgmma<N>::add(d, a[s], b + 2 * s);
            wgmma_end_group();
            wgmma_wait<0>();
            if (lane == 0)
                bar_arrive(x_empty + xt.slot);
            xt.next(j.x_stages);
        }
        wt.next(j.w_stages);
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        asm volatile("" : "+f"(d[i])::"memory");
    launch_wait();
    const int n = j.n[matrix], row0 = blockIdx.x * N;
    const float *bias = j.bias[matrix];
    float of_bias[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        of_bias[i] = bias && there && at + 8 * i < n ? bias[at + 8 * i] : 0.0f;
#pragma unroll
    for (int e = 0; e < N / 8; e++) {
        const int row = row0 + 8 * e + 2 * t;
        const float2 factor = row < j.n_row ? *(const float2 *)(j.factor + row) : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < 4; i++)
            d[4 * e + i] = __fadd_rn(__fmul_rn(__fmul_rn(d[4 * e + i], i % 2 ? factor.y : factor.x), of_row[i / 2]),
                                     of_bias[i / 2]);
    }
    if (j.gated) {
        float *const others = (float *)x;
        asm volatile("bar.sync 1, 256;" ::: "memory");
        if (group == 1)
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                others[i * 128 + threadIdx.x % 128] = d[i];
        asm volatile("bar.sync 1, 256;" ::: "memory");
        if (group == 1)
            return;
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            d[i] = __fmul_rn(act_value(j.act, d[i]), others[i * 128 + threadIdx.x]);
    }
    if (!there)
        return;
    float *const y = j.y[matrix] + at;
    const int64_t ld = j.ldy[matrix];
#pragma unroll
    for (int e = 0; e < N / 8; e++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = row0 + 8 * e + 2 * t + i % 2;
            float *to = y + row * ld + i / 2 * 8;
            if (row < j.n_row && at + i / 2 * 8 < n)
                *to = j.adds ? __fadd_rn(*to, d[4 * e + i]) : d[4 * e + i];
        }
#endif
}

/* ---- launching ---- */

typedef void (*wide_kernel)(const wide_job);

template <int N> static wide_kernel kernel_of(int bits, bool halves) {
    static const wide_kernel all[9] = {nullptr,
                                       nullptr,
                                       wide_mma<2, false, N>,
                                       wide_mma<3, false, N>,
                                       wide_mma<4, false, N>,
                                       wide_mma<5, false, N>,
                                       wide_mma<6, false, N>,
                                       wide_mma<7, false, N>,
                                       wide_mma<8, false, N>};
    if (!halves)
        return all[bits];
    return bits == 2   ? wide_mma<2, true, N>
           : bits == 3 ? wide_mma<3, true, N>
           : bits == 6 ? wide_mma<6, true, N>
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

int wide_mma_launch(wide_job *j, int bits, bool halves, cuda_stream s) {
    const int n = j->n_row <= 64 ? 64 : 128;
    const wide_kernel kernel = n == 64 ? kernel_of<64>(bits, halves) : kernel_of<128>(bits, halves);
    if (!kernel || (j->scale_kind == SCALE_BYTE && j->asym))
        return CUDA_UNSUPPORTED;
    size_t room = room_of(j, n, 2);
    if (j->x_stages < 3)
        room = room_of(j, n, 1);
    const int each = j->gated ? WIDE_PANELS / 2 : WIDE_PANELS;
    const dim3 grid((unsigned)((j->n_row + n - 1) / n), (unsigned)((j->n_panel + each - 1) / each));
    const int e = prepare(kernel, room);
    return e ? e : launch(kernel, grid, dim3(MMA_THREADS), room, s, *j);
}
