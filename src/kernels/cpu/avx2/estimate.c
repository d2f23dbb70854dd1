/* estimate.c - estimates of products of many activation rows with 8-bit codes (kernel_table.estimate). Fewer
 * instructions than a product of 4-bit codes: all sums are integers up to a row's result.
 *
 * A code counts as its upper half, rounded: -8 to 8. Activations are bytes from 1 to 255, which are 128 too
 * large (estimate_row). So vpmaddubsw multiplies them, and 16 bits hold the sum of a group's 8 quads, at most
 * 8 * 2 * 255 * 8 = 32,640. vpmaddwd joins the two halves of a row's sum and multiplies them by the group's
 * scale, rounded to a multiple of the row's unit. 128 times the sum of the weights is subtracted at the
 * beginning. */
#include "kernels/cpu/avx2/dot.h"

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/block.h"

enum {
    GROUP = 32,
    ROWS = 3,          /* that a kernel takes at once: 6 sums in 16 bits and 6 in 32 bits */
    MAX_SCALE = 32767, /* a group's integer scale */
    MAX_SUM =
        65536 /* sum of a row's integer scales: a group's result is up to 32 * 8 * 127 times its scale */
};

/* What a block holds besides lines of signed bytes: each group's scales, twice for each row of
 * the weights, in block.scale; in block.min the sums that rows begin with, and the units. */
static __m256i *scales_of(block *b, int64_t group) {
    return (__m256i *)(void *)b->scale[group];
}
static __m256i *start_of(block *b) {
    return (__m256i *)(void *)b->min[0];
}
static float *units_of(block *b) {
    return b->min[1];
}

bool avx2_estimate_can(const pack_format *f, int64_t n_row) {
    return f->layout == PACK_TILE && f->bits == 8 && f->group == GROUP && f->scale == PACK_SCALE_F16 &&
           !f->asym && f->table == PACK_TABLE_NONE && f->packing == PACK_PARTS && !f->sparse && n_row > 1;
}

/* A panel's largest scales, and the mean of their squares. */
typedef struct panel_scales {
    vf max, mean;
} panel_scales;

static panel_scales scales_in(const view *w, int64_t panel) {
    const pack_format *f = &w->format;
    const uint8_t *at = (const uint8_t *)w->data + panel * tile_panel_bytes(f, w->k);
    vf squares = v_zero(), max = v_zero();
    int64_t n_group = 0;
    for (int64_t c = 0; c * TILE_CHUNK_K < w->k; c++) {
        const tile_chunk chunk = tile_chunk_at(f, at, w->k, c);
        const int64_t n = num_div_up(NUM_MIN(w->k - c * TILE_CHUNK_K, (int64_t)TILE_CHUNK_K), f->group);
        for (int64_t g = 0; g < n; g++) {
            const vf scale = v_load_f16((const void *)(chunk.scales + g * tile_scale_step(f)));
            squares = v_fma(scale, scale, squares);
            max = v_max(max, v_abs(scale));
        }
        n_group += n;
    }
    return (panel_scales){max, v_mul(squares, v_set(1.0f / (float)n_group))};
}

/* The estimates of columns [n0, n1). */
typedef struct estimates {
    tile_job job; /* first, since kernels know only this member */
    int64_t n0;
    float *error; /* [n1 - n0] */
} estimates;

/* The largest integer scale of a product over k. */
static float top_scale(int64_t k) {
    return (float)NUM_MIN(MAX_SUM / (tile_count(k) * TILE_K / GROUP), (int64_t)MAX_SCALE);
}

/* ---- unpacking ---- */

/* 8 scales as multiples of the unit, each in both halves of 32 bits. */
static __m256i whole_scales(__m256 scale, __m256 per_unit) {
    const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(scale, per_unit));
    return _mm256_blend_epi16(whole, _mm256_slli_epi32(whole, 16), 0xaa);
}

/* Unpacks a group's 8 lines from `codes` on, and returns the sums of each row's weights times its scale. */
LANES_INLINE void unpack_group(const uint8_t *codes, uint8_t *to, const __m256i scale[2], __m256i sum[2]) {
    const __m256i low = _mm256_set1_epi8(31), zero = _mm256_setzero_si256(), eight = _mm256_set1_epi8(8);
    const __m256i one = _mm256_set1_epi8(1);
    __m256i weights[2] = {zero, zero};
    for (int i = 0; i < 8 * TILE_LINE; i += TILE_LINE) {
        LANES_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256i code = _mm256_loadu_si256((const void *)(codes + i + 32 * h));
            const __m256i twice = _mm256_and_si256(_mm256_srli_epi16(code, 3), low);
            const __m256i upper = _mm256_sub_epi8(_mm256_avg_epu8(twice, zero), eight);
            _mm256_store_si256((void *)(to + i + 32 * h), upper);
            weights[h] = _mm256_add_epi16(weights[h], _mm256_maddubs_epi16(one, upper));
        }
    }
    LANES_UNROLL
    for (int h = 0; h < 2; h++)
        sum[h] = _mm256_add_epi32(sum[h], _mm256_madd_epi16(weights[h], scale[h]));
}

/* The standard deviation of the estimates of a panel, for activations of length 1. Rounding to the upper half
 * has an error of up to 8 codes, rounding a scale one of up to half a unit, times the sum of 32 products of
 * at most 8. */
static vf error_of(vf mean_square, vf unit) {
    const vf variance = v_fma(v_mul(unit, unit), v_set(2048), v_mul(mean_square, v_set(256)));
    const vf mean = v_mul(variance, v_set(1.0f / 12));
    return BOTH(_mm256_sqrt_ps(mean.a), _mm256_sqrt_ps(mean.b));
}

