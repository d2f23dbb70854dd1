/* wide.cu - products of many rows: writes the rows as images (wide.cuh), and chooses the kernel. */
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/row_math.cuh"
#include "kernels/cuda/wide.cuh"

enum {
    IMAGE_WARPS = 8 /* of a row; pairs of a row and an expert, which are many, have PAIR_WARPS */,
    PAIR_WARPS = 2
};

struct image_job {
    const float *x, *norm;
    int64_t ldx;
    int k, n_tile, n_row, rows; /* rows: rows of the images */
    float eps;
    uint8_t *out;
    float *factor; /* [rows] */
    bool plain;    /* K keeps its order */
    bool centred;  /* the norm is a LayerNorm, with the shift */
    const float *shift;
    /* rows of pairs (wide_pairs): the numbers of tiles and pairs, and the pairs; NULL: rows of x */
    const int *n, *pairs;
    int n_used;
    bool each;
};

/* The row of x that becomes row `row` of the images; NULL: none. */
__device__ __forceinline__ const float *image_source(const image_job &j, int row) {
    if (!j.pairs)
        return j.x + row * j.ldx;
    const int pair = row < __ldcg(j.n + 1) ? __ldcg(j.pairs + row) : -1;
    return pair < 0 ? nullptr : j.x + pair / j.n_used * j.ldx + (j.each ? pair % j.n_used * (int64_t)j.k : 0);
}

/* A row's sum of squares, in a fixed order, and the largest magnitude of its values times the norm's
 * weights. */
struct row_facts {
    float sum, largest;
};
/* Combines the facts of the row's warps, which share this barrier. */
template <int WARPS> __device__ static row_facts of_row(row_facts f, row_facts *shared, int barrier) {
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        f.sum = __fadd_rn(f.sum, __shfl_xor_sync(~0u, f.sum, o));
        f.largest = fmaxf(f.largest, __shfl_xor_sync(~0u, f.largest, o));
    }
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32 % WARPS] = f;
    warps_barrier(barrier, WARPS);
    f = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        f.sum = __fadd_rn(f.sum, shared[i].sum);
        f.largest = fmaxf(f.largest, shared[i].largest);
    }
    return f;
}

/* The biased exponent of a row's largest value, raised to one whose inverse is finite. */
__device__ __forceinline__ uint32_t exponent_of(float largest) {
    return max(__float_as_uint(largest) >> 23 & 255, 27);
}

__device__ __forceinline__ float4 four_load(const float *x, int left) {
    if (left >= 4)
        return *(const float4 *)x;
    return make_float4(left > 0 ? x[0] : 0.0f, left > 1 ? x[1] : 0.0f, left > 2 ? x[2] : 0.0f, 0.0f);
}

__device__ __forceinline__ uint32_t two_halves(float a, float b) {
    const __half2 h = __floats2half2_rn(a, b);
    return *(const uint32_t *)&h;
}

__device__ __forceinline__ float4 four_product(float4 v, float4 w) {
    return make_float4(__fmul_rn(v.x, w.x), __fmul_rn(v.y, w.y), __fmul_rn(v.z, w.z), __fmul_rn(v.w, w.w));
}

/* Four values from i on, times the norm's weights. Their common factor is still missing. */
__device__ __forceinline__ float4 four_values(const image_job &j, const float *x, int i) {
    const float4 v = four_load(x + i, j.k - i);
    return j.norm ? four_product(v, four_load(j.norm + i, j.k - i)) : v;
}

__device__ __forceinline__ float square_add(float4 v, float sum) {
    return __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmaf_rn(v.x, v.x, sum))));
}
__device__ __forceinline__ float largest_of(float4 v, float max_abs) {
    return fmaxf(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))), max_abs);
}

