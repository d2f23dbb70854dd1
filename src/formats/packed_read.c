/* packed_read.c - see packed_matrix.h: reads rows of a packed matrix as codes minus zeros, with one scale for
 * each group. */
#include "formats/packed_rows.h"

#include "base/mem.h"
#include "base/num.h"
#include "numbers/blocks.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

nib_status packed_read_part(const packed_rows *r, const container_tensor *t, uint64_t at, void *out,
                            uint64_t n_byte, nib_error *err) {
    if (at > t->bytes || n_byte > t->bytes - at)
        return nib_fail(err, NIB_E_MODEL,
                        "tensor '%s': expected the bytes that its matrix needs, found fewer", t->name);
    return file_read_at(container_file(r->c, t->file), out, t->offset + at, n_byte, err);
}

/* Value i, `bits` wide, of a run of little-endian words; it may span two words. */
static inline unsigned bits_at(const uint32_t *words, int64_t i, int bits) {
    const int64_t at = i * bits;
    const int low = (int)(at % 32);
    uint64_t both = words[at / 32];
    if (low + bits > 32)
        both |= (uint64_t)words[at / 32 + 1] << 32;
    return (unsigned)(both >> low & ((1u << bits) - 1));
}

/* AWQ: the fields of a word hold 8 neighbouring outputs in the order 0, 2, 4, 6, 1, 3, 5, 7. */
static inline int awq_field(int64_t output) {
    const int i = (int)(output % 8);
    return i % 2 * 4 + i / 2;
}

/* ---- scales ---- */

float packed_scale_at(type_id type, const uint8_t *raw, int64_t i) {
    float f;
    uint16_t h;
    if (type == TYPE_F32) {
        memcpy(&f, raw + 4 * i, sizeof f);
        return f;
    }
    memcpy(&h, raw + 2 * i, sizeof h);
    return type == TYPE_F16 ? half_to_float(h) : bf16_to_float(h);
}

static bool by_column(const packed_matrix *m) {
    return m->kind == PACKED_AWQ || m->kind == PACKED_GPTQ; /* scales are [n_group, n] */
}

static nib_status read_scales(const packed_rows *r, nib_error *err) {
    const packed_matrix *m = r->m;
    const uint64_t each = (uint64_t)type_get(m->scales.type)->block_bytes;
    if (!by_column(m)) {
        NIB_TRY(packed_read_part(r, &m->scales, (uint64_t)(r->first * m->n_group) * each, r->raw,
                                 (uint64_t)(r->n * m->n_group) * each, err));
        for (int64_t i = 0; i < r->n * m->n_group; i++)
            r->scale[i] = packed_scale_at(m->scales.type, r->raw, i);
        return NIB_OK;
    }
    for (int64_t g = 0; g < m->n_group; g++) {
        NIB_TRY(packed_read_part(r, &m->scales, (uint64_t)(g * m->n + r->first) * each, r->raw,
                                 (uint64_t)r->n * each, err));
        for (int64_t i = 0; i < r->n; i++)
            r->scale[i * m->n_group + g] = packed_scale_at(m->scales.type, r->raw, i);
    }
    return NIB_OK;
}

/* ---- zeros ---- */

/* Reads words of row `line` of a tensor that has n_word words in a row: those of n values from `first` on,
 * which is at a word boundary. */
static nib_status read_words(const packed_rows *r, const container_tensor *t, int64_t line, int64_t n_word,
                             int64_t first, int64_t n, int bits, nib_error *err) {
    const int64_t begin = first * bits / 32, end = num_div_up((first + n) * bits, 32);
    return packed_read_part(r, t, (uint64_t)(line * n_word + begin) * 4, r->raw, (uint64_t)(end - begin) * 4,
                            err);
}

