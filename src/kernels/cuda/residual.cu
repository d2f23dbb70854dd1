/* residual.cu - QDEC's fused kernel (paper 4.3). It chooses the channels of a row's largest activations.
 * After a barrier it fetches their residuals from mapped host memory (zero-copy) and multiplies them.
 *
 * The choice is that of kernels/lanes/residual.h, bit by bit. A block has one chunk of 1,024 channels at a
 * time, or two if a cluster has more chunks than blocks. Residuals are fetched in segments of 256 outputs:
 * with 4 bits a warp reads 128 neighbouring bytes at once. Four warps share a segment, or eight if there are
 * few segments (cuda_residual_shares). Each warp has every fourth or eighth channel, CHANNELS of them in
 * flight. The warps' sums are added in order, so a sum does not depend on the number of blocks. A block is
 * small enough to run on a multiprocessor beside a block of a product.
 *
 * With clusters (compute capability 9.0) each cluster of eight blocks chooses all channels. Every block
 * writes its choice into the shared memory of the others, and the barrier is the cluster's. On other devices,
 * and for rows with too many chunks, all blocks share one choice through the scratch, and the launch is
 * cooperative. */
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/residual_choose.cuh"
#include "kernels/cuda/residual_first.h"
#include "kernels/cuda/residual_order.h"
#include "kernels/cuda/row_math.cuh"
#include "kernels/salient.h"

enum {
    WARPS = RESIDUAL_WARPS,
    SEGMENT = CUDA_RESIDUAL_SEGMENT, /* outputs */
    CHANNELS = 16,
    HALF = RESIDUAL_THREADS / 2,
    RANKS = 8 /* blocks of a cluster */
};

struct residual_job {
    cuda_residual a;
    /* Number of channels chosen from a row, from a whole chunk, from a shorter last one. */
    int n_chosen, k_chunk, k_last;
    float reach, last_reach; /* salient_reach of a whole chunk and of the last one */
    int n_chunk;             /* chunks of a row */
    int share;               /* cuda_residual_shares */
};

/* ---- choosing ---- */

/* Chooses from chunk i of the chunks of all rows. put_at(p) returns the function that stores the chosen
 * channels, from entry p of all on. */
template <int T, class PutAt, class Meanwhile>
__device__ static void choose_chunk(const residual_job &j, choice *c, int64_t i, const PutAt &put_at,
                                    const Meanwhile &meanwhile) {
    const cuda_residual &a = j.a;
    const int64_t row = i / j.n_chunk;
    const int chunk = (int)(i % j.n_chunk), first = chunk * CHUNK;
    const bool short_one = first + CHUNK > a.k;
    choose<T>(c + threadIdx.x / T, a.x + row * a.ldx, a.norm, first, short_one ? (int)(a.k - first) : CHUNK,
              short_one ? j.k_last : j.k_chunk, short_one ? j.last_reach : j.reach,
              put_at(row * j.n_chosen + (int64_t)chunk * j.k_chunk), meanwhile);
}

/* The factor of a row's RMSNorm, summed in the same order by all blocks. */
__device__ static float norm_factor(const float *x, int64_t k, float eps, float *shared) {
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < k; i += RESIDUAL_THREADS)
        sum = __fmaf_rn(x[i], x[i], sum);
    sum = block_sum<WARPS>(sum, shared);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)k), eps)));
}

/* ---- fetching and multiplying ---- */

/* A segment. Those of all matrices are numbered one after the other. */
struct segment_at {
    const uint8_t *rows;
    const float *scale;
    int64_t step, left; /* bytes of a channel; outputs of the matrix from the segment's first on */
    int64_t out;        /* its first output among those of all matrices */
};

__device__ static segment_at find_segment(const cuda_residual &a, int s) {
    int64_t out = 0;
    int w = 0;
    for (; w + 1 < a.n_w && s >= (int)((a.n[w] + SEGMENT - 1) / SEGMENT); w++) {
        s -= (int)((a.n[w] + SEGMENT - 1) / SEGMENT);
        out += a.n[w];
    }
    const int64_t before = (int64_t)s * SEGMENT;
    return segment_at{a.rows[w] + before / 2, a.scale[w] + before, a.step[w], a.n[w] - before, out + before};
}

