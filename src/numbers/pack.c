/* pack.c - packs file rows into resident panels, and unpacks them for look-ups and tests.
 * A panel is packed in chunks of 256 of K: the 16 rows' blocks become one code a byte, the 16 x 256 bytes are
 * transposed as quads (so that a line is 16 rows of one quad), and lines are packed into parts. All of it
 * stays in the L1 cache; the destination is written once, in order. Instruction sets have faster functions
 * for some types (pack_isa.h), with the same result. */
#include "numbers/pack.h"

#include "base/num.h"
#include "numbers/blocks.h"
#include "numbers/pack_codes.h"
#include "numbers/pack_isa.h"
#include "numbers/pack_round.h"
#include "numbers/tile.h"

#include <string.h>

typedef struct chunk {
    uint8_t codes[PACK_PANEL][PACK_CHUNK];
    float values[PACK_CHUNK]; /* of one row, for uniform formats */
} chunk;

static type_id rows_type(type_id file_type) {
    switch (file_type) {
    case TYPE_F8_E4M3:
    case TYPE_F8_E5M2: return TYPE_BF16;
    case TYPE_F64: return TYPE_F32;
    default: return file_type;
    }
}

bool pack_choose(type_id file_type, int64_t k, pack_format *out) {
    const type_info *info = type_get(file_type);
    if (!info || !info->dequantize || file_type == TYPE_I32 || file_type == TYPE_I64 || k <= 0 ||
        k % info->block_elems)
        return false;
    if (info->pack) {
        *out = info->pack->format;
        out->type = (uint8_t)file_type;
        return out->group != PACK_GROUP_ROW || k <= MAX_PACK_ROW;
    }
    if (info->block_elems != 1 && file_type != TYPE_F8G64 && file_type != TYPE_F4G64)
        return false;
    *out = (pack_format){.layout = PACK_ROWS, .type = (uint8_t)rows_type(file_type)};
    return true;
}

void pack_widen(pack_format *f) {
    if (f->layout == PACK_TILE && f->scale == PACK_SCALE_ZERO) {
        f->bits++;
        f->asym = false;
        f->scale = PACK_SCALE_F16;
    }
    if (f->layout == PACK_TILE && f->table == PACK_TABLE_BOOK) {
        f->table = PACK_TABLE_NONE;
        f->bits = 8;
    }
}

bool pack_bytes(const pack_format *f, int64_t n, int64_t k, uint64_t *bytes) {
    if (n < 0 || k < 0 || k > INT64_C(1) << 40) /* with this bound the bytes of a panel cannot overflow */
        return false;
    bool tile = f->layout == PACK_TILE;
    uint64_t each = (uint64_t)(tile ? tile_panel_bytes(f, k) : rows_bytes(f->type, k));
    uint64_t count = tile ? (uint64_t)n / PACK_PANEL + (n % PACK_PANEL != 0) : (uint64_t)n;
    if (!num_mul_u64(each, count, bytes) || !num_add_u64(*bytes, TILE_LINE - 1, bytes))
        return false;
    *bytes &= ~(uint64_t)(TILE_LINE - 1);
    return true;
}

size_t pack_scratch_bytes(const pack_format *f, int64_t k) {
    if (f->layout == PACK_TILE)
        return sizeof(chunk);
    return (size_t)k * sizeof(float);
}

/* ---- PACK_ROWS ---- */

static void pack_float_row(const pack_format *f, type_id file_type, const void *row, int64_t k, void *dst,
                           float *scratch) {
    uint64_t bytes = 0;
    type_row_bytes((type_id)f->type, k, &bytes);
    if (file_type == (type_id)f->type) {
        memcpy(dst, row, (size_t)bytes);
    } else {
        type_get(file_type)->dequantize(row, scratch, k);
        if (f->type == TYPE_F32) {
            memcpy(dst, scratch, (size_t)bytes);
        } else {
            for (int64_t i = 0; i < k; i++) {
                uint16_t h = bf16_from_float(scratch[i]);
                memcpy((uint8_t *)dst + 2 * i, &h, 2);
            }
        }
    }
    memset((uint8_t *)dst + bytes, 0, (size_t)rows_bytes(f->type, k) - (size_t)bytes);
}

