/* packed_read.c - see packed_matrix.h: reads rows of a packed matrix as codes minus zeros, with one scale for
 * each group. */
#include "formats/packed_rows.h"

#include "base/mem.h"
#include "base/num.h"
#include "numbers/blocks.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
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

/* The first n values of such a run. */
static inline void unpack(const uint32_t *words, int64_t n, int bits, int16_t *out) {
    const uint8_t *bytes = (const void *)words;
    if (bits == 8)
        for (int64_t i = 0; i < n; i++)
            out[i] = bytes[i];
    else if (bits == 4 && n % 2 == 0)
        for (int64_t i = 0; i < n / 2; i++) {
            out[2 * i] = bytes[i] & 15;
            out[2 * i + 1] = bytes[i] >> 4;
        }
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = (int16_t)bits_at(words, i, bits);
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
    if (type == TYPE_F8_E8M0)
        return raw[i] == 0xff ? NAN : ldexpf(1, raw[i] - 127);
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

/* Codes of a tile, [n_row, n_col]: rows [row, row + n_row) of the run, columns [col, col + n_col). */
typedef struct tile {
    int64_t row, n_row, col, n_col;
    int16_t *code;
} tile;

/* Lines of the file are columns, so a tile has all rows of the run and few columns. LINES of them are read at
 * a time, so that the codes of a row are written as a run. */
static nib_status codes_awq(const packed_rows *r, const tile *t, nib_error *err) {
    enum { LINES = 16 };
    const packed_matrix *m = r->m;
    uint32_t *words = (void *)r->raw;
    const int64_t begin = r->first / 8, n_word = num_div_up(r->first + r->n, 8) - begin;
    for (int64_t k = 0, n; k < t->n_col; k += n) {
        n = NUM_MIN((int64_t)LINES, t->n_col - k);
        for (int64_t i = 0; i < n; i++)
            NIB_TRY(packed_read_part(r, &m->codes, (uint64_t)((t->col + k + i) * (m->n / 8) + begin) * 4,
                                     words + i * n_word, (uint64_t)n_word * 4, err));
        for (int64_t row = 0; row < t->n_row; row++) {
            const int64_t o = r->first + t->row + row;
            const uint32_t *from = words + o / 8 - begin;
            const int shift = 4 * awq_field(o);
            int16_t *to = t->code + row * t->n_col + k;
            for (int64_t i = 0; i < n; i++)
                to[i] = (int16_t)(from[i * n_word] >> shift & 15);
        }
    }
    return NIB_OK;
}

/* Words [k * bits / 32, n]. Reads as many lines at a time as hold whole values. */
static nib_status codes_gptq(const packed_rows *r, const tile *t, nib_error *err) {
    const packed_matrix *m = r->m;
    const int n_line = m->bits == 3 ? 3 : 1, n_value = n_line * 32 / m->bits;
    uint32_t *words = (void *)r->raw;
    for (int64_t k = 0; k < t->n_col; k += n_value) {
        const int64_t line = (t->col + k) / n_value * n_line;
        for (int l = 0; l < n_line; l++)
            NIB_TRY(packed_read_part(r, &m->codes, (uint64_t)((line + l) * m->n + r->first + t->row) * 4,
                                     words + l * t->n_row, (uint64_t)t->n_row * 4, err));
        for (int64_t i = 0; i < t->n_row; i++) {
            uint32_t own[3] = {0};
            for (int l = 0; l < n_line; l++)
                own[l] = words[l * t->n_row + i];
            unpack(own, n_value, m->bits, t->code + i * t->n_col + k);
        }
    }
    return NIB_OK;
}

/* A tile has whole rows. */
static nib_status codes_by_row(const packed_rows *r, const tile *t, nib_error *err) {
    const packed_matrix *m = r->m;
    const bool bytes = m->kind == PACKED_INT8;
    const uint64_t each = bytes ? (uint64_t)m->k : (uint64_t)num_div_up(m->k * m->bits, 32) * 4;
    for (int64_t i = 0; i < t->n_row; i++) {
        NIB_TRY(packed_read_part(r, &m->codes, (uint64_t)(r->first + t->row + i) * each, r->raw, each, err));
        for (int64_t k = 0; k < m->k && bytes; k++)
            t->code[i * m->k + k] = (int8_t)r->raw[k];
        if (!bytes)
            unpack((const void *)r->raw, m->k, m->bits, t->code + i * m->k);
    }
    return NIB_OK;
}

static int64_t group_of(const packed_rows *r, int64_t k) {
    return r->order ? r->order[k] : k / (r->m->k / r->m->n_group);
}

static nib_status read_codes(const packed_rows *r, const tile *t, nib_error *err) {
    const packed_matrix *m = r->m;
    NIB_TRY(m->kind == PACKED_AWQ    ? codes_awq(r, t, err)
            : m->kind == PACKED_GPTQ ? codes_gptq(r, t, err)
                                     : codes_by_row(r, t, err));
    const int64_t group = m->k / m->n_group;
    for (int64_t i = 0; i < t->n_row; i++)
        for (int64_t k = 0, n; k < t->n_col; k += n) { /* values with one zero */
            const int16_t zero = r->zero[(t->row + i) * m->n_group + group_of(r, t->col + k)];
            int16_t *code = t->code + i * t->n_col + k;
            n = r->order ? 1 : NUM_MIN(group - (t->col + k) % group, t->n_col - k);
            for (int64_t j = 0; j < n; j++)
                code[j] -= zero;
        }
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
    mem_free(r->scale);
    mem_free(r->zero);
    mem_free(r->order);
    mem_free(r->raw);
}

/* Reads all but the codes. */
static nib_status rows_open(packed_rows *r, const container *c, const container_tensor *t, int64_t first,
                            int64_t n, nib_error *err) {
    const packed_matrix *m = t->packed;
    const size_t n_group = (size_t)(n * m->n_group);
    bool by_place = true;
    *r = (packed_rows){.c = c, .t = t, .m = m, .first = first, .n = n};
    r->scale = mem_array(n_group, sizeof *r->scale);
    r->zero = mem_array(n_group, sizeof *r->zero);
    r->order = mem_array((size_t)m->k, sizeof *r->order);
    r->raw = mem_array((size_t)(n + 64) * (size_t)NUM_MAX(m->n_group, (int64_t)4) + (size_t)m->k, 4);
    nib_status status = NIB_OK;
    if (!r->scale || !r->zero || !r->order || !r->raw)
        status = nib_fail_nomem(err, n_group * sizeof *r->scale, "scales of a packed matrix");
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
    if (status != NIB_OK)
        rows_close(r);
    return status;
}

/* ---- types ---- */

static int limit_of(type_id type) {
    return type == TYPE_Q4_0 || type == TYPE_S4G64 || type == TYPE_S4G128 ? 8 : type == TYPE_Q5_0 ? 16 : 128;
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
    const bool floats = !packed_is_integer(m);
    *out = floats ? m->dtype : m->k / m->n_group % 32 ? TYPE_F32 : TYPE_Q4_0;
    for (int64_t first = 0; first < m->n && !floats; first += AT_ONCE) {
        packed_rows r;
        NIB_TRY(rows_open(&r, c, t, first, NUM_MIN((int64_t)AT_ONCE, m->n - first), err));
        widen(&r, out);
        rows_close(&r);
    }
    return NIB_OK;
}

/* The type of the values in compact blocks, if headers are enough to know it: every f16 but infinity and NaN
 * is a scale, and codes of `bits` bits without zero points are in the range of their type. TYPE_COUNT: no. */
static type_id type_of_header(const packed_matrix *m) {
    if (m->scales.type != TYPE_F16 || m->symmetric < 0 || m->k / m->n_group % 32)
        return TYPE_COUNT;
    if (m->bits == 8)
        return m->symmetric ? TYPE_Q8_0 : TYPE_COUNT;
    return m->symmetric || m->bits < 4 ? TYPE_Q4_0 : TYPE_Q5_0;
}

static type_id in_groups(const packed_matrix *m, type_id usual) {
    const int64_t group = m->k / m->n_group;
    return usual == TYPE_F32 && m->bits <= 4 && group % 64 == 0 ? TYPE_F8G64 /* its scales are floats */
           : usual != TYPE_Q4_0                                 ? packed_narrow(m, usual)
           : group % 128 == 0                                   ? TYPE_S4G128
           : group % 64 == 0                                    ? TYPE_S4G64
                                                                : TYPE_Q4_0;
}

static nib_status integers_run_as(const container *c, const container_tensor *t, type_id *out,
                                  nib_error *err) {
    const packed_matrix *m = t->packed;
    const packed_rows r = {.c = c, .t = t, .m = m};
    bool by_place = false;
    int32_t *order = mem_array((size_t)m->k, sizeof *order);
    const nib_status status = order
                                  ? read_order(&r, order, &by_place, err)
                                  : nib_fail_nomem(err, (size_t)m->k * sizeof *order, "an order of columns");
    mem_free(order);
    NIB_TRY(status);
    *out = by_place ? type_of_header(m) : TYPE_F32;
    if (*out == TYPE_COUNT)
        NIB_TRY(packed_type(c, t, out, err));
    if (by_place)
        *out = in_groups(m, *out);
    return NIB_OK;
}

nib_status packed_runs_as(const container *c, const container_tensor *t, type_id *out, nib_error *err) {
    const packed_matrix *m = t->packed;
    const bool blocks = m->k % 64 == 0;
    switch (m->kind) {
    case PACKED_MXFP4: *out = TYPE_MXFP4; return NIB_OK;
    case PACKED_NF4: *out = m->dtype; return NIB_OK;
    case PACKED_NVFP4: *out = blocks ? TYPE_F4G64 : TYPE_F32; return NIB_OK;
    case PACKED_FP8:
        *out = blocks && m->codes.type == TYPE_F8_E4M3 && m->block % 64 == 0 ? TYPE_F8G64 : TYPE_F32;
        return NIB_OK;
    case PACKED_HEADS: *out = TYPE_F32; return NIB_OK;
    default: return integers_run_as(c, t, out, err);
    }
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

/* Index of the first value below `low` or above `high`; n: there is none. */
static int beyond(const int16_t *v, int n, int low, int high) {
    int16_t least = v[0], most = v[0];
    int i = 0;
    for (int j = 0; j < n; j++) {
        least = NUM_MIN(least, v[j]);
        most = NUM_MAX(most, v[j]);
    }
    if (least >= low && most <= high)
        return n;
    while (v[i] >= low && v[i] <= high)
        i++;
    return i;
}

/* In the order of block_q4_0 in each 32. */
static inline void put_nibbles(const int16_t *restrict v, int n, int zero, uint8_t *restrict qs) {
    for (int at = 0; at < n; at += 32)
        for (int i = 0; i < 16; i++)
            qs[at / 2 + i] = (uint8_t)((v[at + i] + zero) | (v[at + i + 16] + zero) << 4);
}

static int group_of_type(type_id type) {
    return type == TYPE_S4G128 || type == TYPE_N4G128 ? 128
           : type == TYPE_S4G64 || type == TYPE_N4G64 ? 64
           : type == TYPE_Q4_0 || type == TYPE_N4G32  ? 32
                                                      : 0;
}

type_id packed_join(type_id a, type_id b) {
    const int group_a = group_of_type(a), group_b = group_of_type(b);
    if (a == b)
        return a;
    if (group_a && group_a == group_b)
        return group_a == 128 ? TYPE_N4G128 : group_a == 64 ? TYPE_N4G64 : TYPE_N4G32;
    return (a == TYPE_F8G64 && group_b >= 64) || (b == TYPE_F8G64 && group_a >= 64) ? TYPE_F8G64 : TYPE_F32;
}

static nib_status put_n4(const packed_rows *r, const int16_t *v, int n, int zero, uint16_t d, block_n4 *b,
                         nib_error *err) {
    memcpy(b->d, &d, sizeof b->d);
    b->zero = (uint8_t)zero;
    const int wrong = zero < 0 || zero > N4_ZERO_MAX ? 0 : beyond(v, n, -zero, 15 - zero);
    if (wrong < n)
        return nib_fail(err, NIB_E_MODEL, "tensor '%s': 4 bits cannot hold the code %d with the zero %d",
                        r->t->name, v[wrong] + zero, zero);
    put_nibbles(v, n, zero, b->qs);
    return NIB_OK;
}

static void put_s4(const int16_t *v, int n, uint16_t d, block_s4 *b) {
    memcpy(b->d, &d, sizeof b->d);
    put_nibbles(v, n, 8, b->qs);
}

static void put_q4_0(const int16_t *v, uint16_t d, block_q4_0 *b) {
    memcpy(b->d, &d, sizeof b->d);
    put_nibbles(v, 32, 8, b->qs);
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

/* Integers of up to 16 are e4m3. */
static nib_status put_f8(const packed_rows *r, const int16_t *v, float scale, block_f8g64 *b,
                         nib_error *err) {
    const int wrong = beyond(v, 64, -16, 16);
    if (wrong < 64 || !isfinite(scale))
        return nib_fail(err, NIB_E_MODEL, "tensor '%s': f8g64 cannot hold the code %d with the scale %s",
                        r->t->name, v[wrong % 64], num_text((double)scale, 6));
    memcpy(b->scale, &scale, sizeof b->scale);
    for (int i = 0; i < 64; i++) {
        const unsigned n = (unsigned)abs(v[i]), log2 = n ? 31 - (unsigned)__builtin_clz(n) : 0;
        b->codes[i] = (uint8_t)((v[i] < 0 ? 0x80 : 0) | (n ? (log2 + 7) << 3 | (n << 3 >> log2 & 7) : 0));
    }
    return NIB_OK;
}

static bool is_s4(type_id as) {
    return as == TYPE_S4G64 || as == TYPE_S4G128;
}

/* Writes one block; group: index of its scale. */
static nib_status put_block(const packed_rows *r, type_id as, const int16_t *v, int64_t group, uint8_t *out,
                            nib_error *err) {
    if (as == TYPE_F8G64)
        return put_f8(r, v, r->scale[group], (void *)out, err);
    const int limit = limit_of(as), n = type_get(as)->block_elems;
    const int wrong = is_n4(as) ? n : beyond(v, n, -limit, limit - 1);
    const float scale = r->scale[group];
    if (wrong < n)
        return nib_fail(err, NIB_E_MODEL, "tensor '%s': %s cannot hold the code %d", r->t->name,
                        type_get(as)->name, v[wrong]);
    if (!is_half(scale))
        return nib_fail(err, NIB_E_MODEL, "tensor '%s': expected a scale that is exact in f16, found %s",
                        r->t->name, num_text((double)scale, 6));
    const uint16_t d = half_from_float(scale);
    if (is_n4(as))
        return put_n4(r, v, n, r->zero[group], d, (void *)out, err);
    if (is_s4(as))
        put_s4(v, n, d, (void *)out);
    else if (as == TYPE_Q4_0)
        put_q4_0(v, d, (void *)out);
    else if (as == TYPE_Q5_0)
        put_q5_0(v, d, (void *)out);
    else
        put_q8_0(v, d, (void *)out);
    return NIB_OK;
}

static nib_status put_tile(const packed_rows *r, const tile *t, type_id as, uint8_t *out, nib_error *err) {
    const packed_matrix *m = r->m;
    const int64_t elems = type_get(as)->block_elems, each = type_get(as)->block_bytes;
    float *values = (void *)out;
    for (int64_t i = 0; i < t->n_row; i++) {
        const int64_t row = t->row + i;
        const int16_t *code = t->code + i * t->n_col;
        for (int64_t k = 0; k < t->n_col && as == TYPE_F32; k++)
            values[row * m->k + t->col + k] =
                r->scale[row * m->n_group + group_of(r, t->col + k)] * (float)code[k];
        for (int64_t k = 0; k < t->n_col && as != TYPE_F32; k += elems)
            NIB_TRY(put_block(r, as, code + k, row * m->n_group + group_of(r, t->col + k),
                              out + (row * m->k + t->col + k) / elems * each, err));
    }
    return NIB_OK;
}

static bool can_hold(const packed_rows *r, type_id as) {
    return as == TYPE_F32 || ((as == TYPE_Q4_0 || as == TYPE_Q5_0 || as == TYPE_Q8_0 || as == TYPE_F8G64 ||
                               is_n4(as) || is_s4(as)) &&
                              !r->order && r->m->k / r->m->n_group % type_get(as)->block_elems == 0);
}

/* Columns of a tile of AWQ and GPTQ: whole words, and a multiple of every block. Codes of a tile of whole
 * rows. */
enum { TILE_COLUMNS = 128, TILE_CODES = 1 << 14 };

static nib_status put_rows(const packed_rows *r, type_id as, uint8_t *out, nib_error *err) {
    const packed_matrix *m = r->m;
    const int64_t n_row = by_column(m) ? r->n : NUM_MIN(r->n, NUM_MAX(TILE_CODES / m->k, (int64_t)1)),
                  n_col = by_column(m) ? NUM_MIN(m->k, (int64_t)TILE_COLUMNS) : m->k;
    if (!can_hold(r, as))
        return nib_fail(err, NIB_E_MODEL, "tensor '%s': %s cannot hold its groups", r->t->name,
                        type_get(as)->name);
    tile t = {.code = mem_array((size_t)(n_row * n_col), sizeof *t.code)};
    nib_status status =
        t.code ? NIB_OK : nib_fail_nomem(err, (size_t)(n_row * n_col) * 2, "codes of a packed matrix");
    for (t.row = 0; t.row < r->n && status == NIB_OK; t.row += n_row) {
        t.n_row = NUM_MIN(n_row, r->n - t.row);
        for (t.col = 0; t.col < m->k && status == NIB_OK; t.col += n_col) {
            t.n_col = NUM_MIN(n_col, m->k - t.col);
            status = read_codes(r, &t, err);
            if (status == NIB_OK)
                status = put_tile(r, &t, as, out, err);
        }
    }
    mem_free(t.code);
    return status;
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
    NIB_TRY(rows_open(&r, c, t, first, n, err));
    const nib_status status = put_rows(&r, as, out, err);
    rows_close(&r);
    return status;
}
