/* blocked.h - products of many activation rows with blocks of codes and float scales (block.h). Groups of 16
 * and 32 keep their floats in registers. Longer groups keep integers and floats in memory, update them once
 * for many products, and use the registers for more rows.
 *
 * Two-level scales (PACK_SCALE_TWO) are multiplied into the codes when they are unpacked. Codes of
 * PACK_TABLE_BOOK are replaced by the entries of their rows' codebooks. Both give one group a row of 8-bit
 * integers. Included after a dot.h, which defines the integer products. */
#ifndef NIB_KERNELS_AVX2_BLOCKED_H
#define NIB_KERNELS_AVX2_BLOCKED_H

#include "kernels/cpu/avx2/block.h"

enum { ROWS_SHORT = 4 };

/* The format of the codes after unpacking. */
static pack_format block_format(const pack_format *f) {
    pack_format of = *f;
    if (f->scale == PACK_SCALE_TWO) {
        of.bits = 8;
        of.group = PACK_GROUP_ROW;
        of.scale = PACK_SCALE_F16;
    }
    if (f->table == PACK_TABLE_BOOK)
        pack_widen(&of);
    return of;
}

/* ---- unpacking ---- */

LANES_INLINE void unpack_codes(const kind f, block *b, int first, const tile_chunk *c) {
    const __m256i table = dot_table(f);
    const uint8_t *codes = c->codes;
    for (int t = 0; t < c->n_tile; t++, codes += 128 * f.bits) {
        LANES_UNROLL
        for (int q = 0; q < 16; q++) {
            LANES_UNROLL
            for (int half = 0; half < 2; half++)
                _mm256_store_si256((void *)(b->lines[(first + t) * 16 + q] + 32 * half),
                                   dot_codes(f, codes, table, q, half));
        }
    }
}

/* Unpacks codes of 4 bits in groups of 32, with halves as scales. Each line is loaded once for both of its
 * groups, whose scales are converted between the stores of the codes. */
LANES_INLINE void unpack_4_bits(bool asym, block *b, int first, const tile_chunk *c) {
    const uint8_t *codes = c->codes, *scales = c->scales;
    const __m256i low = _mm256_set1_epi8(15);
    for (int t = first; t < first + c->n_tile; t++) {
        uint8_t *to = b->lines[t * 16];
        for (int i = 0; i < 8 * TILE_LINE; i += TILE_LINE, codes += TILE_LINE) {
            const __m256i w0 = _mm256_loadu_si256((const void *)codes);
            const __m256i w1 = _mm256_loadu_si256((const void *)(codes + 32));
            _mm256_store_si256((void *)(to + i), _mm256_and_si256(w0, low));
            _mm256_store_si256((void *)(to + i + 32), _mm256_and_si256(w1, low));
            _mm256_store_si256((void *)(to + i + 8 * TILE_LINE),
                               _mm256_and_si256(_mm256_srli_epi16(w0, 4), low));
            _mm256_store_si256((void *)(to + i + 8 * TILE_LINE + 32),
                               _mm256_and_si256(_mm256_srli_epi16(w1, 4), low));
        }
        for (int g = 2 * t; g < 2 * t + 2; g++, scales += (asym ? 4 : 2) * PACK_PANEL) {
            v_store(b->scale[g], v_load_f16((const void *)scales));
            if (asym)
                v_store(b->min[g], v_load_f16((const void *)(scales + 2 * PACK_PANEL)));
        }
    }
}

/* Unpacks codes of 8 bits, or entries of a table, to two lines: their lower and upper 4 bits (halved), or
 * their magnitudes and the signed codes. */
LANES_INLINE void unpack_two_lines(const kind f, bool halved, block *b, int first, const tile_chunk *c) {
    const __m256i low = _mm256_set1_epi8(15), flip = _mm256_set1_epi8((char)0x80);
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const void *)tile_table(f.table != PACK_TABLE_NONE ? f.table : PACK_TABLE_IQ4NL)));
    const uint8_t *codes = c->codes;
    for (int t = 0; t < c->n_tile; t++, codes += 128 * f.bits) {
        LANES_UNROLL
        for (int i = 0; i < 32; i++) {
            uint8_t *to = b->lines[((first + t) * 16 + i / 2) * 2] + i % 2 * 32;
            __m256i w = tile_half(codes, f.bits, i / 2, i % 2);
            if (f.table != PACK_TABLE_NONE)
                w = _mm256_shuffle_epi8(table, w);
            const __m256i code = _mm256_xor_si256(w, flip);
            const __m256i high = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
            _mm256_store_si256((void *)to, halved ? _mm256_and_si256(w, low) : _mm256_abs_epi8(code));
            _mm256_store_si256((void *)(to + TILE_LINE), halved ? high : code);
        }
    }
}

