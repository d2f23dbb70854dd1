/* packed_float.c - see packed_rows.h: matrices whose codes are floats, NF4 of bitsandbytes, FP8,
 * NVFP4 and MXFP4. */
#include "formats/packed_rows.h"

#include "base/mem.h"
#include "base/num.h"
#include "numbers/blocks.h"

#include <string.h>

/* ---- bitsandbytes ---- */

static nib_status read_absmax(const packed_rows *r, int64_t first, int64_t n, float *out, nib_error *err) {
    const packed_matrix *m = r->m;
    if (!m->nested_absmax.name)
        return packed_read_part(r, &m->scales, (uint64_t)first * 4, out, (uint64_t)n * 4, err);
    float map[256] = {0};
    const int64_t begin = first / m->nested_block, end = (first + n - 1) / m->nested_block + 1;
    float *nested = mem_array((size_t)(end - begin), sizeof *nested);
    uint8_t *codes = mem_alloc((size_t)n);
    nib_status status = NIB_OK;
    if (!nested || !codes)
        status = nib_fail_nomem(err, (size_t)n, "scales of a packed matrix");
    if (status == NIB_OK)
        status = packed_read_part(r, &m->nested_map, 0, map, sizeof map, err);
    if (status == NIB_OK)
        status = packed_read_part(r, &m->nested_absmax, (uint64_t)begin * 4, nested,
                                  (uint64_t)(end - begin) * 4, err);
    if (status == NIB_OK)
        status = packed_read_part(r, &m->scales, (uint64_t)first, codes, (uint64_t)n, err);
    for (int64_t i = 0; i < n && status == NIB_OK; i++) {
        const float scaled = map[codes[i]] * nested[(first + i) / m->nested_block - begin];
        out[i] = scaled + (float)m->nested_offset;
    }
    mem_free(nested);
    mem_free(codes);
    return status;
}

static void put_value(type_id as, float v, uint8_t *out, int64_t i) {
    const uint16_t h = as == TYPE_F16 ? half_from_float(v) : bf16_from_float(v);
    if (as == TYPE_F32)
        memcpy(out + 4 * i, &v, sizeof v);
    else
        memcpy(out + 2 * i, &h, sizeof h);
}

/* The value rounded to `dtype`, as F32. */
static float in_dtype(type_id dtype, float v) {
    return dtype == TYPE_F16    ? half_to_float(half_from_float(v))
           : dtype == TYPE_BF16 ? bf16_to_float(bf16_from_float(v))
                                : v;
}

nib_status packed_read_nf4(const packed_rows *r, type_id as, uint8_t *out, nib_error *err) {
    const packed_matrix *m = r->m;
    const int64_t first = r->first * m->k, n = r->n * m->k;
    const int64_t block = first / m->block, n_block = (first + n - 1) / m->block + 1 - block;
    const uint64_t begin = (uint64_t)first / 2, end = ((uint64_t)(first + n) + 1) / 2;
    float map[16] = {0}, *absmax = mem_array((size_t)n_block, sizeof *absmax);
    uint8_t *codes = mem_alloc((size_t)(end - begin));
    nib_status status = NIB_OK;
    if (!absmax || !codes)
        status = nib_fail_nomem(err, (size_t)(end - begin), "rows of a packed matrix");
    if (status == NIB_OK)
        status = packed_read_part(r, &m->map, 0, map, sizeof map, err);
    if (status == NIB_OK)
        status = read_absmax(r, block, n_block, absmax, err);
    if (status == NIB_OK)
        status = packed_read_part(r, &m->codes, begin, codes, end - begin, err);
    for (int64_t i = 0; i < n && status == NIB_OK; i++) { /* the high half of a byte comes first */
        const uint8_t both = codes[(uint64_t)(first + i) / 2 - begin];
        const float v = map[(first + i) % 2 ? both & 15 : both >> 4] * absmax[(first + i) / m->block - block];
        put_value(as, in_dtype(m->dtype, v), out, i);
    }
    mem_free(absmax);
    mem_free(codes);
    return status;
}

/* ---- fp8 ---- */