/* Stores four values from i on in row `in` of the images at `images`. */
__device__ __forceinline__ void four_store(uint8_t *images, int in, int i, float4 v, float factor,
                                           bool plain) {
    const int t = i / 4 % 4, piece = i % TILE_K / 16 * 2;
    uint8_t *const line = images + (int64_t)(i / TILE_K) * WIDE_IMAGE + in * 128;
    if (plain) {
        *(uint2 *)(line + (((piece + t / 2) ^ (in & 7)) * 16) + t % 2 * 8) =
            make_uint2(two_halves(__fmul_rn(v.x, factor), __fmul_rn(v.y, factor)),
                       two_halves(__fmul_rn(v.z, factor), __fmul_rn(v.w, factor)));
        return;
    }
    const uint32_t even = two_halves(__fmul_rn(v.x, factor), __fmul_rn(v.z, factor)),
                   odd = two_halves(__fmul_rn(v.y, factor), __fmul_rn(v.w, factor));
    *(uint32_t *)(line + ((piece ^ (in & 7)) * 16) + 4 * t) = even;
    *(uint32_t *)(line + (((piece + 1) ^ (in & 7)) * 16) + 4 * t) = odd;
}

__device__ __forceinline__ float four_sum(float4 v) {
    return __fadd_rn(__fadd_rn(v.x, v.y), __fadd_rn(v.z, v.w));
}
/* The `left` elements that exist, minus the row's mean; zeros for the others. */
__device__ __forceinline__ float4 four_centre(float4 v, float mean, int left) {
    return make_float4(left > 0 ? __fsub_rn(v.x, mean) : 0.0f, left > 1 ? __fsub_rn(v.y, mean) : 0.0f,
                       left > 2 ? __fsub_rn(v.z, mean) : 0.0f, left > 3 ? __fsub_rn(v.w, mean) : 0.0f);
}
/* Replaces a row by its LayerNorm, and returns the largest magnitude. shared: for two sums of the row. */
template <int KEEP, int WARPS>
__device__ __forceinline__ float layer_norm(const image_job &j, float4 (&kept)[KEEP], int begin, int step,
                                            row_facts (&shared)[2][WARPS], int barrier) {
    float sum = 0.0f, squares = 0.0f, largest = 0.0f;
#pragma unroll
    for (int m = 0; m < KEEP; m++)
        sum = __fadd_rn(sum, four_sum(kept[m]));
    const float mean = __fdiv_rn(of_row<WARPS>({sum, 0.0f}, shared[0], barrier).sum, (float)j.k);
#pragma unroll
    for (int m = 0; m < KEEP; m++) {
        kept[m] = four_centre(kept[m], mean, j.k - begin - m * step);
        squares = square_add(kept[m], squares);
    }
    squares = of_row<WARPS>({squares, 0.0f}, shared[1], barrier).sum;
    const float factor = norm_factor_of(squares, (float)j.k, j.eps);
    const float4 factors = make_float4(factor, factor, factor, factor);
#pragma unroll
    for (int m = 0; m < KEEP; m++) {
        const int at = begin + m * step, left = j.k - at;
        kept[m] = four_product(four_product(kept[m], factors), four_load(j.norm + at, left));
        if (j.shift) {
            const float4 b = four_load(j.shift + at, left);
            kept[m] = make_float4(__fadd_rn(kept[m].x, b.x), __fadd_rn(kept[m].y, b.y),
                                  __fadd_rn(kept[m].z, b.z), __fadd_rn(kept[m].w, b.w));
        }
        largest = largest_of(kept[m], largest);
    }
    return largest;
}

/* A block has ROWS rows; rows after the last one become zeros. A thread has four elements of K at a time, at
 * most KEEP times, and keeps them in registers (KEEP 0: it reads them again). A power of two scales the row's
 * largest magnitude to [2^14, 2^15), far from both ends of the range of halves. */