static nib_status zeros_by_column(const packed_rows *r, nib_error *err) {
    const packed_matrix *m = r->m;
    const uint32_t *words = (const void *)r->raw;
    const int64_t span = m->kind == PACKED_AWQ ? 8 : 32; /* values between word boundaries */
    const int64_t first = r->first / span * span,
                  n = NUM_MIN(num_round_up(r->first + r->n, span), m->n) - first;
    for (int64_t g = 0; g < m->n_group; g++) {
        NIB_TRY(read_words(r, &m->zeros, g, m->n * m->bits / 32, first, n, m->bits, err));
        for (int64_t i = 0; i < r->n; i++) {
            const int64_t o = r->first + i - first;
            unsigned z =
                m->kind == PACKED_AWQ ? words[o / 8] >> 4 * awq_field(o) & 15 : bits_at(words, o, m->bits);
            if (m->zeros_less_one)
                z = (z + 1) & ((1u << m->bits) - 1);
            r->zero[i * m->n_group + g] = (int16_t)z;
        }
    }
    return NIB_OK;
}

/* compressed-tensors: signed bytes [n, n_group], or words that hold 32 / bits neighbouring rows. */
static nib_status zeros_by_row(const packed_rows *r, nib_error *err) {
    const packed_matrix *m = r->m;
    const int half = 1 << (m->bits - 1), in_word = 32 / m->bits;
    if (m->zeros.type == TYPE_I8) {
        NIB_TRY(packed_read_part(r, &m->zeros, (uint64_t)(r->first * m->n_group), r->raw,
                                 (uint64_t)(r->n * m->n_group), err));
        for (int64_t i = 0; i < r->n * m->n_group; i++)
            r->zero[i] = (int16_t)((int8_t)r->raw[i] + half);
        return NIB_OK;
    }
    const int64_t begin = r->first / in_word, end = num_div_up(r->first + r->n, in_word);
    const uint32_t *words = (const void *)r->raw;
    NIB_TRY(packed_read_part(r, &m->zeros, (uint64_t)(begin * m->n_group) * 4, r->raw,
                             (uint64_t)((end - begin) * m->n_group) * 4, err));
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t g = 0; g < m->n_group; g++) {
            const int64_t row = r->first + i;
            const uint32_t word = words[(row / in_word - begin) * m->n_group + g];
            r->zero[i * m->n_group + g] = (int16_t)(word >> row % in_word * m->bits & ((1u << m->bits) - 1));
        }
    return NIB_OK;
}

static nib_status read_zeros(const packed_rows *r, nib_error *err) {
    const packed_matrix *m = r->m;
    if (m->zeros.name)
        return by_column(m) ? zeros_by_column(r, err) : zeros_by_row(r, err);
    const int zero = m->kind == PACKED_INT8 ? 0 : 1 << (m->bits - 1);
    for (int64_t i = 0; i < r->n * m->n_group; i++)
        r->zero[i] = (int16_t)zero;
    return NIB_OK;
}

/* ---- codes ---- */

static nib_status codes_awq(const packed_rows *r, nib_error *err) {
    const packed_matrix *m = r->m;
    const uint32_t *words = (const void *)r->raw;
    const int64_t begin = r->first / 8, end = num_div_up(r->first + r->n, 8);
    for (int64_t k = 0; k < m->k; k++) {
        NIB_TRY(packed_read_part(r, &m->codes, (uint64_t)(k * (m->n / 8) + begin) * 4, r->raw,
                                 (uint64_t)(end - begin) * 4, err));
        for (int64_t i = 0; i < r->n; i++) {
            const int64_t o = r->first + i;
            r->code[i * m->k + k] = (int16_t)(words[o / 8 - begin] >> 4 * awq_field(o) & 15);
        }
    }
    return NIB_OK;
}

/* Words [k * bits / 32, n]. Reads as many lines at a time as hold whole values. */
static nib_status codes_gptq(const packed_rows *r, nib_error *err) {
    const packed_matrix *m = r->m;
    const int n_line = m->bits == 3 ? 3 : 1, n_value = n_line * 32 / m->bits;
    uint32_t *words = (void *)r->raw;
    for (int64_t line = 0; line < m->k * m->bits / 32; line += n_line) {
        for (int l = 0; l < n_line; l++)
            NIB_TRY(packed_read_part(r, &m->codes, (uint64_t)((line + l) * m->n + r->first) * 4,
                                     words + l * r->n, (uint64_t)r->n * 4, err));
        const int64_t k = line / n_line * n_value;
        for (int64_t i = 0; i < r->n; i++) {
            uint32_t own[3] = {0};
            for (int l = 0; l < n_line; l++)
                own[l] = words[l * r->n + i];
            for (int j = 0; j < n_value; j++)
                r->code[i * m->k + k + j] = (int16_t)bits_at(own, j, m->bits);
        }
    }
    return NIB_OK;
}