/* A row with one scale for each 64 values. NaN has no code there. */
static nib_status put_f8(const packed_rows *r, const uint8_t *codes, const uint8_t *scales, block_f8g64 *out,
                         nib_error *err) {
    const packed_matrix *m = r->m;
    for (int64_t k = 0; k < m->k; k += 64, out++) {
        const float scale = packed_scale_at(m->scales.type, scales, k / m->block);
        bool numbers = true;
        memcpy(out->scale, &scale, sizeof scale);
        memcpy(out->codes, codes + k, sizeof out->codes);
        for (int i = 0; i < 64; i++)
            numbers = numbers && (out->codes[i] & 0x7f) != 0x7f;
        if (!numbers)
            return nib_fail(err, NIB_E_MODEL, "tensor '%s': expected numbers, found NaN", m->codes.name);
    }
    return NIB_OK;
}

nib_status packed_read_fp8(const packed_rows *r, type_id as, uint8_t *out, nib_error *err) {
    const packed_matrix *m = r->m;
    const uint64_t each = (uint64_t)type_get(m->scales.type)->block_bytes * (uint64_t)m->n_group;
    uint8_t *codes = mem_alloc((size_t)m->k), *scales = mem_alloc((size_t)each);
    float *x = mem_array((size_t)m->k, sizeof *x);
    nib_status status = NIB_OK;
    if (!codes || !scales || !x)
        status = nib_fail_nomem(err, (size_t)m->k * sizeof *x, "rows of a packed matrix");
    for (int64_t i = 0; i < r->n && status == NIB_OK; i++) {
        const int64_t row = r->first + i;
        status = packed_read_part(r, &m->codes, (uint64_t)(row * m->k), codes, (uint64_t)m->k, err);
        if (status == NIB_OK)
            status =
                packed_read_part(r, &m->scales, (uint64_t)(row / m->block_rows) * each, scales, each, err);
        if (status != NIB_OK)
            break;
        if (as == TYPE_F8G64) {
            status = put_f8(r, codes, scales, (block_f8g64 *)(void *)out + i * (m->k / 64), err);
            continue;
        }
        type_get(m->codes.type)->dequantize(codes, x, m->k);
        for (int64_t k = 0; k < m->k; k++)
            x[k] *= packed_scale_at(m->scales.type, scales, k / m->block);
        for (int64_t k = 0; k < m->k; k++) /* f32 holds the values themselves */
            put_value(as, as == TYPE_F32 ? x[k] : in_dtype(m->dtype, x[k]), out, i * m->k + k);
    }
    mem_free(x);
    mem_free(scales);
    mem_free(codes);
    return status;
}

/* ---- nvfp4 ---- */

/* The factor of a row, for doubled values of e2m1. */
static nib_status read_whole_scale(const packed_rows *r, int64_t row, float *out, nib_error *err) {
    uint8_t raw[4];
    NIB_TRY(packed_read_part(r, &r->m->whole, (uint64_t)(row / r->m->block_rows) * 4, raw, 4, err));
    const float whole = packed_scale_at(TYPE_F32, raw, 0);
    *out = 0.5f * (r->m->whole_inverse ? 1 / whole : whole);
    return NIB_OK;
}

/* Value i of a row whose bytes have neighbours. */
static inline uint8_t e2m1_at(const uint8_t *codes, int64_t i) {
    return codes[i / 2] >> i % 2 * 4 & 15;
}

static void put_f4(const uint8_t *codes, const uint8_t *scales, float whole, int64_t n, block_f4g64 *out) {
    for (int64_t k = 0; k < n; k += 64, out++) {
        memcpy(out->whole, &whole, sizeof whole);
        memcpy(out->scale, scales + k / 16, sizeof out->scale);
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 16; i++)
                out->qs[half][i] = (uint8_t)(e2m1_at(codes, k + 32 * half + i) |
                                             e2m1_at(codes, k + 32 * half + i + 16) << 4);
    }
}

