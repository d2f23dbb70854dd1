/* tables.cuh - codes that stand for table entries (pack_format.table). They are looked up in registers, after
 * a tile is loaded.
 *
 * A table has 16 signed bytes, or 8 for codes of 3 bits. 128 is added to them, as to codes of 8 bits in
 * tiles. So a tile whose codes were looked up is multiplied like one of 8 bits with a zero point of 128.
 * Memory has the short codes.
 *
 * A byte permutation looks up four codes: its selector is four nibbles, each of which selects one of 8 bytes.
 * With 16 entries, one permutation looks up the lower 8, another the upper 8, and a third one selects by the
 * codes' top bits. */
#ifndef NIB_KERNELS_CUDA_TABLES_CUH
#define NIB_KERNELS_CUDA_TABLES_CUH

#include "kernels/cuda/linear_panels.cuh"

/* Codes are numbers, entries of one table for all rows (IQ4_NL, MXFP4), or entries of each row's own
 * codebook. */
enum table_kind { TABLE_NONE, TABLE_SHARED, TABLE_BOOK };
static inline table_kind table_kind_of(const pack_format *f) {
    return f->table == PACK_TABLE_NONE ? TABLE_NONE : f->table == PACK_TABLE_BOOK ? TABLE_BOOK : TABLE_SHARED;
}
/* The table of all rows for TABLE_SHARED; otherwise zeros. */
static inline uint4 table_shared(const pack_format *f) {
    uint4 u = {};
    if (table_kind_of(f) == TABLE_SHARED)
        memcpy(&u, tile_table(f->table), sizeof u);
    return u;
}

/* The bits of a code when it is multiplied. */
template <int BITS, int TABLE> __host__ __device__ constexpr int code_bits() {
    return TABLE == TABLE_NONE ? BITS : 8;
}

/* The tables of a lane's rows g and g + 8. */
template <int TABLE> struct lane_tables { uint4 of[TABLE == TABLE_BOOK ? 2 : 1]; };
/* book: the panel's codebooks; NULL: the panel does not exist. */
template <int BITS, int TABLE>
__device__ __forceinline__ void tables_load(lane_tables<TABLE> *to, const uint4 &shared,
                                            const uint8_t *book) {
    to->of[0] = shared;
    if constexpr (TABLE == TABLE_BOOK)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint8_t *const row = book + ((int)threadIdx.x % 32 / 4 + 8 * i << BITS);
            to->of[i] = make_uint4(0, 0, 0, 0);
            if (book && BITS == 4)
                to->of[i] = *(const uint4 *)row;
            else if (book)
                *(uint2 *)&to->of[i] = *(const uint2 *)row;
        }
}

/* The codebooks of panel q. */
template <int TABLE> __device__ __forceinline__ const uint8_t *book_at(const linear_job &j, int q) {
    return TABLE == TABLE_BOOK ? panel_at(j, q) + j.tail_at + TILE_LINE : nullptr;
}

/* The entries of the eight 4-bit codes in a dword: of the lower 4 bits of its bytes, then of the upper 4. */
__device__ __forceinline__ uint2 eight_entries(uint32_t u, const uint4 &table) {
    const uint32_t in = u & 0x77777777u, upper = (u >> 1 & 0x44444444u) | 0x32103210u;
    const uint32_t a =
        __byte_perm(__byte_perm(table.x, table.y, in), __byte_perm(table.z, table.w, in), upper);
    const uint32_t b = __byte_perm(__byte_perm(table.x, table.y, in >> 16),
                                   __byte_perm(table.z, table.w, in >> 16), upper >> 16);
    return make_uint2(__byte_perm(a, b, 0x6420), __byte_perm(a, b, 0x7531));
}
/* The entries of four 3-bit codes in bytes. */
__device__ __forceinline__ uint32_t four_entries(uint32_t codes, const uint4 &table) {
    return __byte_perm(table.x, table.y, __byte_perm(codes | codes >> 4, 0, 0x4420));
}

/* Makes a tile that was loaded ready to be multiplied. */
template <int BITS, int TABLE>
__device__ __forceinline__ void tile_look_up(tile_lane<code_bits<BITS, TABLE>()> *v, const tile_lane<BITS> &u,
                                             const lane_tables<TABLE> &tables) {
    if constexpr (TABLE == TABLE_NONE)
        *v = u;
    else
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 &table = tables.of[TABLE == TABLE_BOOK ? i % 2 : 0];
            if (BITS == 4) {
                const uint2 both = eight_entries(u.d[i], table);
                v->d[i] = both.x;
                v->d[4 + i] = both.y;
            } else
#pragma unroll
                for (int h = 0; h < 2; h++)
                    v->d[4 * h + i] = four_entries(field(u.d2[i % 2], 4 * h + i / 2 * 2, 2, 1) |
                                                       field(u.d1[i % 2], 4 * h + i / 2 * 2, 1, 0),
                                                   table);
        }
}
/* Loads a tile, ready to be multiplied. */
template <int BITS, int TABLE>
__device__ __forceinline__ void tile_take(tile_lane<code_bits<BITS, TABLE>()> *v, const uint8_t *tile,
                                          int lane, const lane_tables<TABLE> &tables) {
    tile_lane<BITS> u;
    tile_load(&u, tile, lane);
    tile_look_up<BITS, TABLE>(v, u, tables);
}

#endif