static nib_status codes_by_row(const packed_rows *r, nib_error *err) {
    const packed_matrix *m = r->m;
    const uint64_t each =
        m->kind == PACKED_INT8 ? (uint64_t)m->k : (uint64_t)num_div_up(m->k * m->bits, 32) * 4;
    for (int64_t i = 0; i < r->n; i++) {
        NIB_TRY(packed_read_part(r, &m->codes, (uint64_t)(r->first + i) * each, r->raw, each, err));
        for (int64_t k = 0; k < m->k; k++)
            r->code[i * m->k + k] = m->kind == PACKED_INT8
                                        ? (int8_t)r->raw[k]
                                        : (int16_t)bits_at((const void *)r->raw, k, m->bits);
    }
    return NIB_OK;
}

static nib_status read_codes(const packed_rows *r, nib_error *err) {
    const packed_matrix *m = r->m;
    NIB_TRY(m->kind == PACKED_AWQ    ? codes_awq(r, err)
            : m->kind == PACKED_GPTQ ? codes_gptq(r, err)
                                     : codes_by_row(r, err));
    const int64_t group = m->k / m->n_group;
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t k = 0; k < m->k; k++)
            r->code[i * m->k + k] -= r->zero[i * m->n_group + (r->order ? r->order[k] : k / group)];
    return NIB_OK;
}

/* ---- buffers ---- */

/* Reads each column's group. *by_place: groups are runs of neighbouring columns, as without the tensor. */
static nib_status read_order(const packed_rows *r, int32_t *order, bool *by_place, nib_error *err) {
    const packed_matrix *m = r->m;
    const int64_t group = m->k / m->n_group;
    *by_place = true;
    if (!m->order.name)
        return NIB_OK;
    NIB_TRY(packed_read_part(r, &m->order, 0, order, (uint64_t)m->k * 4, err));
    for (int64_t k = 0; k < m->k; k++) {
        if (order[k] < 0 || order[k] >= m->n_group)
            return nib_fail(err, NIB_E_MODEL,
                            "tensor '%s': expected groups below %" PRId64 ", found %" PRId32, m->order.name,
                            m->n_group, order[k]);
        *by_place = *by_place && order[k] == k / group;
    }
    return NIB_OK;
}

static void rows_close(packed_rows *r) {
    mem_free(r->code);
    mem_free(r->scale);
    mem_free(r->zero);
    mem_free(r->order);
    mem_free(r->raw);
}

static nib_status rows_open(packed_rows *r, const container *c, const container_tensor *t, int64_t first,
                            int64_t n, bool codes, nib_error *err) {
    const packed_matrix *m = t->packed;
    const size_t n_group = (size_t)(n * m->n_group);
    bool by_place = true;
    *r = (packed_rows){.c = c, .t = t, .m = m, .first = first, .n = n};
    r->code = mem_array(codes ? (size_t)(n * m->k) : 1, sizeof *r->code);
    r->scale = mem_array(n_group, sizeof *r->scale);
    r->zero = mem_array(n_group, sizeof *r->zero);
    r->order = mem_array((size_t)m->k, sizeof *r->order);
    r->raw = mem_array((size_t)(n + 64) * (size_t)NUM_MAX(m->n_group, (int64_t)4) + (size_t)m->k, 4);
    nib_status status = NIB_OK;
    if (!r->code || !r->scale || !r->zero || !r->order || !r->raw)
        status = nib_fail_nomem(err, (size_t)(n * m->k) * sizeof *r->code, "rows of a packed matrix");
    if (status == NIB_OK)
        status = read_order(r, r->order, &by_place, err);
    if (by_place) {
        mem_free(r->order);
        r->order = NULL;
    }
    if (status == NIB_OK)
        status = read_scales(r, err);
    if (status == NIB_OK)
        status = read_zeros(r, err);
    if (status == NIB_OK && codes)
        status = read_codes(r, err);
    if (status != NIB_OK)
        rows_close(r);
    return status;
}

/* ---- types ---- */