/* Replaces the unpacked codes of a chunk by (code - zero) * u, which is at most 127. Only the low byte of
 * each product matters, so 16-bit multiplications compute the even and the odd bytes. `flip` converts the
 * result to the bytes that dot.h multiplies. */
static void unpack_two(block *b, int first, const tile_chunk *c, const pack_format *f) {
    const __m256i zero = _mm256_set1_epi8((char)tile_zero(f)), flip = _mm256_set1_epi8((char)DOT_FLIP),
                  even = _mm256_set1_epi16(0xff);
    const int quads = f->group / 4;
    for (int q = 0; q < c->n_tile * 16; q++) {
        for (int half = 0; half < 2; half++) {
            const uint8_t *u = c->scales + q / quads * PACK_PANEL + 8 * half;
            __m256i *line = (void *)(b->lines[first * 16 + q] + 32 * half);
            const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)u));
            const __m256i twice = _mm256_or_si256(wide, _mm256_slli_epi32(wide, 16));
            const __m256i w = _mm256_sub_epi8(*line, zero);
            const __m256i low = _mm256_and_si256(_mm256_mullo_epi16(w, twice), even);
            const __m256i high = _mm256_mullo_epi16(_mm256_andnot_si256(even, w), twice);
            *line = _mm256_xor_si256(_mm256_or_si256(low, high), flip);
        }
    }
}

/* Replaces the unpacked codes of a chunk by the entries of their rows' books. Each half of a register has 4
 * rows. A look-up has the 16 entries of one row (or the 8 entries of two rows); the codes of the other rows
 * have bit 7 set, so they give 0. */
static void unpack_book(block *b, int first, const tile_chunk *c, const pack_format *f) {
    const int per = 16 >> f->bits, n = 4 / per; /* rows in one look-up; number of look-ups */
    const uint8_t *book = tile_book(f, c);
    const __m256i flip = _mm256_set1_epi8((char)(0x80 ^ DOT_FLIP));
    __m256i table[2][4], at[4];
    for (int i = 0; i < n; i++) {
        uint32_t of[8];
        for (int r = 0; r < 8; r++)
            of[r] = r % 4 / per == i ? (uint32_t)(r % per << f->bits) * 0x01010101u : 0x80808080u;
        at[i] = _mm256_loadu_si256((const void *)of);
        for (int half = 0; half < 2; half++) {
            const uint8_t *entries = book + ((8 * half + per * i) << f->bits);
            table[half][i] =
                _mm256_loadu2_m128i((const void *)(entries + (4 << f->bits)), (const void *)entries);
        }
    }
    for (int q = 0; q < c->n_tile * 16; q++)
        for (int half = 0; half < 2; half++) {
            __m256i *line = (void *)(b->lines[first * 16 + q] + 32 * half), w = flip;
            const __m256i codes = *line;
            for (int i = 0; i < n; i++)
                w = _mm256_xor_si256(w, _mm256_shuffle_epi8(table[half][i], _mm256_or_si256(codes, at[i])));
            *line = w;
        }
}

/* Unpacks the scales of n groups to index `first` and up. scale, asym: of the format; constants for formats
 * with many groups in a chunk. */
LANES_INLINE void unpack_groups(int scale, bool asym, block *b, int64_t first, int64_t n, const tile_chunk *c,
                                const pack_format *f) {
    const bool super = scale == PACK_SCALE_SUPER;
    const uint8_t *at = c->scales + tile_scale_start(f);
    const int64_t step = tile_scale_step(f);
    const vf d = super ? tile_supers(c->scales, f->table) : v_zero();
    const vf d_min = super && asym ? v_load_f16((const void *)(c->scales + 2 * PACK_PANEL)) : v_zero();
    for (int64_t g = first; g < first + n; g++, at += step) {
        v_store(b->scale[g], tile_scale(at, scale, &d));
        if (asym)
            v_store(b->min[g], tile_min(at, scale, &d_min));
    }
}

/* Unpacks the scales of the groups that begin in the chunk to index `first` and up; the one group of a row to
 * index 0. */
