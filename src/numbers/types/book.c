/* book.c - C3 and C4, nibble's own: rows with a codebook of 8 or 16 values each; and
 * the same with outliers. */
#include "numbers/types/type.h"

enum { BOOK = 2 /* offset of the entries, after the scale */ };

static void dequantize_c3(const void *row, float *out, int64_t n) {
    const uint8_t *head = row;
    const block_c3 *b = (const void *)(head + BOOK + 8);
    const float d = block_half(head);
    for (int64_t i = 0; i < n / 64; i++, b++, out += 64)
        for (int j = 0; j < 64; j++)
            out[j] = d *
                     (float)(int8_t)
                         head[BOOK + ((b->qs[j % 16] >> j / 16 * 2 & 3) | (b->qh[j / 8] >> j % 8 & 1) << 2)];
}

static void dequantize_c4(const void *row, float *out, int64_t n) {
    const uint8_t *head = row;
    const block_c4 *b = (const void *)(head + BOOK + 16);
    const float d = block_half(head);
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32)
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)(int8_t)head[BOOK + (b->qs[j] & 15)];
            out[j + 16] = d * (float)(int8_t)head[BOOK + (b->qs[j] >> 4)];
        }
}

/* Replaces codes by the entries of the row's codebook, as 8-bit codes: for kernels without table look-up. */
static void look_up(uint8_t *codes, int n, const uint8_t *entries) {
    for (int i = 0; i < n; i++)
        codes[i] = entries[codes[i]] ^ 0x80;
}

static void read_c3(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_c3 *b = blocks;
    (void)s;
    for (int i = 0; i < n; i++) {
        two_bits_64(b[i].qs, codes + 64 * i);
        for (int j = 0; j < 64; j++)
            codes[64 * i + j] |= (uint8_t)((b[i].qh[j / 8] >> j % 8 & 1) << 2);
    }
}

static void read_c3_wide(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    read_c3(blocks, n, codes, s);
    look_up(codes, 64 * n, s->head + BOOK);
}

static void read_c4(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_c4 *b = blocks;
    (void)s;
    for (int i = 0; i < n; i++)
        nibbles_32(b[i].qs, codes + 32 * i);
}

static void read_c4_wide(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    read_c4(blocks, n, codes, s);
    look_up(codes, 32 * n, s->head + BOOK);
}

#define BOOKS(id, name_, elems, bits_, bytes, number, dequantize_, fn, of, dense_)                           \
    const type_info type_##id = {                                                                            \
        BLOCKS(name_, elems, bytes, number),                                                                 \
        .row_bytes = BOOK + (1 << (bits_)),                                                                  \
        .dequantize = dequantize_,                                                                           \
        .pack = READER(fn, .bits = bits_, .group = PACK_GROUP_ROW, .table = PACK_TABLE_BOOK, .sparse = of),  \
        .wide = READER(fn##_wide, .bits = 8, .group = PACK_GROUP_ROW, .sparse = of),                         \
        .sparse = of,                                                                                        \
        .dense = TYPE_##dense_}
#define SPARSE(id, name, elems, bits, bytes, number, fn, of, dense)                                          \
    static void dequantize_##id(const void *row, float *out, int64_t n) {                                    \
        type_dequantize_part(TYPE_##id, row, n, 0, out, n);                                                  \
    }                                                                                                        \
    BOOKS(id, name, elems, bits, bytes, number, dequantize_##id, fn, of, dense)
BOOKS(C3, "c3", 64, 3, sizeof(block_c3), 1013, dequantize_c3, read_c3, 0, C3);
BOOKS(C4, "c4", 32, 4, sizeof(block_c4), 1014, dequantize_c4, read_c4, 0, C4);
SPARSE(C3O45, "c3o45", 64, 3, sizeof(block_c3), 1023, read_c3, 45, C3);
SPARSE(C4O45, "c4o45", 32, 4, sizeof(block_c4), 1024, read_c4, 45, C4);
SPARSE(C3O100, "c3o100", 64, 3, sizeof(block_c3), 1033, read_c3, 100, C3);
SPARSE(C4O100, "c4o100", 32, 4, sizeof(block_c4), 1034, read_c4, 100, C4);
