/* bench_amx_parts - shows where the time of a product on AMX tiles goes: its parts one by one, then whole
 * inner loops that are composed in several ways, all in ns for one tile instruction (16 x 16 outputs x 64 of
 * K) and as a share of the tile unit's peak in registers in the same run.
 *
 *   bench_amx_parts [threads [anything]]
 * With more threads all of them run the same parts at once, and the mean counts. Times are processor times of
 * each thread: the best of several short samples, and their median. If the two differ much, another program
 * used the core.
 *
 * How to read it: "loads" is the cost of a tile load from each level of memory; "2 x 2" shows whether the
 * tile unit hides loads; "sums" is the cost of storing a tile and converting it to floats, and the delay that
 * a stored tile needs before it is read; "product" is the inner loop over groups of 128 or over whole rows,
 * on data as large as the kernel's (weights 16 KiB, activations 256 KiB). */
#include "kernels/cpu/amx/tiles.h"
#include "kernels/lanes/lanes.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "kernels/kernels.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 64, SAMPLES = 31, MAX_PARTS = 64, KIB = 1024, TILE = 1024 };

/* One thread's memory; each piece starts a page of its own, so that stores and loads do not share the low 12
 * bits of an address, unless a part wants that. */
typedef struct place {
    char *a, *b;        /* 4 MiB and 512 KiB of tiles */
    char *ring;         /* 64 KiB */
    float *y, *ws, *xs; /* 64 KiB each */
} place;

typedef void part_fn(const place *p, int n);

/* ---- the tile unit alone ---- */

static void dots(const place *p, int n) {
    (void)p;
    for (int i = 0; i < n; i++) {
        TILES_DOT_SIGNED(0, 4, 6);
        TILES_DOT_SIGNED(1, 4, 7);
        TILES_DOT_SIGNED(2, 5, 6);
        TILES_DOT_SIGNED(3, 5, 7);
    }
}
/* The same with codes, as in every product. With zeros, which the registers hold after their configuration,
 * the unit is faster. */
static void dots_of_codes(const place *p, int n) {
    TILES_LOAD(4, p->a, 64);
    TILES_LOAD(5, p->a + TILE, 64);
    TILES_LOAD(6, p->b, 64);
    TILES_LOAD(7, p->b + TILE, 64);
    dots(p, n);
}
static void dots_of_zeros(const place *p, int n) {
    TILES_ZERO(4);
    TILES_ZERO(5);
    TILES_ZERO(6);
    TILES_ZERO(7);
    dots(p, n);
}
static void dots_one_sum(const place *p, int n) {
    (void)p;
    for (int i = 0; i < 4 * n; i++)
        TILES_DOT_SIGNED(0, 4, 6);
}

/* ---- loads: 4 tiles a turn, rows `step` bytes apart, walking over `bytes` (a power of two) ---- */

LANES_INLINE void loads(const char *from, int n, int64_t step, int64_t bytes) {
    int64_t at = 0;
    for (int i = 0; i < n; i++, at = (at + 4 * TILE) & (bytes - 1)) {
        const char *t = from + at;
        TILES_LOAD(4, t, step);
        TILES_LOAD(5, t + (step == 64 ? TILE : 64), step);
        TILES_LOAD(6, t + (step == 64 ? 2 * TILE : 128), step);
        TILES_LOAD(7, t + (step == 64 ? 3 * TILE : 192), step);
    }
}
static void loads_near(const place *p, int n) {
    loads(p->a, n, 64, 8 * KIB);
}
static void loads_second(const place *p, int n) {
    loads(p->a, n, 64, 256 * KIB);
}
static void loads_far(const place *p, int n) {
    loads(p->a, n, 64, 4096 * KIB);
}
static void loads_unaligned(const place *p, int n) {
    loads(p->a + 32, n, 64, 8 * KIB);
}
static void loads_page_apart(const place *p, int n) { /* 16 lines of one set of the first-level cache */
    loads(p->a, n, 4096, 4096);
}
static void lines_second(const place *p, int n) { /* the same bytes by vector loads */
    int64_t at = 0;
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < n; i++, at = (at + 4 * TILE) & (256 * KIB - 1))
        for (int l = 0; l < 64; l++)
            sum = _mm512_or_si512(sum, _mm512_load_si512(p->a + at + l * 64));
    _mm512_store_si512(p->ring, sum);
}