static int limit_of(type_id type) {
    return type == TYPE_Q4_0 ? 8 : type == TYPE_Q5_0 ? 16 : 128;
}

static bool is_half(float s) {
    return isfinite(s) && half_to_float(half_from_float(s)) == s;
}

/* Widens *type until it holds the values of these rows. */
static void widen(const packed_rows *r, type_id *type) {
    const int highest = r->m->kind == PACKED_INT8 ? 127 : (1 << r->m->bits) - 1;
    const int lowest = r->m->kind == PACKED_INT8 ? -128 : 0;
    if (r->order)
        *type = TYPE_F32;
    for (int64_t i = 0; i < r->n * r->m->n_group && *type != TYPE_F32; i++) {
        const int low = lowest - r->zero[i], high = highest - r->zero[i];
        if (!is_half(r->scale[i]))
            *type = TYPE_F32;
        while (*type != TYPE_F32 && (low < -limit_of(*type) || high >= limit_of(*type)))
            *type = *type == TYPE_Q4_0 ? TYPE_Q5_0 : *type == TYPE_Q5_0 ? TYPE_Q8_0 : TYPE_F32;
    }
}

nib_status packed_type(const container *c, const container_tensor *t, type_id *out, nib_error *err) {
    enum { AT_ONCE = 1024 };
    const packed_matrix *m = t->packed;
    if (m->kind == PACKED_MXFP4) {
        *out = TYPE_MXFP4;
        return NIB_OK;
    }
    const bool floats = m->kind == PACKED_NF4 || packed_runs(m);
    *out = floats ? m->dtype : m->k / m->n_group % 32 ? TYPE_F32 : TYPE_Q4_0;
    for (int64_t first = 0; first < m->n && !floats; first += AT_ONCE) {
        packed_rows r;
        NIB_TRY(rows_open(&r, c, t, first, NUM_MIN((int64_t)AT_ONCE, m->n - first), false, err));
        widen(&r, out);
        rows_close(&r);
    }
    return NIB_OK;
}

type_id packed_runs_as(const packed_matrix *m, bool scaled) {
    if (m->kind == PACKED_MXFP4)
        return TYPE_MXFP4;
    if (!scaled || m->k % 64)
        return TYPE_F32;
    return m->kind == PACKED_NVFP4                                                        ? TYPE_F4G64
           : m->kind == PACKED_FP8 && m->codes.type == TYPE_F8_E4M3 && m->block % 64 == 0 ? TYPE_F8G64
                                                                                          : TYPE_F32;
}

type_id packed_narrow(const packed_matrix *m, type_id usual) {
    const int64_t group = m->k / m->n_group;
    if ((usual != TYPE_Q4_0 && usual != TYPE_Q5_0) || m->bits > 4)
        return usual;
    return group % 128 == 0     ? TYPE_N4G128
           : group % 64 == 0    ? TYPE_N4G64
           : usual == TYPE_Q5_0 ? TYPE_N4G32
                                : usual;
}

static nib_status put_n4(const packed_rows *r, const int16_t *v, int n, int zero, uint16_t d, block_n4 *b,
                         nib_error *err) {
    memcpy(b->d, &d, sizeof b->d);
    b->zero = (uint8_t)zero;
    for (int i = 0; i < n; i++)
        if (zero < 0 || zero > N4_ZERO_MAX || v[i] + zero < 0 || v[i] + zero > 15)
            return nib_fail(err, NIB_E_MODEL, "tensor '%s': 4 bits cannot hold the code %d with the zero %d",
                            r->t->name, v[i] + zero, zero);
    for (int i = 0; i < n / 2; i++) {
        const int16_t *at = v + i / 16 * 32 + i % 16;
        b->qs[i] = (uint8_t)((at[0] + zero) | (at[16] + zero) << 4);
    }
    return NIB_OK;
}

static void put_q4_0(const int16_t *v, uint16_t d, block_q4_0 *b) {
    memcpy(b->d, &d, sizeof b->d);
    for (int i = 0; i < 16; i++)
        b->qs[i] = (uint8_t)((v[i] + 8) | (v[i + 16] + 8) << 4);
}

