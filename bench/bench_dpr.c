/* Bitwise beside Padding: bench_dpr. One thread, processor time, strategies in turn (A B A B) in one process,
 * the best of several rounds; weights from memory (copies in rotation) and from the second-level cache. */
#include "../tests/support/matrix.h"
#include "base/mem.h"
#include "base/num.h"
#include "kernels/dpr.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROTATE_BYTES = 256 << 20, ROUNDS = 7, MOST_ROWS = 8 };

static double cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One matrix in one flavour, as often as it takes to be out of every cache; activations for it. */
typedef struct side {
    matrix w;
    char *copies, *q;
    uint64_t bytes;
    int n_copy;
} side;

static side side_open(const char *name, int act_bits, int64_t n, int64_t k, bool cached) {
    side s = {.w = matrix_open_uniform(name, n, k, MATRIX_RANDOM, 3)};
    const act_format f = act_format_for(&s.w.view.format, act_bits);
    const size_t each = act_row_bytes(f, k);
    s.w.act_bits = act_bits;
    pack_bytes(&s.w.view.format, n, k, &s.bytes);
    s.n_copy = cached ? 1 : (int)num_div_up(ROTATE_BYTES, (int64_t)s.bytes);
    s.copies = mem_map((size_t)s.bytes * (size_t)s.n_copy);
    for (int i = 0; i < s.n_copy; i++)
        memcpy(s.copies + (size_t)i * s.bytes, s.w.view.data, (size_t)s.bytes);
    s.q = mem_alloc_aligned(64, each * MOST_ROWS);
    float *x = mem_array((size_t)k, sizeof *x);
    uint64_t seed = 7;
    for (int m = 0; m < MOST_ROWS; m++) {
        for (int64_t i = 0; i < k; i++)
            x[i] = random_float(&seed);
        kernels_table()->act_quantize(f, x, k, s.q + (size_t)m * each);
    }
    mem_free(x);
    return s;
}

static void side_close(side *s) {
    mem_free(s->q);
    mem_unmap(s->copies, (size_t)s->bytes * (size_t)s->n_copy);
    matrix_close(&s->w);
}

static double time_once(const strategy *by, const side *s, int64_t m, float *y, void *scratch) {
    const matrix *w = &s->w;
    view v = w->view;
    const int calls = NUM_MAX(s->n_copy, 16);
    const linear_args a = {.w = &v,
                           .q = {s->q, m, w->k, act_format_for(&v.format, w->act_bits)},
                           .y = y,
                           .ldy = w->n,
                           .n_row = m,
                           .scratch = scratch};
    const double start = cpu_now();
    for (int i = 0; i < calls; i++) {
        v.data = s->copies + (size_t)(i % s->n_copy) * s->bytes;
        by->run(&a, 0, w->n);
    }
    return (cpu_now() - start) / calls;
}

typedef struct entry {
    const strategy *by;
    const char *isa;
    const side *s;
    double best;
} entry;

static void compare(int bits, int act_bits, int64_t n, int64_t k, bool cached, float *y, void *scratch) {
    const kernel_table *t = kernels_table();
    char parts[PACK_NAME], planes[PACK_NAME];
    snprintf(parts, sizeof parts, "u%dg128", bits);
    snprintf(planes, sizeof planes, "u%dg128p", bits);
    side s[2] = {side_open(parts, act_bits, n, k, cached), side_open(planes, act_bits, n, k, cached)};
    for (int64_t m = 1; m <= MOST_ROWS; m *= 2) {
        entry e[2 * KERNELS_MAX_STRATEGY];
        int n_entry = 0;
        for (int i = 0; i < 2 * t->n_strategy; i++) {
            const int at = i % t->n_strategy, flavour = i / t->n_strategy;
            if (strcmp(t->strategy_isa[at], "ref") && t->strategies[at]->can(&s[flavour].w.view.format, m))
                e[n_entry++] = (entry){t->strategies[at], t->strategy_isa[at], &s[flavour], 1e30};
        }
        for (int round = 0; round < ROUNDS; round++)
            for (int i = 0; i < n_entry; i++)
                e[i].best = NUM_MIN(e[i].best, time_once(e[i].by, e[i].s, m, y, scratch));
        for (int i = 0; i < n_entry; i++)
            printf("W%dA%d %5ld x %-5ld %-6s M %ld %-9s %-16s %-7s %8.1f us %6.2f GB/s %7.1f GMAC/s\n", bits,
                   act_bits, (long)n, (long)k, cached ? "cache" : "memory", (long)m, e[i].isa, e[i].by->name,
                   e[i].s->w.view.format.flavour == PACK_PLANES ? "planes" : "parts", e[i].best * 1e6,
                   (double)e[i].s->bytes / e[i].best * 1e-9, (double)(n * k * m) / e[i].best * 1e-9);
        fflush(stdout);
    }
    side_close(&s[0]);
    side_close(&s[1]);
}

int main(int argc, char **argv) {
    static const int pairs[][2] = {{2, 8}, {2, 4}, {3, 8}, {3, 4}, {4, 8}, {4, 4}, {8, 8}};
    float *y = mem_array((size_t)4096 * MOST_ROWS, sizeof *y);
    void *scratch = mem_alloc_aligned(64, linear_scratch_bytes());
    dpr_unit units[16];
    const int n_unit = dpr_measure(units, 16);
    for (int i = 0; i < n_unit; i++)
        printf("unit %-9s %-12s w%d x a%d: %7.1f G products of slices a second\n", units[i].isa,
               units[i].name, units[i].w_bits, units[i].a_bits, units[i].rate * 1e-9);
    for (size_t i = 0; i < NUM_COUNT(pairs); i++) {
        if (argc > 1 && atoi(argv[1]) != pairs[i][0] * 10 + pairs[i][1])
            continue;
        compare(pairs[i][0], pairs[i][1], 512, 1024, true, y, scratch);
        compare(pairs[i][0], pairs[i][1], 4096, 4096, false, y, scratch);
    }
    mem_free(scratch);
    mem_free(y);
    return 0;
}