/* ---- 2 x 2 with loads ---- */

LANES_INLINE void two_by_two(const place *p, int n, int64_t a_bytes, int64_t b_bytes) {
    int64_t at_a = 0, at_b = 0;
    for (int i = 0; i < n; i++) {
        const char *a = p->a + at_a, *b = p->b + at_b;
        at_a = (at_a + 2 * TILE) & (a_bytes - 1);
        at_b = (at_b + 2 * TILE) & (b_bytes - 1);
        TILES_LOAD(4, a, 64);
        TILES_LOAD(6, b, 64);
        TILES_DOT_SIGNED(0, 4, 6);
        TILES_LOAD(7, b + TILE, 64);
        TILES_DOT_SIGNED(1, 4, 7);
        TILES_LOAD(5, a + TILE, 64);
        TILES_DOT_SIGNED(2, 5, 6);
        TILES_DOT_SIGNED(3, 5, 7);
    }
}
static void near_both(const place *p, int n) {
    two_by_two(p, n, 8 * KIB, 8 * KIB);
}
static void second_rows(const place *p, int n) {
    two_by_two(p, n, 256 * KIB, 16 * KIB);
}
static void second_both(const place *p, int n) {
    two_by_two(p, n, 256 * KIB, 256 * KIB);
}

/* ---- sums: stored, and made floats ---- */

static void stores(const place *p, int n) {
    for (int i = 0; i < n; i++) {
        TILES_STORE(0, p->ring, 64);
        TILES_STORE(1, p->ring + TILE, 64);
        TILES_STORE(2, p->ring + 2 * TILE, 64);
        TILES_STORE(3, p->ring + 3 * TILE, 64);
    }
}
/* A dot with its operands in registers, zeroed before and stored after it. */
static void dots_stored(const place *p, int n) {
    for (int i = 0; i < n; i++) {
        TILES_ZERO(0);
        TILES_DOT_SIGNED(0, 4, 6);
        TILES_STORE(0, p->ring, 64);
        TILES_ZERO(1);
        TILES_DOT_SIGNED(1, 4, 7);
        TILES_STORE(1, p->ring + TILE, 64);
        TILES_ZERO(2);
        TILES_DOT_SIGNED(2, 5, 6);
        TILES_STORE(2, p->ring + 2 * TILE, 64);
        TILES_ZERO(3);
        TILES_DOT_SIGNED(3, 5, 7);
        TILES_STORE(3, p->ring + 3 * TILE, 64);
    }
}
/* Stores another tile than the product's. */
static void dots_stored_later(const place *p, int n) {
    for (int i = 0; i < 2 * n; i++) {
        TILES_DOT_SIGNED(0, 4, 6);
        TILES_STORE(1, p->ring + TILE, 64);
        TILES_DOT_SIGNED(2, 5, 7);
        TILES_STORE(3, p->ring + 3 * TILE, 64);
    }
}
/* Its operands loaded too. */
static void dots_alone(const place *p, int n) {
    const char *from = p->a;
    char *to = p->ring;
    for (int i = 0; i < 2 * n; i++) {
        TILES_ZERO(0);
        TILES_LOAD(4, from, 64);
        TILES_LOAD(6, from + TILE, 64);
        TILES_DOT_SIGNED(0, 4, 6);
        TILES_STORE(0, to, 64);
        TILES_ZERO(1);
        TILES_LOAD(5, from, 64);
        TILES_LOAD(7, from + TILE, 64);
        TILES_DOT_SIGNED(1, 5, 7);
        TILES_STORE(1, to + TILE, 64);
    }
}
LANES_INLINE void to_floats(const char *sums, const float *ws, const float *xs, __m512 *y) {
    const __m512 s = _mm512_load_ps(ws);
    LANES_UNROLL
    for (int t = 0; t < 16; t++)
        y[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + t * 64)),
                               _mm512_mul_ps(s, _mm512_set1_ps(xs[t])), y[t]);
}
LANES_INLINE void load_floats(const float *from, __m512 *y) {
    LANES_UNROLL
    for (int t = 0; t < 16; t++)
        y[t] = _mm512_load_ps(from + t * 16);
}
LANES_INLINE void store_floats(float *to, const __m512 *y) {
    LANES_UNROLL
    for (int t = 0; t < 16; t++)
        _mm512_store_ps(to + t * 16, y[t]);
}