static void unpack_scales(block *b, int64_t first, const tile_chunk *c, const pack_format *f) {
    const int64_t n = NUM_MAX(tile_chunk_groups(f, c->n_tile), 1);
    if (f->scale == PACK_SCALE_F16 && f->asym)
        unpack_groups(PACK_SCALE_F16, true, b, first, n, c, f);
    else if (f->scale == PACK_SCALE_F16)
        unpack_groups(PACK_SCALE_F16, false, b, first, n, c, f);
    else
        unpack_groups(f->scale, f->asym, b, first, n, c, f);
}

/* Chunks [c0, c1) of the job's panel. */
static void unpack(const block_job *j, int64_t c0, int64_t c1) {
    const view *w = j->job->a->w;
    const pack_format *f = &w->format, whole = block_format(f);
    const bool halved = dot_halved(tile_kind(&whole)), two_lines = dot_two_lines(tile_kind(&whole));
    const void *panel = (const uint8_t *)w->data + j->panel * j->job->panel_bytes;
    for (int64_t i = c0; i < c1; i++) {
        uint8_t parts[TILE_CHUNK_K * PACK_PANEL];
        const tile_chunk c = tile_chunk_parts(f, tile_chunk_at(f, panel, w->k, i), parts);
        const int first = (int)(i - c0) * TILE_CHUNK;
        if (f->bits == 4 && f->table == PACK_TABLE_NONE && f->group == 32 && f->scale == PACK_SCALE_F16) {
            if (f->asym)
                unpack_4_bits(true, j->b, first, &c);
            else
                unpack_4_bits(false, j->b, first, &c);
            continue;
        }
#define UNPACK(bits, table) unpack_codes((kind){bits, table, 0}, j->b, first, &c)
#define UNPACK_8(bits, table)                                                                                \
    two_lines ? unpack_two_lines((kind){bits, table, 0}, halved, j->b, first, &c) : UNPACK(bits, table)
        switch (f->table == PACK_TABLE_NONE || f->table == PACK_TABLE_BOOK ? f->bits : -f->table) {
        case 2: UNPACK(2, PACK_TABLE_NONE); break;
        case 3: UNPACK(3, PACK_TABLE_NONE); break;
        case 4: UNPACK(4, PACK_TABLE_NONE); break;
        case 5: UNPACK(5, PACK_TABLE_NONE); break;
        case 6: UNPACK(6, PACK_TABLE_NONE); break;
        case 7: UNPACK(7, PACK_TABLE_NONE); break;
        case 8: UNPACK_8(8, PACK_TABLE_NONE); break;
        case -PACK_TABLE_IQ4NL: UNPACK_8(4, PACK_TABLE_IQ4NL); break;
        case -PACK_TABLE_IQ1: UNPACK(3, PACK_TABLE_IQ1); break;
        case -PACK_TABLE_IQ2: UNPACK(3, PACK_TABLE_IQ2); break;
        case -PACK_TABLE_IQ3: UNPACK(4, PACK_TABLE_IQ3); break;
        case -PACK_TABLE_ODD: UNPACK(4, PACK_TABLE_ODD); break;
        default: UNPACK(4, PACK_TABLE_MXFP4); break;
        }
#undef UNPACK_8
#undef UNPACK
        if (f->table == PACK_TABLE_BOOK)
            unpack_book(j->b, first, &c, f);
        if (f->scale == PACK_SCALE_TWO)
            unpack_two(j->b, first, &c, f);
        else
            unpack_scales(j->b, f->group == PACK_GROUP_ROW ? 0 : first * TILE_K / f->group, &c, f);
    }
    if (f->scale == PACK_SCALE_TWO)
        v_store(j->b->scale[0], v_load_f16((const void *)((const uint8_t *)panel + j->job->tail)));
}

/* ---- multiplying ---- */

/* Scales a group's integers and adds them to y. scale, lift: those of the first row; bytes: from one row to
 * the next. */
LANES_INLINE void block_scale(bool asym, int nt, const block_job *j, int64_t bytes, int g, const char *scale,
                              const char *lift, __m256i (*acc)[2], vf *y) {
    const float *ws = j->b->scale[g], *wm = j->b->min[g];
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        const __m256 xs = broadcast_float(scale + t * bytes);
        y[t].a =
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[t][0]), _mm256_mul_ps(xs, _mm256_load_ps(ws)), y[t].a);
        y[t].b =
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[t][1]), _mm256_mul_ps(xs, _mm256_load_ps(ws + 8)), y[t].b);
        if (asym) {
            const __m256 ls = broadcast_float(lift + t * bytes);
            y[t].a = _mm256_fmadd_ps(ls, _mm256_load_ps(wm), y[t].a);
            y[t].b = _mm256_fmadd_ps(ls, _mm256_load_ps(wm + 8), y[t].b);
        }
    }
}