/* Adds to a lane's eight outputs: four from the lower 4 bits of its bytes, four from the upper ones. */
__device__ static void add_dword(float *sum, uint32_t codes, float x) {
#pragma unroll
    for (int b = 0; b < 4; b++) {
        sum[b] = __fmaf_rn(x, (float)((int)(codes >> 8 * b & 15) - 8), sum[b]);
        sum[4 + b] = __fmaf_rn(x, (float)((int)(codes >> (8 * b + 4) & 15) - 8), sum[4 + b]);
    }
}

/* Sums every share-th channel from `from` on for 256 outputs. */
__device__ static void sum_channels(const segment_at &s, const salient *chosen, int n, int from, int share,
                                    float *sum) {
    const int lane = threadIdx.x % 32;
    const uint8_t *rows = s.rows + 4 * lane;
    const bool inside = s.step && (lane / 4) * 32 + lane % 4 * 4 < s.left; /* the padding is not read */
    for (int i = from; i < n; i += share * CHANNELS) {
        uint32_t codes[CHANNELS];
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) {
            const int at = i + share * c;
            codes[c] = 0x88888888u;
            if (at < n && inside)
                asm volatile("ld.global.relaxed.sys.u32 %0, [%1];"
                             : "=r"(codes[c])
                             : "l"(rows + chosen[at].at * s.step));
        }
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            if (i + share * c < n)
                add_dword(sum, codes[c], chosen[i + share * c].x);
    }
}

/* Outputs of the segments that a block has at a time. */
enum { OUTPUTS = WARPS / CUDA_RESIDUAL_FEWEST_SHARES * SEGMENT };

/* Starts loading the scales of `n` segments from `first` on. A thread loads those that it reads later. */
__device__ static void ask_scales(const cuda_residual &a, int first, int n, float *scales) {
    for (int at = threadIdx.x; at < n * SEGMENT; at += RESIDUAL_THREADS) {
        const segment_at s = find_segment(a, first + at / SEGMENT);
        if (s.step && at % SEGMENT < s.left)
            copy_ahead<4>(scales + at, s.scale + at % SEGMENT);
        else
            scales[at] = 0.0f;
    }
    copies_end_group();
}

/* The segments of one of the a.n_tb blocks. */
struct own_segments {
    int begin, end, together; /* together: segments at a time */
    __device__ int n_at(int first) const {
        return first < end ? min(end - first, together) : 0;
    }
};

__device__ static own_segments segments_of(const residual_job &j, int block) {
    int n = 0;
    for (int w = 0; w < j.a.n_w; w++)
        n += (int)((j.a.n[w] + SEGMENT - 1) / SEGMENT);
    const int each = (n + j.a.n_tb - 1) / j.a.n_tb, begin = block * each;
    return own_segments{begin, min(begin + each, n), WARPS / j.share};
}

__device__ static void fetch(const residual_job &j, const own_segments &own, const salient *chosen,
                             float factor, int64_t row, float (*sums)[SEGMENT], float *scales) {
    const cuda_residual &a = j.a;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int first = own.begin; first < own.end; first += own.together) {
        const int n = own.n_at(first);
        float sum[8] = {0};
        if (row > 0 || first > own.begin) /* the first ones were loaded when the block began */
            ask_scales(a, first, n, scales);
        if (warp / j.share < n)
            sum_channels(find_segment(a, first + warp / j.share), chosen, j.n_chosen, warp % j.share, j.share,
                         sum);
        __syncthreads();
#pragma unroll
        for (int b = 0; b < 4; b++) {
            sums[warp][lane / 4 * 32 + lane % 4 * 4 + b] = sum[b];
            sums[warp][lane / 4 * 32 + lane % 4 * 4 + 16 + b] = sum[4 + b];
        }
        __syncthreads();
        copies_wait<0>();
        for (int at = threadIdx.x; at < n * SEGMENT; at += RESIDUAL_THREADS) {
            const int o = at % SEGMENT;
            const segment_at to = find_segment(a, first + at / SEGMENT);
            float v = sums[at / SEGMENT * j.share][o];
            for (int w = 1; w < j.share; w++)
                v = __fadd_rn(v, sums[at / SEGMENT * j.share + w][o]);
            if (o < to.left)
                a.part[row * a.ldp + to.out + o] = __fmul_rn(__fmul_rn(v, scales[at]), factor);
        }
    }
}