static void put_row(const packed_rows *r, const uint8_t *codes, const uint8_t *scales, float whole,
                    type_id as, uint8_t *out, int64_t i) {
    const int64_t k = r->m->k;
    if (as == TYPE_F4G64) {
        put_f4(codes, scales, whole, k, (block_f4g64 *)(void *)out + i * (k / 64));
        return;
    }
    for (int64_t j = 0; j < k; j++) {
        const float x = whole * block_e4m3(scales[j / 16]) * (float)e2m1_values[e2m1_at(codes, j)];
        put_value(as, as == TYPE_F32 ? x : in_dtype(r->m->dtype, x), out, i * k + j);
    }
}

/* Blocks of GGUF as bytes of neighbours, and scales. */
static void unfold_blocks(const block_nvfp4 *b, int64_t n, uint8_t *codes, uint8_t *scales) {
    for (int64_t at = 0; at < n; at += 64, b++)
        for (int g = 0; g < 4; g++) {
            const uint8_t scale = b->scale[g] & 0x7f;
            *scales++ = scale < 0x7f ? scale : 0; /* NaN counts as 0 */
            for (int shift = 0; shift < 8; shift += 4)
                for (int i = 0; i < 8; i += 2)
                    *codes++ = (uint8_t)((b->qs[g][i] >> shift & 15) | (b->qs[g][i + 1] >> shift & 15) << 4);
        }
}

/* Reads the codes and scales of a row, in the order of a folder. blocks: memory for a row of GGUF. */
static nib_status read_fp4_row(const packed_rows *r, int64_t row, uint8_t *codes, uint8_t *scales,
                               block_nvfp4 *blocks, nib_error *err) {
    const packed_matrix *m = r->m;
    const uint64_t n_code = (uint64_t)m->k / 2, n_scale = (uint64_t)m->k / 16;
    if (!m->scales.name) {
        const uint64_t each = (uint64_t)m->k / 64 * sizeof *blocks;
        NIB_TRY(packed_read_part(r, &m->codes, (uint64_t)row * each, blocks, each, err));
        unfold_blocks(blocks, m->k, codes, scales);
        return NIB_OK;
    }
    NIB_TRY(packed_read_part(r, &m->codes, (uint64_t)row * n_code, codes, n_code, err));
    NIB_TRY(packed_read_part(r, &m->scales, (uint64_t)row * n_scale, scales, n_scale, err));
    for (uint64_t g = 0; g < n_scale; g++)
        if (scales[g] >= 0x7f)
            return nib_fail(err, NIB_E_MODEL, "tensor '%s': expected scales of 0 or more, found 0x%x",
                            m->scales.name, scales[g]);
    return NIB_OK;
}

nib_status packed_read_nvfp4(const packed_rows *r, type_id as, uint8_t *out, nib_error *err) {
    const int64_t k = r->m->k;
    block_nvfp4 *blocks = mem_array((size_t)(k / 64 + 1), sizeof *blocks);
    uint8_t *codes = mem_alloc((size_t)(k / 2 + k / 16 + 1)), *scales = codes + k / 2;
    float whole = 0;
    nib_status status = blocks && codes ? NIB_OK : nib_fail_nomem(err, (size_t)k, "a row of a packed matrix");
    for (int64_t i = 0; i < r->n && status == NIB_OK; i++) {
        const int64_t row = r->first + i;
        if (i == 0 || row % r->m->block_rows == 0)
            status = read_whole_scale(r, row, &whole, err);
        if (status == NIB_OK)
            status = read_fp4_row(r, row, codes, scales, blocks, err);
        if (status == NIB_OK)
            put_row(r, codes, scales, whole, as, out, i);
    }
    mem_free(codes);
    mem_free(blocks);
    return status;
}

/* ---- latent attention ---- */

/* Dequantizes n rows of a tensor, each of k, from row `first` on. */
static nib_status read_whole(const packed_rows *r, const container_tensor *t, int64_t first, int64_t n,
                             int64_t k, uint8_t *raw, float *out, nib_error *err) {
    uint64_t each = 0;
    type_row_bytes(t->type, k, &each);
    NIB_TRY(packed_read_part(r, t, (uint64_t)first * each, raw, (uint64_t)n * each, err));
    for (int64_t i = 0; i < n; i++)
        type_dequantize_part(t->type, raw + (uint64_t)i * each, k, 0, out + i * k, k);
    return NIB_OK;
}

