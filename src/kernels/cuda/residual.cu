/* residual.cu - QDEC's fused kernel (paper 4.3): the channels of a row's largest activations are chosen;
 * after a barrier of all blocks their residuals are fetched from host memory that the device sees (zero-copy)
 * and multiplied.
 *
 * Choosing is that of kernels/lanes/residual.h, bit by bit: a chunk of 1,024 channels is one block's.
 * Fetching goes by segments of 256 outputs: with 4 bits a warp reads 128 neighbouring bytes at once. Four
 * warps have a segment, each every fourth channel, CHANNELS of them in flight; their sums are added in the
 * warps' order. So a sum does not depend on the number of blocks. Blocks are launched together
 * (cooperatively) and small enough to stand beside one of a product. */
#include "kernels/cuda/grid.cuh"
#include "kernels/salient.h"

enum {
    RESIDUAL_THREADS = 512,
    WARPS = RESIDUAL_THREADS / 32,
    SEGMENT = 256,            /* outputs */
    SHARE = 4,                /* warps of a segment */
    TOGETHER = WARPS / SHARE, /* segments of a block at a time */
    CHANNELS = 16,
    CHUNK = SALIENT_CHUNK
};

struct residual_job {
    cuda_residual a;
    int n_pick, want, last_want; /* of a row, of a whole chunk, of a shorter last one */
    float reach, last_reach;     /* salient_reach */
};

/* ---- choosing ---- */

struct choice {
    float x[CHUNK];
    int count[SALIENT_BUCKETS];
    unsigned above[CHUNK / 32], last[CHUNK / 32]; /* a bit a channel */
    int above_before[CHUNK / 32], last_before[CHUNK / 32];
    float boundary, times_above, times_below;
    int bucket, of_last; /* the last bucket that gives any, and how many */
};

__device__ static void scales_of(choice *c, int n, float reach) {
    const int lane = threadIdx.x % 32;
    float sum = 0.0f, peak = 0.0f;
#pragma unroll 16
    for (int i = lane % 16; i < CHUNK; i += 16) {
        const float v = c->x[i];
        sum = __fmaf_rn(v, v, sum);
        peak = peak > fabsf(v) ? peak : fabsf(v);
    }
    for (int o = 8; o > 0; o /= 2) {
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
        const float other = __shfl_xor_sync(~0u, peak, o);
        peak = peak > other ? peak : other;
    }
    float b = __fmul_rn(reach, __fsqrt_rn(__fdiv_rn(sum, (float)n)));
    if (!(b < peak))
        b = 0.5f * peak;
    if (lane == 0) {
        c->boundary = b;
        c->times_above = peak > b ? __fdiv_rn(16.0f, __fsub_rn(peak, b)) : 0.0f;
        c->times_below = b > 0.0f ? __fdiv_rn(16.0f, b) : 0.0f;
    }
}

__device__ static int bucket_of(const choice *c, float x) {
    const float v = fabsf(x), b = c->boundary;
    const float at = v < b ? __fmul_rn(v, c->times_below) : __fmaf_rn(__fsub_rn(v, b), c->times_above, 16.0f);
    const float most = SALIENT_BUCKETS - 1;
    return 0.0f < at ? (int)(at < most ? at : most) : 0;
}

/* One addition for all lanes of a bucket: most channels are in a few of them. -1: in none. */
__device__ static void count_bucket(choice *c, int bucket) {
#if __CUDA_ARCH__ >= 700
    const unsigned same = __match_any_sync(~0u, bucket);
    if (bucket >= 0 && (int)threadIdx.x % 32 == __ffs(same) - 1)
        atomicAdd(&c->count[bucket], __popc(same));
#endif
}

/* By one warp: the lane's bucket is counted from the strongest on. */
__device__ static void last_bucket(choice *c, int want) {
    const int lane = threadIdx.x % 32, own = c->count[SALIENT_BUCKETS - 1 - lane];
    int sum = own;
    for (int o = 1; o < 32; o *= 2) {
        const int up = __shfl_up_sync(~0u, sum, o);
        sum += lane >= o ? up : 0;
    }
    const unsigned enough = __ballot_sync(~0u, sum >= want);
    const int at = enough ? __ffs(enough) - 1 : 31;
    if (lane == at) {
        c->bucket = SALIENT_BUCKETS - 1 - lane;
        c->of_last = want - (sum - own);
    }
}

