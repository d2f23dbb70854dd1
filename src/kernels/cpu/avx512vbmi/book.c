/* book.c - products of up to 4 activation rows with codebooks (PACK_TABLE_BOOK). Codes are looked up in
 * registers and used at once, so with one row the time is the time to read them. VPERMI2B has 128 entries:
 * the books of all 16 rows of a panel with 8 entries a row, or of 8 rows with 16 entries, so a line takes
 * two. The index is the row's number and the code, joined by the operation that extracts the code from its
 * line. */
#include "kernels/cpu/avx512vbmi/avx512vbmi.h"

#include "base/num.h"
#include "kernels/cpu/avx512/tile.h"
#include "kernels/cpu/avx512/tile_kernels.h"

enum { BOOK_ROWS = 4 };

/* The books of a panel. place: the index at which each row's book begins, in each byte of the row's dword. */
typedef struct books {
    __m512i entries[4], place;
} books;

LANES_INLINE books books_at(int bits, const uint8_t *book) {
    books b;
    const __m512i row = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i within = bits == 3 ? row : _mm512_and_si512(row, _mm512_set1_epi32(7));
    b.place = _mm512_mullo_epi32(within, _mm512_set1_epi32(0x01010101 << bits));
    LANES_UNROLL
    for (int i = 0; i < 1 << (bits - 2); i++)
        b.entries[i] = _mm512_loadu_si512(book + i * TILE_LINE);
    return b;
}

/* The entries for quad q of a tile, plus 128: 16 rows x 4. */
LANES_INLINE __m512i book_line(int bits, const books *b, const uint8_t *tile, int q) {
    if (bits == 3) {
        const __m512i upper = tile_part(b->place, tile, 2, 1, q);
        const __m512i at = tile_part(upper, tile + 4 * TILE_LINE, 1, 0, q);
        return _mm512_permutex2var_epi8(b->entries[0], at, b->entries[1]);
    }
    const __m512i at = tile_part(b->place, tile, 4, 0, q);
    const __m512i first = _mm512_permutex2var_epi8(b->entries[0], at, b->entries[1]);
    const __m512i second = _mm512_permutex2var_epi8(b->entries[2], at, b->entries[3]);
    return _mm512_mask_blend_epi32(0xff00, first, second);
}

/* Multiplies one panel with nt rows from m on; bits and nt are constants. */
LANES_INLINE void book_panel(int bits, int nt, const tile_job *job, int64_t panel, int64_t m) {
    /* At most; several chains, because a product waits for the one before it in its chain. */
    enum { CHAINS = 4 };
    const linear_args *a = job->a;
    const int64_t n_tile = tile_count(a->w->k), row = job->layout.bytes;
    const int chains = CHAINS / nt > 0 ? CHAINS / nt : 1;
    const uint8_t *at = (const uint8_t *)a->w->data + panel * job->panel_bytes, *tail = at + job->tail;
    const char *x = (const char *)a->q.data + m * row;
    const books b = books_at(bits, tail + TILE_LINE);
    __m512i acc[BOOK_ROWS][CHAINS];
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        LANES_UNROLL
        for (int i = 0; i < chains; i++)
            acc[t][i] = _mm512_setzero_si512();
    }
    for (int64_t tile = 0; tile < n_tile; tile++, at += 128 * bits) {
        LANES_UNROLL
        for (int q = 0; q < TILE_K / 4; q++) {
            const __m512i w = book_line(bits, &b, at, q);
            tile_ahead(at + job->ahead[0], bits, q);
            LANES_UNROLL
            for (int t = 0; t < nt; t++)
                acc[t][q % chains] =
                    _mm512_dpbusd_epi32(acc[t][q % chains], w, tile_int(x + t * row + tile * TILE_K + 4 * q));
        }
    }
    for (int64_t i = 0; i < job->panel_bytes - job->tail; i += TILE_LINE)
        _mm_prefetch((const char *)tail + job->ahead[0] + i, _MM_HINT_T0);
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        __m512i dot = tile_start(job, x + t * row + job->minus);
        LANES_UNROLL
        for (int i = 0; i < chains; i++)
            dot = _mm512_add_epi32(dot, acc[t][i]);
        const __m512 both = _mm512_mul_ps(tile_halves(tail), tile_float(x + t * row + job->scale));
        tile_store(job, panel, m + t, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, _mm512_setzero_ps()));
    }
}

typedef void (*book_fn)(const tile_job *job, int64_t panel, int64_t m);
#define DEFINE(bits, nt)                                                                                     \
    static void book_##bits##_##nt(const tile_job *job, int64_t panel, int64_t m) {                          \
        book_panel(bits, nt, job, panel, m);                                                                 \
    }
#define EACH(X, bits) X(bits, 1) X(bits, 2) X(bits, 3) X(bits, 4)
EACH(DEFINE, 3)
EACH(DEFINE, 4)
#define NAME(bits, nt) book_##bits##_##nt,
/* [bits - 3][rows - 1] */
static const book_fn kernels[2][BOOK_ROWS] = {{EACH(NAME, 3)}, {EACH(NAME, 4)}};

static bool can(const pack_format *f, int64_t n_row) {
    return n_row <= BOOK_ROWS && f->layout == PACK_TILE && f->table == PACK_TABLE_BOOK &&
           f->packing == PACK_PARTS && (f->bits == 3 || f->bits == 4);
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    const tile_job job = tile_job_of(a);
    for (int64_t p = n0 / PACK_PANEL; p < num_div_up(n1, PACK_PANEL); p++)
        kernels[a->w->format.bits - 3][a->n_row - 1](&job, p, 0);
}

const strategy avx512vbmi_book = {.name = "padding.book", .can = can, .run = run, .rule_rows = BOOK_ROWS};