/* Overlap: each of the 4 * n steps is one or two tile instructions and 16 vectors of floats, on different
 * tiles; none waits for another. 48 vector operations take 24 cycles alone. */
enum { BESIDE_DOT = 1, BESIDE_STORE = 2, BESIDE_LOADS = 4 };
LANES_INLINE void beside(const place *p, int n, int what) {
    __m512 y[16];
    load_floats(p->y, y);
    for (int i = 0; i < 4 * n; i++) {
        if (what & BESIDE_LOADS) {
            TILES_LOAD(4, p->a + i % 8 * TILE, 64);
            TILES_LOAD(6, p->b + i % 8 * TILE, 64);
        }
        if (what & BESIDE_DOT)
            TILES_DOT_SIGNED(0, 4, 6);
        if (what & BESIDE_STORE)
            TILES_STORE(1, p->ring + i % 4 * TILE, 64);
        to_floats(p->ring + (i + 1) % 4 * TILE, p->ws + i % 16 * 16, p->xs + i % 16 * 16, y);
    }
    store_floats(p->y, y);
}
#define BESIDE(name, what)                                                                                   \
    static void name(const place *p, int n) {                                                                \
        beside(p, n, what);                                                                                  \
    }
BESIDE(floats_alone, 0)
BESIDE(floats_loads, BESIDE_LOADS)
BESIDE(floats_store, BESIDE_STORE)
BESIDE(floats_dot, BESIDE_DOT)
BESIDE(floats_all, BESIDE_DOT | BESIDE_STORE | BESIDE_LOADS)

/* ---- products in groups of 128: 2 tile instructions for each tile of sums ---- */

enum { BLOCK_TILES = 8, BLOCK = BLOCK_TILES * TILE, A_BYTES = 256 * KIB, Y_FLOATS = 16 * KIB };

/* 16 rows x 1 panel x 512 of K, floats in registers; both panels of a pair in turn. A group's sums become
 * floats one group later. */
static void one_by_one(const place *p, int n) {
    for (int i = 0; i < n / 2; i++) {
        const char *a = p->a + i / 2 * BLOCK % A_BYTES, *b = p->b + i % 2 * BLOCK;
        float *at = p->y + i * 256 % Y_FLOATS;
        __m512 y[16];
        load_floats(at, y);
        for (int g = 0; g < 5; g++) {
            if (g < 4) {
                TILES_ZERO(0);
                TILES_LOAD(4, a + g * 2 * TILE, 64);
                TILES_LOAD(6, b + g * 2 * TILE, 64);
                TILES_DOT_SIGNED(0, 4, 6);
                TILES_LOAD(4, a + (g * 2 + 1) * TILE, 64);
                TILES_LOAD(6, b + (g * 2 + 1) * TILE, 64);
                TILES_DOT_SIGNED(0, 4, 6);
                TILES_STORE(0, p->ring + g % 4 * TILE, 64);
            }
            if (g >= 1)
                to_floats(p->ring + (g - 1) % 4 * TILE, p->ws + g * 16, p->xs + g * 16, y);
        }
        store_floats(at, y);
    }
}

#define TWO_GROUPS(S0, S1)                                                                                   \
    do {                                                                                                     \
        TILES_ZERO(S0);                                                                                      \
        TILES_ZERO(S1);                                                                                      \
        for (int k = 0; k < 2; k++) {                                                                        \
            TILES_LOAD(4, a + (g * 2 + k) * TILE, 64);                                                       \
            TILES_LOAD(6, b + (g * 2 + k) * TILE, 64);                                                       \
            TILES_DOT_SIGNED(S0, 4, 6);                                                                      \
            TILES_LOAD(5, a + (g * 2 + 2 + k) * TILE, 64);                                                   \
            TILES_LOAD(7, b + (g * 2 + 2 + k) * TILE, 64);                                                   \
            TILES_DOT_SIGNED(S1, 5, 7);                                                                      \
        }                                                                                                    \
    } while (0)

/* The same as one stream of pairs of groups, as in the kernel: a pair is stored while the next two are
 * multiplied, and converted to floats (or not) while those are stored. */