/* ---- PACK_TILE ---- */

static pack_sink sink_at(const pack_format *f, uint8_t *scales, int row) {
    uint8_t *narrow = scales + tile_scale_start(f);
    return (pack_sink){.wide = (uint16_t *)(void *)scales + row,
                       .narrow = narrow + row,
                       .step = f->asym ? 2 * PACK_PANEL : PACK_PANEL};
}

/* The input of packing a panel. */
typedef struct source {
    const pack_reader *reader; /* NULL: values are rounded to a uniform format */
    pack_chunk_fn chunk;       /* packs a whole chunk; NULL: packing goes through codes */
    const pack_rounder *round;
    const pack_from *from;
    int64_t k;
    int n_row;
    const void *const *rows;
    pack_whole whole[PACK_PANEL]; /* without a reader: what the groups of each row share */
} source;

/* Reads len elements of row r from `at` on: codes, and scales into the chunk's scales. */
static void read_row(const source *s, const pack_format *f, int64_t at, int len, int r, uint8_t *scales,
                     chunk *c) {
    const type_info *info = type_get(s->from->type);
    const float *imatrix = s->from->imatrix ? s->from->imatrix + at : NULL;
    const uint8_t *row = s->rows[r],
                  *raw = row + info->row_bytes + at / info->block_elems * info->block_bytes;
    if (s->reader) {
        pack_sink sink = sink_at(f, scales, r);
        sink.head = row;
        s->reader->read(raw, len / info->block_elems, c->codes[r], &sink);
    } else {
        pack_round_values(s->round, f, s->from->type, row, s->k, at, c->values, len);
        if (s->from->over.bits)
            pack_round_leave(s->round, &s->from->over, c->values, imatrix, len);
        pack_round_chunk(s->round, f, c->values, imatrix, len, &s->whole[r], c->codes[r], scales, r);
    }
    if (len % TILE_K) /* clear the codes of the previous chunk in the last tile */
        memset(c->codes[r] + len, 0, (size_t)(TILE_K - len % TILE_K));
}

/* Copies the scales and codebooks at the beginning of the rows to the panel's tail. */
static void put_heads(const source *s, const pack_format *f, uint8_t *tail) {
    const int n_entry = 1 << f->bits;
    for (int r = 0; r < s->n_row; r++) {
        const uint8_t *head = s->rows[r];
        memcpy(tail + 2 * r, head, 2);
        for (int i = 0; i < n_entry && f->table == PACK_TABLE_BOOK; i++)
            tail[TILE_LINE + r * n_entry + i] = head[2 + i] ^ 0x80;
    }
}

/* Copies the outliers at the end of the rows. One that is beyond the row becomes zero. */
static void put_outliers(const source *s, const pack_format *f, uint8_t *panel) {
    const int64_t n = tile_outliers(f, s->k);
    uint16_t *to = (uint16_t *)(void *)(panel + tile_panel_bytes(f, s->k) - n * TILE_LINE);
    uint64_t bytes = 0;
    type_row_bytes(s->from->type, s->k, &bytes);
    for (int r = 0; r < s->n_row; r++) {
        const block_outlier *of =
            (const void *)((const uint8_t *)s->rows[r] + bytes - (size_t)n * sizeof *of);
        for (int64_t i = 0; i < n; i++) {
            const uint16_t column = block_u16(of[i].column);
            to[2 * PACK_PANEL * i + r] = column < s->k ? column : 0;
            to[2 * PACK_PANEL * i + PACK_PANEL + r] = column < s->k ? block_u16(of[i].value) : 0;
        }
    }
}