/* Bytes of shared memory for the chosen channels of the rows; the rest of the memory follows them. */
static __host__ __device__ size_t chosen_bytes(int64_t n_row, int n_chosen) {
    return ((size_t)n_row * (size_t)n_chosen * sizeof(salient) + 15) / 16 * 16;
}

struct put_in_memory {
    salient *to;
    __device__ void operator()(int i, const salient &s) const {
        to[i] = s;
    }
};

__global__ void __launch_bounds__(RESIDUAL_THREADS, 2)
    residual_fused(const __grid_constant__ residual_job j) {
    uint8_t *const shared = block_memory();
    __shared__ float partial[WARPS], scales[OUTPUTS];
    const cuda_residual &a = j.a;
    grid_state *m = (grid_state *)a.scratch;
    salient *all = (salient *)((uint8_t *)a.scratch + CUDA_FETCH_HEAD), *chosen = (salient *)shared;
    void *const behind = shared + chosen_bytes(1, j.n_chosen);
    const own_segments own = segments_of(j, blockIdx.x);
    ask_scales(a, own.begin, own.n_at(own.begin), scales);
    for (int64_t i = blockIdx.x; i < a.n_row * j.n_chunk; i += gridDim.x) {
        __syncthreads(); /* ends the use of the previous chunk */
        choose_chunk<RESIDUAL_THREADS>(
            j, (choice *)behind, i, [&](int64_t at) { return put_in_memory{all + at}; }, [] {});
    }
    grid_barrier(m, gridDim.x);
    for (int64_t row = 0; row < a.n_row; row++) {
        const float factor = a.norm ? norm_factor(a.x + row * a.ldx, a.k, a.eps, partial) : 1.0f;
        __syncthreads();
        for (int i = threadIdx.x; i < j.n_chosen; i += RESIDUAL_THREADS) {
            const int2 p = __ldcg((const int2 *)(all + row * j.n_chosen + i));
            chosen[i] = salient{p.x, __int_as_float(p.y)};
        }
        __syncthreads();
        fetch(j, own, chosen, factor, row, (float(*)[SEGMENT])behind, scales);
    }
}

/* Stores at the same address in every block of the cluster. */
struct put_in_cluster {
    salient *to;
    __device__ void operator()(int i, const salient &s) const {
#pragma unroll
        for (int rank = 0; rank < RANKS; rank++)
            cluster_store_pair(to + i, rank, (uint32_t)s.at, __float_as_uint(s.x));
    }
};

/* The blocks of a cluster are along z. Those from a.n_tb on choose, but fetch nothing. */
__global__ void __launch_bounds__(RESIDUAL_THREADS, 2)
    residual_clustered(const __grid_constant__ residual_job j) {
    uint8_t *const shared = block_memory();
    __shared__ float partial[WARPS], scales[OUTPUTS];
    const cuda_residual &a = j.a;
    salient *chosen = (salient *)shared;
    void *const behind = shared + chosen_bytes(a.n_row, j.n_chosen);
    const own_segments own = segments_of(j, blockIdx.x * RANKS + blockIdx.z);
    cluster_arrive_all();
    launch_wait();
    float factor = a.norm ? norm_factor(a.x, a.k, a.eps, partial) : 1.0f;
    const auto put_at = [&](int64_t at) { return put_in_cluster{chosen + at}; };
    const auto meanwhile = [&] {
        ask_scales(a, own.begin, own.n_at(own.begin), scales);
        cluster_wait_all(); /* a block writes into another one only after that has started */
    };
    const int n_chunk = (int)a.n_row * j.n_chunk, two = blockIdx.z + threadIdx.x / HALF * RANKS;
    if (n_chunk > RANKS && two < n_chunk)
        choose_chunk<HALF>(j, (choice *)behind, two, put_at, meanwhile);
    else if (n_chunk <= RANKS && blockIdx.z < n_chunk)
        choose_chunk<RESIDUAL_THREADS>(j, (choice *)behind, blockIdx.z, put_at, meanwhile);
    else
        meanwhile();
    cluster_arrive_all();
    cluster_wait_all();
    for (int64_t row = 0; row < a.n_row; row++) {
        if (row > 0 && a.norm)
            factor = norm_factor(a.x + row * a.ldx, a.k, a.eps, partial);
        __syncthreads();
        fetch(j, own, chosen + row * j.n_chosen, factor, row, (float(*)[SEGMENT])behind, scales);
    }
}