/* Multiplies nt rows from row m on with the whole block, in groups of 16 or 32. f, asym and nt are
 * constants. */
LANES_INLINE void multiply_short(const kind f, bool asym, int nt, const block_job *j, int64_t m) {
    const tile_job *job = j->job;
    const int per_tile = TILE_K / f.group, n_group = j->n_tile * per_tile;
    const int step = f.group / 4 * TILE_LINE * (dot_two_lines(f) ? 2 : 1);
    const bool made_signed = dot_signed(f) && !dot_halved(f);
    const int64_t bytes = job->x_bytes, g0 = j->tile0 * per_tile;
    const char *x = (const char *)job->a->q.data + m * bytes, *codes = x + j->tile0 * TILE_K;
    const char *scale = x + job->scale + j->tile0 * 8, *lift = x + job->lift + g0 * 4;
    const char *minus = x + job->minus + g0 * 4;
    const uint8_t *unpacked = j->b->lines[0];
    vf y[ROWS_SHORT];
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        y[t] = j->is_first ? v_zero() : tile_load(job, j->panel, m + t);
    const char *const ahead = j->ahead, *const next = j->next;
    for (int g = 0; g < n_group; g++, codes += f.group, unpacked += step) {
        __m256i acc[DOT_ROWS][2];
        _mm_prefetch(ahead + g * TILE_LINE, _MM_HINT_T1);
        _mm_prefetch(next + g * TILE_LINE, _MM_HINT_T1);
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            acc[t][0] = acc[t][1] = _mm256_setzero_si256();
        dot_group(f, unpacked, f.group / 4, nt, codes, bytes, acc);
        if (asym == made_signed) {
            LANES_UNROLL
            for (int t = 0; t < nt; t++)
                tile_correct(made_signed, job, minus + t * bytes + 4 * g, acc[t]);
        }
        block_scale(asym, nt, j, bytes, g, scale + (f.group == 16 ? g / 2 : g) * 4, lift + 4 * g, acc, y);
    }
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        if (j->is_last)
            tile_finish(job, j->panel, m + t, y[t]);
        else
            tile_store(job, j->panel, m + t, y[t]);
    }
}

/* Loads the sums that y holds between blocks of K. If a row is one group, they are still integers. */
LANES_INLINE void load_sums(int nt, bool whole, const block_job *j, int64_t m) {
    block *b = j->b;
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        const vf y = j->is_first ? v_zero() : tile_load(j->job, j->panel, m + t);
        b->y[t] = whole ? v_zero() : y;
        b->open[t][0] = whole ? _mm256_castps_si256(y.a) : _mm256_setzero_si256();
        b->open[t][1] = whole ? _mm256_castps_si256(y.b) : _mm256_setzero_si256();
    }
}
LANES_INLINE void store_sums(int nt, bool whole, const block_job *j, int64_t m) {
    const block *b = j->b;
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        if (j->is_last)
            tile_finish(j->job, j->panel, m + t, b->y[t]);
        else
            tile_store(j->job, j->panel, m + t,
                       whole ? BOTH(_mm256_castsi256_ps(b->open[t][0]), _mm256_castsi256_ps(b->open[t][1]))
                             : b->y[t]);
    }
}

/* Multiplies nt rows with the whole block in groups of 64, 128 or the row, with minima or without. f and nt
 * are constants. */