/* Rows of one head: columns of its keys' matrix, then rows of its values'. */
static nib_status read_head(const packed_rows *r, int64_t first, int64_t n, uint8_t *raw, float *keys,
                            float *out, nib_error *err) {
    const packed_matrix *m = r->m;
    const int64_t low = m->k, plain = m->codes.shape[2], values = m->scales.shape[1], both = plain + values;
    const int64_t head = first / both, at = first % both, n_key = NUM_MAX(NUM_MIN(plain - at, n), INT64_C(0));
    if (n_key > 0)
        NIB_TRY(read_whole(r, &m->codes, head * low, low, plain, raw, keys, err));
    for (int64_t i = 0; i < n_key; i++)
        for (int64_t k = 0; k < low; k++)
            out[i * low + k] = keys[k * plain + at + i];
    if (n_key == n)
        return NIB_OK;
    return read_whole(r, &m->scales, head * values + at + n_key - plain, n - n_key, low, raw,
                      out + n_key * low, err);
}

nib_status packed_read_heads(const packed_rows *r, float *out, nib_error *err) {
    const packed_matrix *m = r->m;
    const int64_t low = m->k, plain = m->codes.shape[2], values = m->scales.shape[1], both = plain + values;
    uint64_t of_keys = 0, of_values = 0;
    type_row_bytes(m->codes.type, plain, &of_keys);
    type_row_bytes(m->scales.type, low, &of_values);
    const uint64_t bytes = NUM_MAX(of_keys * (uint64_t)low, of_values * (uint64_t)values);
    uint8_t *raw = mem_alloc((size_t)bytes);
    float *keys = mem_array((size_t)(low * plain), sizeof *keys);
    nib_status status = raw && keys ? NIB_OK : nib_fail_nomem(err, (size_t)bytes, "the keys of a head");
    for (int64_t i = 0, n; i < r->n && status == NIB_OK; i += n) {
        n = NUM_MIN(r->n - i, both - (r->first + i) % both);
        status = read_head(r, r->first + i, n, raw, keys, out + i * low, err);
    }
    mem_free(keys);
    mem_free(raw);
    return status;
}

/* ---- mxfp4 ---- */

/* The file has neighbouring values in a byte; a block of GGUF has value i with value i + 16. */
static void turn_block(const uint8_t codes[16], uint8_t scale, block_mxfp4 *out) {
    out->e = scale;
    for (int i = 0; i < 16; i++) {
        const uint8_t low = codes[i / 2] >> i % 2 * 4 & 15, high = codes[8 + i / 2] >> i % 2 * 4 & 15;
        out->qs[i] = (uint8_t)(low | high << 4);
    }
}

nib_status packed_read_mxfp4(const packed_rows *r, type_id as, uint8_t *out, nib_error *err) {
    const packed_matrix *m = r->m;
    const uint64_t n_block = (uint64_t)m->n_group;
    uint8_t *codes = mem_alloc((size_t)n_block * 17);
    block_mxfp4 *row = mem_array((size_t)n_block, sizeof *row);
    nib_status status = codes && row ? NIB_OK : nib_fail_nomem(err, (size_t)n_block * 34, "a packed row");
    for (int64_t i = 0; i < r->n && status == NIB_OK; i++) {
        const uint64_t at = (uint64_t)(r->first + i) * n_block;
        status = packed_read_part(r, &m->codes, at * 16, codes, n_block * 16, err);
        if (status == NIB_OK)
            status = packed_read_part(r, &m->scales, at, codes + n_block * 16, n_block, err);
        for (uint64_t b = 0; b < n_block && status == NIB_OK; b++)
            turn_block(codes + b * 16, codes[n_block * 16 + b], &row[b]);
        if (as == TYPE_MXFP4)
            memcpy(out + (uint64_t)i * n_block * sizeof *row, row, n_block * sizeof *row);
        else
            type_get(TYPE_MXFP4)->dequantize(row, (float *)(void *)out + i * m->k, m->k);
    }
    mem_free(row);
    mem_free(codes);
    return status;
}
