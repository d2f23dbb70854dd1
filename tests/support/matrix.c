/* matrix.c - see matrix.h. */
#include "matrix.h"

#include "numbers/blocks.h"

#include <stdlib.h>
#include <string.h>

uint64_t random_next(uint64_t *s) {
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return *s * 0x2545f4914f6cdd1du;
}

float random_float(uint64_t *s) {
    return (float)(random_next(s) >> 40) * 0x1p-23f - 1.0f;
}

float *random_rows(int64_t n, uint64_t seed, float size) {
    uint64_t s = seed * 0x9e3779b97f4a7c15u | 1;
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = random_float(&s) * size;
    return x;
}

static void put_half(uint8_t *p, matrix_kind kind, uint64_t *s) {
    uint16_t h = half_from_float(random_float(s) * 0.05f);
    if (kind == MATRIX_LARGEST)
        h = half_from_float(0.5f);
    else if (kind == MATRIX_UNIT)
        h = half_from_float(1.0f);
    else if (kind == MATRIX_ZERO)
        h = random_next(s) & 1 ? 0x8000 : 0;
    else if (kind == MATRIX_TINY)
        h = (uint16_t)(random_next(s) & 0x83ff);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* Offsets of the half-precision members of a block type: every other byte may be anything. */
static void fix_scales(type_id type, uint8_t *block, matrix_kind kind, uint64_t *s) {
    switch (type) {
    case TYPE_Q4_1:
    case TYPE_Q5_1:
    case TYPE_N2G64:
    case TYPE_N3G64:
    case TYPE_Q4_K:
    case TYPE_Q5_K: put_half(block + 2, kind, s); /* fall through */
    case TYPE_Q4_0:
    case TYPE_Q5_0:
    case TYPE_Q8_0:
    case TYPE_IQ4_NL:
    case TYPE_IQ1_S:
    case TYPE_IQ2_XXS:
    case TYPE_IQ2_XS:
    case TYPE_IQ2_S:
    case TYPE_IQ3_XXS:
    case TYPE_IQ3_S:
    case TYPE_S4G64:
    case TYPE_S4G128:
    case TYPE_IQ4_XS: put_half(block, kind, s); break;
    case TYPE_IQ1_M: { /* four bits in the top of each of four words */
        uint8_t half[2];
        put_half(half, kind, s);
        for (int i = 0; i < 4; i++)
            block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (half[i / 2] >> i % 2 * 4 & 15) << 4);
        break;
    }
    case TYPE_TQ1_0:
    case TYPE_TQ2_0: put_half(block + type_get(type)->block_bytes - 2, kind, s); break;
    case TYPE_NVFP4:
        for (int g = 0; g < 4; g++)
            block[g] = (uint8_t)(kind == MATRIX_TINY      ? random_next(s) % 3
                                 : kind == MATRIX_ZERO    ? 0
                                 : kind == MATRIX_LARGEST ? 56
                                                          : random_next(s) % 48);
        break;
    case TYPE_N4G32:
    case TYPE_N4G64:
    case TYPE_N4G128:
        put_half(block, kind, s);
        block[2] %= N4_ZERO_MAX + 1;
        break;
    case TYPE_Q2_K:
        put_half(((block_q2_k *)(void *)block)->d, kind, s);
        put_half(((block_q2_k *)(void *)block)->dmin, kind, s);
        break;
    case TYPE_Q3_K: put_half(((block_q3_k *)(void *)block)->d, kind, s); break;
    case TYPE_Q6_K: put_half(((block_q6_k *)(void *)block)->d, kind, s); break;
    case TYPE_MXFP4:
        block[0] = (uint8_t)(kind == MATRIX_TINY      ? random_next(s) % 3
                             : kind == MATRIX_ZERO    ? 0
                             : kind == MATRIX_LARGEST ? 128
                                                      : 118 + random_next(s) % 10);
        break;
    case TYPE_F8G64:
    case TYPE_F4G64: {
        const float scale = kind == MATRIX_ZERO ? 0 : kind == MATRIX_TINY ? 0x1p-120f : random_float(s);
        memcpy(block, &scale, sizeof scale);
        for (int i = 4; i < (type == TYPE_F8G64 ? 68 : 8); i++) /* no NaN, and no sign of a scale */
            block[i] = type == TYPE_F4G64 ? block[i] % 0x7f : (block[i] & 0x7f) == 0x7f ? 0x7e : block[i];
        break;
    }
    default: break;
    }
}

/* Columns may repeat. */
static void fill_outliers(type_id type, uint8_t *at, int64_t k, uint64_t *s) {
    for (int64_t i = 0; i < type_outliers(type, k); i++, at += sizeof(block_outlier)) {
        const uint64_t column = (random_next(s) >> 33) % (uint64_t)k;
        const uint16_t value = bf16_from_float(random_float(s));
        const block_outlier o = {{(uint8_t)column, (uint8_t)(column >> 8)},
                                 {(uint8_t)value, (uint8_t)(value >> 8)}};
        memcpy(at, &o, sizeof o);
    }
}