static void pack_tile_panel(const pack_isa *isa, source *s, const pack_format *f, uint8_t *panel, chunk *c) {
    const int64_t tile_bytes = tile_code_bytes(f), tail = tile_tail_at(f, s->k);
    const type_info *block = type_get(s->from->type);
    memset(panel + tail, 0, (size_t)(tile_panel_bytes(f, s->k) - tail));
    if (s->reader && f->group == PACK_GROUP_ROW)
        put_heads(s, f, panel + tail);
    if (s->reader)
        put_outliers(s, f, panel);
    for (int r = 0; r < s->n_row && !s->reader; r++) {
        s->whole[r] = pack_round_whole(s->round, f, s->from->type, s->rows[r], s->k, c->values);
        if (tile_panel_bytes(f, s->k) > tail)
            pack_round_tail(f, &s->whole[r], panel + tail, r);
    }
    if (s->n_row < PACK_PANEL || s->k % PACK_CHUNK)
        memset(c->codes, 0, sizeof c->codes);
    for (int64_t at = 0; at < s->k; at += PACK_CHUNK) {
        const int len = (int)NUM_MIN(s->k - at, PACK_CHUNK), n_tile = (int)tile_count(len);
        uint8_t *codes = panel + at / PACK_CHUNK * tile_chunk_bytes(f, TILE_CHUNK);
        uint8_t *scales = codes + n_tile * tile_bytes;
        memset(scales, 0, (size_t)(tile_chunk_bytes(f, n_tile) - n_tile * tile_bytes));
        if (s->chunk) {
            s->chunk((const uint8_t *const *)s->rows, (size_t)(at / block->block_elems * block->block_bytes),
                     len / block->block_elems, codes, scales);
            continue;
        }
        for (int r = 0; r < s->n_row; r++)
            read_row(s, f, at, len, r, scales, c);
        for (int t = 0; t < n_tile; t++)
            isa->tile(f, c->codes[0] + t * TILE_K, codes + t * tile_bytes);
    }
}

/* The reader that gives this format from the blocks of its type; NULL: floats, and uniform formats. */
static const pack_reader *reader_of(const pack_format *f) {
    const type_info *info = type_get((type_id)f->type);
    return info->wide && info->wide->format.bits == f->bits ? info->wide : info->pack;
}

void pack_panel_by(const pack_isa *isa, const pack_format *f, const pack_from *from, int64_t k, int64_t first,
                   int n_row, const void *const *rows, void *dst, void *scratch) {
    if (f->layout == PACK_TILE) {
        uint8_t *panel = (uint8_t *)dst + first / PACK_PANEL * tile_panel_bytes(f, k);
        const pack_rounder plain = pack_round_plainly(isa->round);
        source s = {.reader = f->type == from->type ? reader_of(f) : NULL,
                    .round = from->plain ? &plain : isa->round,
                    .from = from,
                    .k = k,
                    .n_row = n_row,
                    .rows = rows};
        if (s.reader && n_row == PACK_PANEL && f->packing == PACK_PARTS)
            s.chunk = isa->chunk[from->type];
        pack_tile_panel(isa, &s, f, panel, scratch);
        return;
    }
    for (int r = 0; r < n_row; r++)
        pack_float_row(f, from->type, rows[r], k, (uint8_t *)dst + (first + r) * rows_bytes(f->type, k),
                       scratch);
}

void pack_panel_from(const pack_format *f, const pack_from *from, int64_t k, int64_t first, int n_row,
                     const void *const *rows, void *dst, void *scratch) {
    pack_panel_by(pack_isa_best(), f, from, k, first, n_row, rows, dst, scratch);
}

void pack_panel(const pack_format *f, type_id file_type, int64_t n, int64_t k, int64_t first, int n_row,
                const void *const *rows, void *dst, void *scratch) {
    (void)n;
    pack_panel_from(f, &(pack_from){.type = file_type}, k, first, n_row, rows, dst, scratch);
}