/* By one warp: how many stand before each 32 channels. */
__device__ static void count_before(const unsigned *bits, int *before) {
    const int lane = threadIdx.x % 32, own = __popc(bits[lane]);
    int sum = own;
    for (int o = 1; o < 32; o *= 2) {
        const int up = __shfl_up_sync(~0u, sum, o);
        sum += lane >= o ? up : 0;
    }
    before[lane] = sum - own;
}

/* Channels [first, first + n) of x: `want` of them, ascending, to `out`. */
__device__ static void choose(choice *c, const float *x, const float *norm, int first, int n, int want,
                              float reach, salient *out) {
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    __syncthreads();
    for (int i = t; i < CHUNK; i += RESIDUAL_THREADS) {
        const float v = i < n ? x[first + i] : 0.0f;
        c->x[i] = norm && i < n ? __fmul_rn(v, norm[first + i]) : v;
    }
    if (t < SALIENT_BUCKETS)
        c->count[t] = 0;
    __syncthreads();
    if (warp == 0)
        scales_of(c, n, reach);
    __syncthreads();
    int bucket[CHUNK / RESIDUAL_THREADS];
#pragma unroll
    for (int i = 0; i < CHUNK / RESIDUAL_THREADS; i++) {
        const int at = i * RESIDUAL_THREADS + t;
        bucket[i] = at < n ? bucket_of(c, c->x[at]) : -1;
        count_bucket(c, bucket[i]);
    }
    __syncthreads();
    if (warp == 0)
        last_bucket(c, want);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < CHUNK / RESIDUAL_THREADS; i++) {
        const unsigned above = __ballot_sync(~0u, bucket[i] > c->bucket),
                       last = __ballot_sync(~0u, bucket[i] == c->bucket);
        if (lane == 0) {
            c->above[i * WARPS + warp] = above;
            c->last[i * WARPS + warp] = last;
        }
    }
    __syncthreads();
    if (warp == 0)
        count_before(c->above, c->above_before);
    if (warp == 1)
        count_before(c->last, c->last_before);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < CHUNK / RESIDUAL_THREADS; i++) {
        const int word = i * WARPS + warp, at = i * RESIDUAL_THREADS + t;
        const unsigned below = (1u << lane) - 1;
        const int above = c->above_before[word] + __popc(c->above[word] & below),
                  last = c->last_before[word] + __popc(c->last[word] & below);
        if (bucket[i] > c->bucket || (bucket[i] == c->bucket && last < c->of_last))
            out[above + min(last, c->of_last)] = salient{first + at, c->x[at]};
    }
}

/* What RMSNorm multiplies a row with, in one order for all blocks. */
__device__ static float norm_factor(const float *x, int64_t k, float eps, float *shared) {
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < k; i += RESIDUAL_THREADS)
        sum = __fmaf_rn(x[i], x[i], sum);
    for (int o = 1; o < 32; o *= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < WARPS; i++)
        sum = __fadd_rn(sum, shared[i]);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)k), eps)));
}

/* ---- fetching and multiplying ---- */

/* Segments of the matrices, one after the other. */
struct segment_at {
    const uint8_t *rows;
    const float *scale;
    int64_t step, left; /* bytes of a channel, outputs from the segment's first on */
    int64_t out;        /* its first output, of all matrices' */
};

__device__ static segment_at find_segment(const cuda_residual &a, int64_t s) {
    int64_t out = 0;
    int w = 0;
    for (; w + 1 < a.n_w && s >= (a.n[w] + SEGMENT - 1) / SEGMENT; w++) {
        s -= (a.n[w] + SEGMENT - 1) / SEGMENT;
        out += a.n[w];
    }
    return segment_at{a.rows[w] + s * (SEGMENT / 2), a.scale[w] + s * SEGMENT, a.step[w],
                      a.n[w] - s * SEGMENT, out + s * SEGMENT};
}

/* A lane's eight outputs: four of the lower halves of its bytes, four of the upper ones. */
__device__ static void add_dword(float *sum, uint32_t codes, float x) {
#pragma unroll
    for (int b = 0; b < 4; b++) {
        sum[b] = __fmaf_rn(x, (float)((int)(codes >> 8 * b & 15) - 8), sum[b]);
        sum[4 + b] = __fmaf_rn(x, (float)((int)(codes >> (8 * b + 4) & 15) - 8), sum[4 + b]);
    }
}