static void fill_row(type_id type, uint8_t *row, int64_t k, matrix_kind kind, uint64_t *s) {
    const type_info *info = type_get(type);
    if (info->block_elems == 1 && info->block_bytes > 1) {
        for (int64_t i = 0; i < k; i++) {
            const float x = random_float(s);
            if (type == TYPE_F64) {
                const double d = (double)x;
                memcpy(row + 8 * i, &d, sizeof d);
            } else {
                info->quantize(&x, row + info->block_bytes * i, 1);
            }
        }
        return;
    }
    for (int j = 0; j < info->row_bytes; j++)
        row[j] = kind == MATRIX_LARGEST ? 0x7f : (uint8_t)(random_next(s) >> 33);
    if (info->row_bytes)
        put_half(row, kind, s);
    row += info->row_bytes;
    fill_outliers(type, row + k / info->block_elems * info->block_bytes, k, s);
    for (int64_t i = 0; i < k / info->block_elems; i++, row += info->block_bytes) {
        for (int j = 0; j < info->block_bytes; j++)
            row[j] = kind == MATRIX_LARGEST ? 0xff : (uint8_t)(random_next(s) >> 33);
        if (type == TYPE_F8_E4M3)
            row[0] = (row[0] & 0x7f) == 0x7f ? 0x38 : row[0]; /* the only NaN */
        else if (type == TYPE_F8_E5M2)
            row[0] &= (row[0] & 0x7c) == 0x7c ? 0x83 : 0xff; /* infinities and NaNs */
        else if (type == TYPE_Q8_0 && kind == MATRIX_LARGEST)
            memset(row, i & 1 ? 0x7f : 0x80, (size_t)info->block_bytes);
        fix_scales(type, row, kind, s);
    }
}

/* From raw rows of m->type to m->view in its format. */
static void pack_matrix(matrix *m) {
    uint64_t bytes = 0;
    const pack_format *f = &m->view.format;
    if (!pack_bytes(f, m->n, m->k, &bytes))
        abort();
    m->packed = guard_open((size_t)bytes);
    guarded scratch = guard_open(pack_scratch_bytes(f, m->k));
    for (int64_t first = 0; first < m->n; first += PACK_PANEL) {
        const void *rows[PACK_PANEL];
        const int n_row = (int)(m->n - first < PACK_PANEL ? m->n - first : PACK_PANEL);
        for (int i = 0; i < n_row; i++)
            rows[i] = m->raw + (size_t)(first + i) * m->raw_row_bytes;
        pack_panel(f, m->type, m->n, m->k, first, n_row, rows, m->packed.data, scratch.data);
    }
    guard_close(&scratch);
    guard_read_only(&m->packed);
    m->view.data = m->packed.data;
    m->view.n = m->n;
    m->view.k = m->k;
    m->act_bits = 8;
}

static matrix open_packing(type_id type, int64_t n, int64_t k, matrix_kind kind, uint64_t seed, int packing,
                           bool wide) {
    uint64_t bytes = 0, s = seed * 0x9e3779b97f4a7c15u | 1;
    matrix m = {.type = type, .n = n, .k = k};
    if (!type_row_bytes(type, k, &bytes) || !pack_choose(type, k, &m.view.format))
        abort();
    m.view.format.packing = (uint8_t)packing;
    if (wide)
        pack_widen(&m.view.format);
    m.raw_row_bytes = (size_t)bytes;
    m.raw = malloc((size_t)n * m.raw_row_bytes + 1);
    for (int64_t r = 0; r < n; r++)
        fill_row(type, m.raw + (size_t)r * m.raw_row_bytes, k, kind, &s);
    pack_matrix(&m);
    return m;
}

matrix matrix_open(type_id type, int64_t n, int64_t k, matrix_kind kind, uint64_t seed) {
    return open_packing(type, n, k, kind, seed, PACK_PARTS, false);
}

matrix matrix_open_planes(type_id type, int64_t n, int64_t k, matrix_kind kind, uint64_t seed) {
    return open_packing(type, n, k, kind, seed, PACK_PLANES, false);
}

matrix matrix_open_wide(type_id type, int64_t n, int64_t k, matrix_kind kind, uint64_t seed) {
    return open_packing(type, n, k, kind, seed, PACK_PARTS, true);
}

/* Values whose codes are of the given kind: at both ends; all zero; random with tiny steps; integers that a
 * step of one represents. */
static float uniform_value(const pack_format *f, matrix_kind kind, int64_t i, uint64_t *s) {
    const int max = (1 << f->bits) - 1, low = f->asym ? 0 : -(1 << (f->bits - 1));
    switch (kind) {
    case MATRIX_LARGEST: return f->asym && i % 16 ? 60000.0f : -60000.0f;
    case MATRIX_ZERO: return 0;
    case MATRIX_TINY: return random_float(s) * 2e-7f;
    case MATRIX_UNIT:
        return (float)(low + (i % 16 == 3 ? 0 : i % 16 == 7 ? max : (int)(random_next(s) >> 40) % (max + 1)));
    default: return random_float(s) * (i % 96 < 32 ? 0.05f : 0.2f);
    }
}

matrix matrix_open_uniform(const char *name, int64_t n, int64_t k, matrix_kind kind, uint64_t seed) {
    uint64_t s = seed * 0x9e3779b97f4a7c15u | 1;
    matrix m = {.type = TYPE_F32, .n = n, .k = k, .raw_row_bytes = (size_t)k * sizeof(float)};
    if (!pack_from_name(name, k, &m.view.format))
        abort();
    float *rows = malloc((size_t)n * m.raw_row_bytes);
    for (int64_t i = 0; i < n * k; i++)
        rows[i] = uniform_value(&m.view.format, kind, i % k, &s);
    m.raw = (uint8_t *)rows;
    pack_matrix(&m);
    return m;
}

void matrix_close(matrix *m) {
    guard_close(&m->packed);
    free(m->raw);
}

void matrix_row(const matrix *m, int64_t r, float *out) {
    if (m->view.format.layout == PACK_TILE && m->type == TYPE_F32)
        pack_read_row(&m->view, r, out);
    else
        type_get(m->type)->dequantize(m->raw + (size_t)r * m->raw_row_bytes, out, m->k);
}