template <int KEEP, int ROWS, int WARPS>
__global__ void __launch_bounds__(32 * WARPS * ROWS) images_make(const __grid_constant__ image_job j) {
    enum {
        KEPT = KEEP ? KEEP : 1,
        EACH = 32 * WARPS,
        STEP = 4 * EACH,
        CENTRES = KEEP > 0 && KEEP * STEP <= CUDA_MAX_CENTRED
    };
    __shared__ row_facts shared[ROWS][WARPS], sums[ROWS][2][WARPS];
    const int own = (int)threadIdx.x / EACH, row = (int)blockIdx.x * ROWS + own, in = row % WIDE_ROWS,
              begin = 4 * ((int)threadIdx.x % EACH), end = j.n_tile * TILE_K;
    uint8_t *const images = j.out + (int64_t)(row / WIDE_ROWS) * j.n_tile * WIDE_IMAGE;
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 kept[KEPT];
    row_facts f = {0.0f, 0.0f};
    launch_next();
    launch_wait();
    const float *const x = image_source(j, row);
    if (!x) /* a row of padding, whose results nobody reads */
        return;
    if (row >= j.n_row) {
        if (row >= j.rows)
            return;
        for (int i = begin; i < end; i += STEP)
            four_store(images, in, i, none, 1.0f, j.plain);
        return;
    }
    if (KEEP) {
#pragma unroll
        for (int m = 0; m < KEEP; m++)
            kept[m] = four_load(x + begin + m * STEP, j.k - begin - m * STEP);
        if (CENTRES && j.centred)
            f.largest = layer_norm<KEPT, WARPS>(j, kept, begin, STEP, sums[own], 1 + own);
        else
#pragma unroll
            for (int m = 0; m < KEEP; m++) {
                f.sum = square_add(kept[m], f.sum);
                if (j.norm) {
                    const float4 w = four_load(j.norm + begin + m * STEP, j.k - begin - m * STEP);
                    kept[m] = four_product(kept[m], w);
                }
                f.largest = largest_of(kept[m], f.largest);
            }
    } else
        for (int i = begin; i < j.k; i += STEP) {
            f.sum = square_add(four_load(x + i, j.k - i), f.sum);
            f.largest = largest_of(four_values(j, x, i), f.largest);
        }
    f = of_row<WARPS>(f, shared[own], 1 + own);
    float factor = 1.0f;
    if (j.norm && !j.centred)
        factor = norm_factor_of(f.sum, (float)j.k, j.eps);
    const uint32_t e = exponent_of(__fmul_rn(f.largest, factor));
    factor = __fmul_rn(factor, __uint_as_float((2 * 127 + 14 - e) << 23));
    if (threadIdx.x % EACH == 0)
        j.factor[row] = __uint_as_float((e - 14) << 23);
    if (KEEP) {
#pragma unroll
        for (int m = 0; m < KEEP; m++)
            if (begin + m * STEP < end)
                four_store(images, in, begin + m * STEP, kept[m], factor, j.plain);
    } else
        for (int i = begin; i < end; i += STEP)
            four_store(images, in, i, four_values(j, x, i), factor, j.plain);
}

static int64_t row_images(int64_t n_row) {
    return (n_row + WIDE_ROWS - 1) / WIDE_ROWS;
}

size_t wide_scratch(int64_t n_row, int64_t k) {
    const size_t images =
        (size_t)row_images(n_row) * ((size_t)tile_count(k) * WIDE_IMAGE + WIDE_ROWS * sizeof(float));
    const size_t floats = float_scratch(n_row, k);
    return images > floats ? images : floats;
}

const float *wide_factors(const cuda_linear *a) {
    return (const float *)((const uint8_t *)a->scratch +
                           row_images(a->n_row) * tile_count(a->w[0].k) * WIDE_IMAGE);
}

int wide_job_make(const cuda_linear *a, wide_job *j) {
    const view *w = &a->w[0];
    const pack_format *f = &w->format;
    *j = wide_job{};
    if (!matrices_are(a) || f->layout != PACK_TILE || f->scale == PACK_SCALE_ZERO ||
        f->packing != PACK_PARTS || w->k < 1 || w->k > MAX_PACK_ROW || a->n_row < 1 ||
        a->n_row > CUDA_MAX_WIDE || f->bits < 2)
        return CUDA_UNSUPPORTED;
    j->n_panel = matrices_set(a, PACK_PANEL, j);
    j->n_row = (int)a->n_row;
    j->n_tile = (int)tile_count(w->k);
    j->gated = a->gated;
    j->acts = a->acts;
    j->adds = a->adds;
    j->act = a->act;
    tiles_set(w, j);
    j->stage_bytes = (j->chunk_bytes + 127) / 128 * 128;
    j->table = table_shared(f);
    for (int g = f->group == PACK_GROUP_ROW ? 0 : f->group; g > (f->group == 16 ? 16 : 32); g /= 2)
        j->group_shift++;
    j->x = (const uint8_t *)a->scratch;
    j->factor = wide_factors(a);
    return 0;
}