/* Every SHARE-th channel from `from` on of 256 outputs. */
__device__ static void sum_channels(const segment_at &s, const salient *picks, int n, int from, float *sum) {
    const int lane = threadIdx.x % 32;
    const uint8_t *rows = s.rows + 4 * lane;
    const bool inside =
        s.step && (lane / 4) * 32 + lane % 4 * 4 < s.left; /* of the padding nothing is read */
    for (int i = from; i < n; i += SHARE * CHANNELS) {
        uint32_t codes[CHANNELS];
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) {
            const int at = i + SHARE * c;
            codes[c] = 0x88888888u;
            if (at < n && inside)
                asm volatile("ld.global.relaxed.sys.u32 %0, [%1];"
                             : "=r"(codes[c])
                             : "l"(rows + picks[at].at * s.step));
        }
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            if (i + SHARE * c < n)
                add_dword(sum, codes[c], picks[i + SHARE * c].x);
    }
}

enum { OUTPUTS = TOGETHER * SEGMENT };

/* The scales of the segments from `first` on, on their way; a thread asks for those that it reads. */
__device__ static void ask_scales(const cuda_residual &a, int64_t first, int64_t end, float *scales) {
    for (int at = threadIdx.x; at < OUTPUTS && first + at / SEGMENT < end; at += RESIDUAL_THREADS) {
        const segment_at s = find_segment(a, first + at / SEGMENT);
        if (s.step && at % SEGMENT < s.left)
            copy_ahead<4>(scales + at, s.scale + at % SEGMENT);
        else
            scales[at] = 0.0f;
    }
    copies_end_group();
}

/* The segments of this block. */
__device__ static void own_segments(const cuda_residual &a, int64_t *begin, int64_t *end) {
    int64_t n = 0;
    for (int w = 0; w < a.n_w; w++)
        n += (a.n[w] + SEGMENT - 1) / SEGMENT;
    const int64_t each = (n + gridDim.x - 1) / gridDim.x;
    *begin = blockIdx.x * each;
    *end = *begin + each < n ? *begin + each : n;
}

__device__ static void fetch(const residual_job &j, const salient *picks, float factor, int64_t row,
                             float (*sums)[SEGMENT], float *scales) {
    const cuda_residual &a = j.a;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t begin, end;
    own_segments(a, &begin, &end);
    for (int64_t first = begin; first < end; first += TOGETHER) {
        const int64_t own = first + warp / SHARE;
        float sum[8] = {0};
        if (row > 0 || first > begin) /* the first ones were asked for when the block began */
            ask_scales(a, first, end, scales);
        if (own < end)
            sum_channels(find_segment(a, own), picks, j.n_pick, warp % SHARE, sum);
        __syncthreads();
#pragma unroll
        for (int b = 0; b < 4; b++) {
            sums[warp][lane / 4 * 32 + lane % 4 * 4 + b] = sum[b];
            sums[warp][lane / 4 * 32 + lane % 4 * 4 + 16 + b] = sum[4 + b];
        }
        __syncthreads();
        copies_wait<0>();
        for (int at = threadIdx.x; at < OUTPUTS && first + at / SEGMENT < end; at += RESIDUAL_THREADS) {
            const int o = at % SEGMENT;
            const segment_at to = find_segment(a, first + at / SEGMENT);
            float v = sums[at / SEGMENT * SHARE][o];
            for (int w = 1; w < SHARE; w++)
                v = __fadd_rn(v, sums[at / SEGMENT * SHARE + w][o]);
            if (o < to.left)
                a.part[row * a.ldp + to.out + o] = __fmul_rn(__fmul_rn(v, scales[at]), factor);
        }
    }
}

__global__ void __launch_bounds__(RESIDUAL_THREADS, 2)
    residual_fused(const __grid_constant__ residual_job j) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float partial[WARPS], scales[OUTPUTS];
    int64_t begin, end;
    const cuda_residual &a = j.a;
    grid_state *m = (grid_state *)a.scratch;
    salient *all = (salient *)((uint8_t *)a.scratch + CUDA_FETCH_HEAD);
    const int n_chunk = (int)((a.k + CHUNK - 1) / CHUNK);
    own_segments(a, &begin, &end);
    ask_scales(a, begin, end, scales);
    for (int64_t i = blockIdx.x; i < a.n_row * n_chunk; i += gridDim.x) {
        const int64_t row = i / n_chunk;
        const int chunk = (int)(i % n_chunk), first = chunk * CHUNK;
        const bool short_one = first + CHUNK > a.k;
        choose((choice *)shared, a.x + row * a.ldx, a.norm, first, short_one ? (int)(a.k - first) : CHUNK,
               short_one ? j.last_want : j.want, short_one ? j.last_reach : j.reach,
               all + row * j.n_pick + (int64_t)chunk * j.want);
    }
    grid_barrier(m, gridDim.x);
    salient *picks = (salient *)shared;
    float(*sums)[SEGMENT] = (float(*)[SEGMENT])(shared + ((size_t)j.n_pick * sizeof *picks + 15) / 16 * 16);
    for (int64_t row = 0; row < a.n_row; row++) {
        const float factor = a.norm ? norm_factor(a.x + row * a.ldx, a.k, a.eps, partial) : 1.0f;
        __syncthreads();
        for (int i = threadIdx.x; i < j.n_pick; i += RESIDUAL_THREADS) {
            const int2 p = __ldcg((const int2 *)(all + row * j.n_pick + i));
            picks[i] = salient{p.x, __int_as_float(p.y)};
        }
        __syncthreads();
        fetch(j, picks, factor, row, sums, scales);
    }
}