LANES_INLINE void multiply_long(const kind f, int nt, const block_job *j, int64_t m) {
    const tile_job *job = j->job;
    const int64_t bytes = job->x_bytes, n_tile = tile_count(job->a->w->k);
    const bool whole = job->group_tiles == n_tile && n_tile > BLOCK_TILES, asym = job->a->w->format.asym;
    const char *x = (const char *)job->a->q.data + m * bytes;
    block *b = j->b;
    load_sums(nt, whole, j, m);
    for (int i = 0, g = 0; i < j->n_tile; i++) {
        _mm_prefetch(j->ahead + i * TILE_LINE, _MM_HINT_T1);
        _mm_prefetch(j->next + i * TILE_LINE, _MM_HINT_T1);
        const int64_t tile = j->tile0 + i, group = tile / job->group_tiles;
        dot_tile(f, true, nt, b->lines[i * 16], x + tile * TILE_K, bytes, b->open);
        if ((tile + 1) % job->group_tiles && tile + 1 < n_tile)
            continue;
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            tile_correct(dot_signed(f), job, x + t * bytes + job->minus + 4 * group, b->open[t]);
        block_scale(asym, nt, j, bytes, g++, x + job->scale + 4 * group, x + job->lift + 4 * group, b->open,
                    b->y);
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            b->open[t][0] = b->open[t][1] = _mm256_setzero_si256();
    }
    store_sums(nt, whole, j, m);
}

#define DEFINE_SHORT(name, nt, bits, table, asym, group)                                                     \
    static void name##_##nt(const block_job *j, int64_t m) {                                                 \
        const kind f = {bits, PACK_TABLE_##table, group};                                                    \
        if (nt <= dot_short_rows(f)) /* kernels of more rows are never called */                             \
            multiply_short(f, asym, nt, j, m);                                                               \
    }
#define DEFINE_SHORTS(name, bits, table, asym, group)                                                        \
    DEFINE_SHORT(name, 1, bits, table, asym, group)                                                          \
    DEFINE_SHORT(name, 2, bits, table, asym, group)                                                          \
    DEFINE_SHORT(name, 3, bits, table, asym, group)                                                          \
    DEFINE_SHORT(name, 4, bits, table, asym, group)
#define DEFINE_LONG(nt, name, bits)                                                                          \
    static void name##_##nt(const block_job *j, int64_t m) {                                                 \
        multiply_long((kind){bits, PACK_TABLE_NONE, TILE_K}, nt, j, m);                                      \
    }
#define DEFINE_LONGS(name, bits) DOT_EACH_ROWS(DEFINE_LONG, name, bits)
DOT_SHORT_KINDS(DEFINE_SHORTS)
DOT_LONG_KINDS(DEFINE_LONGS)

#define ROW_SHORT(name, bits, table, asym, group)                                                            \
    {{bits, PACK_TABLE_##table, group}, asym, {name##_1, name##_2, name##_3, name##_4}},
#define NAME_LONG(nt, name, bits) name##_##nt,
#define ROW_LONG(name, bits)      {{bits, PACK_TABLE_NONE, TILE_K}, -1, {DOT_EACH_ROWS(NAME_LONG, name, bits)}},
typedef struct blocked_kernel {
    kind f;
    int asym; /* -1: with and without minima */
    multiply_fn multiply[DOT_BLOCK_ROWS];
} blocked_kernel;
static const blocked_kernel blocked_kernels[] = {DOT_SHORT_KINDS(ROW_SHORT) DOT_LONG_KINDS(ROW_LONG)};

/* The first kernel for the same groups whose codes are at least as wide. f: a result of block_format. */
static const blocked_kernel *blocked_for(const pack_format *f) {
    const int bits = f->table ? tile_table_bits(f->table) : f->bits;
    const kind of = tile_kind(f);
    for (size_t i = 0; i < NUM_COUNT(blocked_kernels); i++) {
        const blocked_kernel *k = &blocked_kernels[i];
        if (k->f.bits >= bits && (k->asym < 0 || k->asym == f->asym) && k->f.group == of.group &&
            dot_signed(k->f) == dot_signed(of))
            return k;
    }
    return NULL;
}

static bool blocked_can(const pack_format *f, int64_t n_row) {
    (void)n_row;
    const pack_format of = block_format(f);
    return f->layout == PACK_TILE && blocked_for(&of);
}

static void blocked_run(const linear_args *a, int64_t n0, int64_t n1) {
    const pack_format f = block_format(&a->w->format);
    const kind of = tile_kind(&f);
    tile_job job = tile_job_of(a, !dot_halved(of) ? dot_zero_shift(of, f.asym) : f.asym ? 32 : 7);
    if (f.group == PACK_GROUP_ROW)
        job.group_tiles = tile_count(a->w->k);
    const blocked_kernel *kernel = blocked_for(&f);
    const int group = kernel->f.group,
              max_rows = group == TILE_K ? DOT_BLOCK_ROWS : dot_short_rows(kernel->f);
    run_blocks(&job, &(block_kernel){unpack, kernel->multiply, max_rows, group}, n0, n1);
}

#endif