bool has_wide(void) {
    return wide_mma_is_built();
}

template <int KEEP, int ROWS, int WARPS = IMAGE_WARPS>
static int images_by(const image_job &i, cuda_stream s) {
    const int e = prepare(images_make<KEEP, ROWS, WARPS>, 0);
    return e ? e
             : launch(images_make<KEEP, ROWS, WARPS>, dim3((unsigned)(i.rows + ROWS - 1) / ROWS),
                      dim3(32 * WARPS * ROWS), 0, s, i);
}

static int images_of(const image_job &i, bool few, cuda_stream s) {
    const int64_t step = 128 * (i.pairs ? PAIR_WARPS : IMAGE_WARPS),
                  each = ((int64_t)i.n_tile * TILE_K + step - 1) / step;
    if (i.pairs && each <= 8)
        return each <= 4 ? images_by<4, 4, PAIR_WARPS>(i, s) : images_by<8, 4, PAIR_WARPS>(i, s);
    if (i.pairs && each <= 16)
        return images_by<16, 4, PAIR_WARPS>(i, s);
    if (i.pairs)
        return images_by<0, 4, PAIR_WARPS>(i, s);
    if (few && (each == 3 || each == 4))
        return images_by<4, 4>(i, s);
    return each <= 2    ? images_by<2, 1>(i, s)
           : each <= 4  ? images_by<4, 1>(i, s)
           : each <= 8  ? images_by<8, 1>(i, s)
           : each <= 16 ? images_by<16, 1>(i, s)
                        : images_by<0, 1>(i, s);
}

int images_launch(const cuda_linear *a, bool plain, bool few, unsigned rows, cuda_stream s) {
    const image_job i = {
        a->x,          a->norm,    a->ldx,  (int)a->w[0].k,        (int)tile_count(a->w[0].k),
        (int)a->n_row, (int)rows,  a->eps,  (uint8_t *)a->scratch, (float *)(uintptr_t)wide_factors(a),
        plain,         a->centred, a->shift};
    return a->centred && i.k > CUDA_MAX_CENTRED ? (int)CUDA_UNSUPPORTED : images_of(i, few, s);
}

int images_pairs_launch(const cuda_experts *a, const wide_job &j, cuda_stream s) {
    image_job i = {};
    i.x = a->x;
    i.ldx = a->ldx;
    i.k = (int)a->w[0].k;
    i.n_tile = j.n_tile;
    i.n_row = i.rows = j.of.max_pair;
    i.out = (uint8_t *)a->scratch;
    i.factor = (float *)(uintptr_t)j.factor;
    i.n = j.of.n;
    i.pairs = j.of.pairs;
    i.n_used = j.of.n_used;
    i.each = a->each;
    return images_of(i, false, s);
}

int wide_images_launch(const cuda_linear *a, bool plain, cuda_stream s) {
    return images_launch(a, plain, false, (unsigned)(row_images(a->n_row) * WIDE_ROWS), s);
}

int wide_launch(const cuda_linear *a, cuda_stream s) {
    wide_job j;
    if (a->w[0].format.layout == PACK_ROWS) {
        if (!has_wide() || a->n_row > CUDA_MAX_WIDE)
            return CUDA_UNSUPPORTED;
        const int e = a->exact ? (int)CUDA_UNSUPPORTED : wide_float_launch(a, s);
        return e == CUDA_UNSUPPORTED ? float_launch(a, s) : e;
    }
    int e = has_wide() ? wide_job_make(a, &j) : CUDA_UNSUPPORTED;
    e = e ? e : wide_images_launch(a, false, s);
    return e ? e : wide_mma_launch(&j, &a->w[0].format, s);
}