static void unpack_estimate(const block_job *j, int64_t c0, int64_t c1) {
    const view *w = j->job->a->w;
    const pack_format *f = &w->format;
    const void *panel = (const uint8_t *)w->data + j->panel * j->job->panel_bytes;
    const estimates *e = (const void *)j->job;
    const panel_scales s = scales_in(w, j->panel);
    const vf top = v_set(top_scale(w->k)), unit = v_div(s.max, top);
    const vf per_unit = v_select(v_less(v_zero(), s.max), v_div(top, s.max), v_zero());
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    uint8_t *to = j->b->lines[0];
    int64_t group = 0;
    for (int64_t i = c0; i < c1; i++) {
        const tile_chunk c = tile_chunk_at(f, panel, w->k, i);
        for (int g = 0; g < 2 * c.n_tile; g++, to += 8 * TILE_LINE) {
            const vf scale = v_load_f16((const void *)(c.scales + g * tile_scale_step(f)));
            __m256i *whole = scales_of(j->b, group++);
            whole[0] = whole_scales(scale.a, per_unit.a);
            whole[1] = whole_scales(scale.b, per_unit.b);
            unpack_group(c.codes + g * 8 * TILE_LINE, to, whole, sum);
        }
    }
    for (int h = 0; h < 2; h++)
        start_of(j->b)[h] = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_setzero_si256(), sum[h]), 7);
    v_store(units_of(j->b), v_mul(unit, v_set(16)));
    v_store(e->error + j->panel * PACK_PANEL - e->n0, error_of(s.mean, unit));
}

/* ---- multiplying ---- */

LANES_INLINE void multiply_group(int nt, const uint8_t *lines, const char *x, int64_t x_bytes,
                                 const __m256i scale[2], __m256i acc[ROWS][2]) {
    __m256i sum[ROWS][2];
    LANES_UNROLL
    for (int q = 0; q < 8; q++) {
        const __m256i w0 = _mm256_load_si256((const void *)(lines + q * TILE_LINE));
        const __m256i w1 = _mm256_load_si256((const void *)(lines + q * TILE_LINE + 32));
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m256i xs = broadcast_int(x + t * x_bytes + 4 * q);
            const __m256i p0 = _mm256_maddubs_epi16(xs, w0), p1 = _mm256_maddubs_epi16(xs, w1);
            sum[t][0] = dot_opaque(q ? _mm256_add_epi16(sum[t][0], p0) : p0);
            sum[t][1] = dot_opaque(q ? _mm256_add_epi16(sum[t][1], p1) : p1);
        }
    }
    LANES_UNROLL
    for (int i = 0; i < 2 * nt; i++)
        acc[i / 2][i % 2] = dot_opaque(
            _mm256_add_epi32(acc[i / 2][i % 2], _mm256_madd_epi16(sum[i / 2][i % 2], scale[i % 2])));
}

/* Multiplies nt rows from row m on with the block. Between blocks of K their integers are in y. */
LANES_INLINE void multiply_estimate(int nt, const block_job *j, int64_t m) {
    const tile_job *job = j->job;
    const int n_group = 2 * j->n_tile;
    const int64_t bytes = job->x_bytes;
    const char *x = (const char *)job->a->q.data + m * bytes, *codes = x + j->tile0 * TILE_K;
    const uint8_t *lines = j->b->lines[0];
    __m256i acc[ROWS][2];
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        const vf y = j->is_first ? v_zero() : tile_load(job, j->panel, m + t);
        acc[t][0] = _mm256_add_epi32(_mm256_castps_si256(y.a), start_of(j->b)[0]);
        acc[t][1] = _mm256_add_epi32(_mm256_castps_si256(y.b), start_of(j->b)[1]);
    }
    const char *const ahead = j->ahead, *const next = j->next;
    for (int g = 0; g < n_group; g++, codes += GROUP, lines += GROUP / 4 * TILE_LINE) {
        _mm_prefetch(ahead + g * TILE_LINE, _MM_HINT_T1);
        _mm_prefetch(next + g * TILE_LINE, _MM_HINT_T1);
        multiply_group(nt, lines, codes, bytes, scales_of(j->b, g), acc);
    }
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        if (j->is_last) {
            const __m256 scale = broadcast_float(x + t * bytes + job->scale);
            const vf y = BOTH(_mm256_cvtepi32_ps(acc[t][0]), _mm256_cvtepi32_ps(acc[t][1]));
            tile_finish(job, j->panel, m + t, v_mul(y, v_mul(BOTH(scale, scale), v_load(units_of(j->b)))));
        } else {
            tile_store(job, j->panel, m + t,
                       BOTH(_mm256_castsi256_ps(acc[t][0]), _mm256_castsi256_ps(acc[t][1])));
        }
    }
}
static void estimate_1(const block_job *j, int64_t m) {
    multiply_estimate(1, j, m);
}
static void estimate_2(const block_job *j, int64_t m) {
    multiply_estimate(2, j, m);
}
static void estimate_3(const block_job *j, int64_t m) {
    multiply_estimate(3, j, m);
}

void avx2_estimate(const linear_args *a, int64_t n0, int64_t n1, float *error) {
    const estimates e = {tile_job_of(a, 32), n0, error};
    static const multiply_fn multiply[ROWS] = {estimate_1, estimate_2, estimate_3};
    run_blocks(&e.job, &(block_kernel){unpack_estimate, multiply, ROWS, GROUP}, n0, n1);
}