LANES_INLINE void pairs_behind(const place *p, int n, bool floats) {
    __m512 y[16];
    load_floats(p->y, y);
    for (int e = 0; e < n; e++) {
        const char *a = p->a + e / 4 * BLOCK % A_BYTES, *b = p->b + e / 2 % 2 * BLOCK;
        float *at = p->y + (e / 2 + 63) * 256 % Y_FLOATS;
        const int g = e % 2 * 2;
        if (e % 2 == 0) {
            TWO_GROUPS(0, 1);
            TILES_STORE(2, p->ring + 2 * TILE, 64);
            TILES_STORE(3, p->ring + 3 * TILE, 64);
            if (floats)
                load_floats(at, y);
        } else {
            TWO_GROUPS(2, 3);
            TILES_STORE(0, p->ring, 64);
            TILES_STORE(1, p->ring + TILE, 64);
        }
        for (int k = 0; floats && k < 2; k++)
            to_floats(p->ring + (g + k) * TILE, p->ws + (g + k) * 16, p->xs + (g + k) * 16, y);
        if (floats && e % 2)
            store_floats(at, y);
    }
}
static void stream(const place *p, int n) {
    pairs_behind(p, n, true);
}
static void stream_dots(const place *p, int n) {
    pairs_behind(p, n, false);
}

/* ---- products of whole rows: sums stay integers until the end of K ---- */

/* 2 x 2 tiles x n_tile * 64 of K; between those the sums are in memory. */
LANES_INLINE void whole(const place *p, int n, int n_tile, int64_t a_bytes) {
    const int64_t block = (int64_t)n_tile * TILE;
    for (int i = 0; i < n / n_tile; i++) {
        const char *a = p->a + i * 2 * block % a_bytes;
        char *sums = (char *)p->y + i * 4 * TILE % (4 * Y_FLOATS);
        TILES_LOAD(0, sums, 64);
        TILES_LOAD(1, sums + TILE, 64);
        TILES_LOAD(2, sums + 2 * TILE, 64);
        TILES_LOAD(3, sums + 3 * TILE, 64);
        for (int s = 0; s < n_tile; s++) {
            TILES_LOAD(4, a + s * TILE, 64);
            TILES_LOAD(6, p->b + s * TILE, 64);
            TILES_DOT_SIGNED(0, 4, 6);
            TILES_LOAD(7, p->b + block + s * TILE, 64);
            TILES_DOT_SIGNED(1, 4, 7);
            TILES_LOAD(5, a + block + s * TILE, 64);
            TILES_DOT_SIGNED(2, 5, 6);
            TILES_DOT_SIGNED(3, 5, 7);
        }
        TILES_STORE(0, sums, 64);
        TILES_STORE(1, sums + TILE, 64);
        TILES_STORE(2, sums + 2 * TILE, 64);
        TILES_STORE(3, sums + 3 * TILE, 64);
    }
}
static void whole_512(const place *p, int n) {
    whole(p, n, 8, A_BYTES);
}
static void whole_1024(const place *p, int n) {
    whole(p, n, 16, A_BYTES);
}
static void whole_4096(const place *p, int n) { /* both operands from the second-level cache */
    whole(p, n, 64, A_BYTES);
}
/* ---- the list ---- */

/* Every function does 4 * n units of work: tile instructions, or tiles if it has no tile instruction. */
static const struct part {
    const char *name;
    part_fn *fn;
} parts[] = {
    {"dots: 4 sums, codes in registers (the peak)", dots_of_codes},
    {"dots: 4 sums, zeros in registers", dots_of_zeros},
    {"dots: 1 sum (latency)", dots_one_sum},
    {"loads: from 8 KiB", loads_near},
    {"loads: from 256 KiB", loads_second},
    {"loads: from 4 MiB", loads_far},
    {"loads: from 8 KiB, half a line off", loads_unaligned},
    {"loads: rows 4096 bytes apart", loads_page_apart},
    {"lines: the same by vectors, from 256 KiB", lines_second},
    {"2 x 2: 8 KiB", near_both},
    {"2 x 2: rows' tiles from 256 KiB", second_rows},
    {"2 x 2: both from 256 KiB", second_both},
    {"sums: stores alone", stores},
    {"sums: zero, dot, store", dots_stored},
    {"sums: dot, store of another", dots_stored_later},
    {"sums: zero, 2 loads, dot, store", dots_alone},
    {"floats: alone", floats_alone},
    {"floats: beside 2 loads", floats_loads},
    {"floats: beside a store", floats_store},
    {"floats: beside a dot", floats_dot},
    {"floats: beside 2 loads, dot, store", floats_all},
    {"product g128: 16 x 16, 1 group behind", one_by_one},
    {"product g128: 16 x 16, one stream", stream},
    {"product g128: 16 x 16, the same, dots only", stream_dots},
    {"product row: 512 of K, sums in tiles", whole_512},
    {"product row: 1024 of K", whole_1024},
    {"product row: 4096 of K", whole_4096},
};