/* ---- launching ---- */

static size_t shared_of(int64_t n_row, int n_chosen) {
    const size_t sums = sizeof(float) * WARPS * SEGMENT, choices = 2 * sizeof(choice);
    return chosen_bytes(n_row, n_chosen) + (sums > choices ? sums : choices);
}

size_t residual_scratch(int64_t n_row, int64_t k, int64_t k_chunk) {
    return CUDA_FETCH_HEAD + (size_t)(n_row * salient_count(k, k_chunk)) * sizeof(salient);
}

/* Whether a cluster has a group of threads for each chunk, and the chosen channels take little memory. */
static bool takes_clusters(const residual_job &j) {
    enum { MAX_BYTES = 32 << 10 };
    return device_capability() >= 90 && j.a.n_row * j.n_chunk <= 2 * RANKS &&
           chosen_bytes(j.a.n_row, j.n_chosen) <= MAX_BYTES;
}

/* A fetch that comes before its products may start before the previous launch has ended. */
static int launch_clusters(const residual_job &j, cudaStream_t s) {
    const size_t shared = shared_of(j.a.n_row, j.n_chosen);
    const dim3 grid((unsigned)((j.a.n_tb + RANKS - 1) / RANKS), 1, RANKS);
    const int e = prepare(residual_clustered, shared);
    return e ? e
             : launch_by({cuda_residual_first(&j.a), false, RANKS}, residual_clustered, grid,
                         RESIDUAL_THREADS, shared, s, j);
}

static int launch_fused(const residual_job &j, cudaStream_t s) {
    const size_t shared = shared_of(1, j.n_chosen);
    if (shared > (size_t)device_shared_bytes())
        return CUDA_UNSUPPORTED;
    const int e = prepare(residual_fused, shared);
    return e ? e
             : launch_by({false, true, 1}, residual_fused, (unsigned)j.a.n_tb, RESIDUAL_THREADS, shared, s,
                         j);
}

int residual_launch(const cuda_residual *a, cuda_stream s) {
    const int last = (int)(a->k % SALIENT_CHUNK);
    residual_job j;
    j.a = *a;
    if (a->n_row < 1 || a->n_row > CUDA_MAX_FETCH || a->k < 1 || a->k > INT32_MAX || a->k_chunk < 1 ||
        a->n_w < 1 || a->n_w > 3 || a->n_tb < 1)
        return CUDA_UNSUPPORTED;
    j.a.n_tb = a->n_tb < device_sm_count() ? a->n_tb : device_sm_count();
    j.n_chosen = (int)salient_count(a->k, a->k_chunk);
    j.k_chunk = salient_of_chunk(SALIENT_CHUNK, a->k_chunk);
    j.k_last = salient_of_chunk(last, a->k_chunk);
    j.reach = salient_reach(SALIENT_CHUNK, j.k_chunk);
    j.last_reach = last ? salient_reach(last, j.k_last) : 0.0f;
    j.n_chunk = (int)((a->k + CHUNK - 1) / CHUNK);
    j.share = cuda_residual_shares(a->n, a->n_w);
    return takes_clusters(j) ? launch_clusters(j, (cudaStream_t)s) : launch_fused(j, (cudaStream_t)s);
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