static size_t shared_of(int64_t n_pick) {
    const size_t fetch = (size_t)(n_pick * 8 + 15) / 16 * 16 + sizeof(float) * WARPS * SEGMENT;
    return fetch > sizeof(choice) ? fetch : sizeof(choice);
}

size_t residual_scratch(int64_t n_row, int64_t k, int64_t k_chunk) {
    return CUDA_FETCH_HEAD + (size_t)(n_row * salient_count(k, k_chunk)) * sizeof(salient);
}

int residual_launch(const cuda_residual *a, cuda_stream s) {
    const int last = (int)(a->k % SALIENT_CHUNK);
    residual_job j;
    j.a = *a;
    if (a->n_row < 1 || a->n_row > CUDA_MAX_FETCH || a->k < 1 || a->k > INT32_MAX || a->k_chunk < 1 ||
        a->n_w < 1 || a->n_w > 3 || a->n_tb < 1)
        return CUDA_UNSUPPORTED;
    j.n_pick = (int)salient_count(a->k, a->k_chunk);
    j.want = salient_of_chunk(SALIENT_CHUNK, a->k_chunk);
    j.last_want = salient_of_chunk(last, a->k_chunk);
    j.reach = salient_reach(SALIENT_CHUNK, j.want);
    j.last_reach = last ? salient_reach(last, j.last_want) : 0.0f;
    const size_t shared = shared_of(j.n_pick);
    if (shared > (size_t)device_shared_bytes())
        return CUDA_UNSUPPORTED;
    const int e = prepare(residual_fused, shared);
    if (e)
        return e;
    cudaLaunchAttribute together;
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)(a->n_tb < device_sm_count() ? a->n_tb : device_sm_count()));
    c.blockDim = dim3(RESIDUAL_THREADS);
    c.dynamicSmemBytes = shared;
    c.stream = (cudaStream_t)s;
    c.attrs = &together;
    c.numAttrs = 1;
    return (int)cudaLaunchKernelEx(&c, residual_fused, j);
}

/* ---- the second pass ---- */

enum { ADD_THREADS = 256 };

__global__ void __launch_bounds__(ADD_THREADS) residual_add_all(const __grid_constant__ cuda_residual_add a) {
    const int64_t i = (int64_t)blockIdx.x * ADD_THREADS + threadIdx.x;
    const int64_t row = blockIdx.y;
    const float *part = a.part + row * a.ldp;
    if (a.gated) {
        if (i >= a.n[0])
            return;
        const float g = __fadd_rn(a.y[0][row * a.ldy[0] + i], part[i]),
                    u = __fadd_rn(a.y[1][row * a.ldy[1] + i], part[a.n[0] + i]);
        a.out[row * a.ldo + i] = __fmul_rn(act_value(a.act, g), u);
        return;
    }
    int64_t at = i;
    int w = 0;
    for (; w < a.n_w && at >= a.n[w]; w++)
        at -= a.n[w];
    if (w < a.n_w) {
        float *y = a.y[w] + row * a.ldy[w] + at;
        *y = __fadd_rn(*y, part[i]);
    }
}

int residual_add_launch(const cuda_residual_add *a, cuda_stream s) {
    int64_t n = a->gated ? a->n[0] : 0;
    for (int w = 0; w < a->n_w && !a->gated; w++)
        n += a->n[w];
    if (n < 1 || a->n_row < 1 || a->n_row > 65535 || a->n_w < 1 || a->n_w > 3)
        return CUDA_UNSUPPORTED;
    const int e = prepare(residual_add_all, 0);
    if (e)
        return e;
    const dim3 grid((unsigned)((n + ADD_THREADS - 1) / ADD_THREADS), (unsigned)a->n_row);
    residual_add_all<<<grid, ADD_THREADS, 0, (cudaStream_t)s>>>(*a);
    return (int)cudaGetLastError();
}