/* ---- timing ---- */

typedef struct job {
    place places[MAX_THREADS];
    double best[MAX_PARTS][MAX_THREADS], median[MAX_PARTS][MAX_THREADS]; /* ns of one */
} job;

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* All parts take turns, sample by sample, so that other load disturbs all of them alike. */
static void time_parts(void *arg, int thread, int n_thread) {
    enum { TURNS = 1 << 15 };
    (void)n_thread;
    job *j = arg;
    static _Thread_local double samples[MAX_PARTS][SAMPLES];
    tiles_config c = {.palette = 1};
    for (int i = 0; i < 8; i++)
        c.rows[i] = 16, c.bytes[i] = 64;
    tiles_configure(&c);
    for (int s = 0; s < SAMPLES; s++)
        for (size_t i = 0; i < NUM_COUNT(parts); i++) {
            parts[i].fn(&j->places[thread], TURNS / 16);
            const double start = time_thread();
            parts[i].fn(&j->places[thread], TURNS);
            samples[i][s] = (time_thread() - start) / (4.0 * TURNS) * 1e9;
        }
    tiles_release();
    for (size_t i = 0; i < NUM_COUNT(parts); i++) {
        qsort(samples[i], SAMPLES, sizeof samples[i][0], by_size);
        j->best[i][thread] = samples[i][0];
        j->median[i][thread] = samples[i][SAMPLES / 2];
    }
}

static double mean(const double *values, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += values[i];
    return sum / n;
}

static place place_at(char *memory) {
    return (place){.a = memory,
                   .b = memory + 4096 * KIB,
                   .ring = memory + (4096 + 512) * KIB,
                   .y = (float *)(void *)(memory + (4096 + 576) * KIB),
                   .ws = (float *)(void *)(memory + (4096 + 640) * KIB),
                   .xs = (float *)(void *)(memory + (4096 + 704) * KIB + 2048)};
}

int main(int argc, char **argv) {
    enum { EACH = 5 * 1024 * KIB };
    const int n_thread = argc > 1 ? atoi(argv[1]) : 1;
    job *j = mem_alloc(sizeof *j);
    pool *threads;
    if (!j || !kernels_table_for("amx") || n_thread < 1 || n_thread > MAX_THREADS ||
        pool_open(n_thread, &threads, NULL)) {
        fprintf(stderr, "usage: bench_amx_parts [threads], on a processor with AMX\n");
        mem_free(j);
        return 2;
    }
    char *memory = mem_map((size_t)EACH * (size_t)n_thread);
    if (memory) {
        for (size_t i = 0; i < (size_t)EACH * (size_t)n_thread; i++)
            memory[i] =
                i % EACH < (4096 + 512) * KIB ? (char)(i * 7 % 251) : 0x3a; /* codes; sums and small floats */
        for (int i = 0; i < n_thread; i++)
            j->places[i] = place_at(memory + (size_t)i * EACH);
        pool_run(threads, time_parts, j);
        const double floor = mean(j->best[0], n_thread);
        printf("%d threads; ns of each: best, median; GMAC/s of the best; share of the first\n", n_thread);
        for (size_t i = 0; i < NUM_COUNT(parts); i++) {
            const double best = mean(j->best[i], n_thread), median = mean(j->median[i], n_thread);
            printf("%-44s %7.2f %7.2f %8.0f %6.2f\n", parts[i].name, best, median, 16384 / best,
                   floor / best);
        }
        mem_unmap(memory, (size_t)EACH * (size_t)n_thread);
    }
    pool_close(threads);
    mem_free(j);
    return memory ? 0 : 1;
}