static void put_q5_0(const int16_t *v, uint16_t d, block_q5_0 *b) {
    uint32_t high = 0;
    memcpy(b->d, &d, sizeof b->d);
    for (int i = 0; i < 16; i++)
        b->qs[i] = (uint8_t)(((v[i] + 16) & 15) | ((v[i + 16] + 16) & 15) << 4);
    for (int i = 0; i < 32; i++)
        high |= (uint32_t)(v[i] + 16) >> 4 << i;
    memcpy(b->qh, &high, sizeof b->qh);
}

static void put_q8_0(const int16_t *v, uint16_t d, block_q8_0 *b) {
    memcpy(b->d, &d, sizeof b->d);
    for (int i = 0; i < 32; i++)
        b->qs[i] = (int8_t)v[i];
}

static bool is_n4(type_id as) {
    return as == TYPE_N4G32 || as == TYPE_N4G64 || as == TYPE_N4G128;
}

/* Writes one block; group: index of its scale. */
static nib_status put_block(const packed_rows *r, type_id as, const int16_t *v, int64_t group, uint8_t *out,
                            nib_error *err) {
    const int limit = limit_of(as);
    const float scale = r->scale[group];
    for (int i = 0; i < 32 && !is_n4(as); i++)
        if (v[i] < -limit || v[i] >= limit)
            return nib_fail(err, NIB_E_MODEL, "tensor '%s': %s cannot hold the code %d", r->t->name,
                            type_get(as)->name, v[i]);
    if (!is_half(scale))
        return nib_fail(err, NIB_E_MODEL, "tensor '%s': expected a scale that is exact in f16, found %s",
                        r->t->name, num_text((double)scale, 6));
    const uint16_t d = half_from_float(scale);
    if (is_n4(as))
        return put_n4(r, v, type_get(as)->block_elems, r->zero[group], d, (void *)out, err);
    if (as == TYPE_Q4_0)
        put_q4_0(v, d, (void *)out);
    else if (as == TYPE_Q5_0)
        put_q5_0(v, d, (void *)out);
    else
        put_q8_0(v, d, (void *)out);
    return NIB_OK;
}

static nib_status put_rows(const packed_rows *r, type_id as, uint8_t *out, nib_error *err) {
    const packed_matrix *m = r->m;
    const int64_t group = m->k / m->n_group;
    float *values = (void *)out;
    if (as == TYPE_F32) {
        for (int64_t i = 0; i < r->n; i++)
            for (int64_t k = 0; k < m->k; k++)
                values[i * m->k + k] = r->scale[i * m->n_group + (r->order ? r->order[k] : k / group)] *
                                       (float)r->code[i * m->k + k];
        return NIB_OK;
    }
    const int64_t elems = type_get(as)->block_elems;
    if (r->order || group % elems || (as != TYPE_Q4_0 && as != TYPE_Q5_0 && as != TYPE_Q8_0 && !is_n4(as)))
        return nib_fail(err, NIB_E_MODEL, "tensor '%s': %s cannot hold its groups", r->t->name,
                        type_get(as)->name);
    const int64_t each = type_get(as)->block_bytes;
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t k = 0; k < m->k; k += elems, out += each)
            NIB_TRY(put_block(r, as, r->code + i * m->k + k, i * m->n_group + k / group, out, err));
    return NIB_OK;
}

/* ---- all ---- */

nib_status packed_read(const container *c, const container_tensor *t, int64_t first, int64_t n, type_id as,
                       void *out, nib_error *err) {
    const packed_matrix *m = t->packed;
    packed_rows r = {.c = c, .t = t, .m = m, .first = first, .n = n};
    if (m->kind == PACKED_NF4)
        return packed_read_nf4(&r, as, out, err);
    if (m->kind == PACKED_FP8)
        return packed_read_fp8(&r, as, out, err);
    if (m->kind == PACKED_NVFP4)
        return packed_read_nvfp4(&r, as, out, err);
    if (m->kind == PACKED_MXFP4)
        return packed_read_mxfp4(&r, as, out, err);
    if (m->kind == PACKED_HEADS)
        return packed_read_heads(&r, out, err);
    NIB_TRY(rows_open(&r, c, t, first, n, true, err));
    const nib_status status = put_rows(&r, as, out, err);
    rows_close(&r);
    return status;
}
