/* Bitwise beside Padding: bench_dpr. One thread, processor time, strategies in turn (A B A B) in one process,
 * the best of several rounds; weights from memory (copies in rotation) and from the second-level cache. */
#include "product.h"

#include "base/num.h"
#include "kernels/dpr.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROTATE_BYTES = 256 << 20, ROUNDS = 7, MAX_ROWS = 8 };

/* One matrix in one packing, and activations for it. */
static product side_open(const char *name, int act_bits, int64_t n, int64_t k, bool cached) {
    matrix w = matrix_open_uniform(name, n, k, MATRIX_RANDOM, 3);
    w.act_bits = act_bits;
    product p = product_open(&w, MAX_ROWS, cached ? 0 : ROTATE_BYTES, 1);
    p.n_call = NUM_MAX(p.n_copy, 16);
    matrix_close(&w);
    return p;
}

static double time_once(const strategy *by, product *p, int64_t m, pool *alone) {
    p->args.n_row = m;
    product_use(p, by);
    return product_time(p, alone);
}

typedef struct entry {
    const strategy *by;
    const char *isa;
    product *p;
    double best;
} entry;

static void compare(int bits, int act_bits, int64_t n, int64_t k, bool cached, pool *alone) {
    const kernel_table *t = kernels_table();
    char parts[PACK_NAME], planes[PACK_NAME];
    snprintf(parts, sizeof parts, "u%dg128", bits);
    snprintf(planes, sizeof planes, "u%dg128p", bits);
    product sides[2] = {side_open(parts, act_bits, n, k, cached), side_open(planes, act_bits, n, k, cached)};
    for (int64_t m = 1; m <= MAX_ROWS; m *= 2) {
        entry e[2 * KERNELS_MAX_STRATEGY];
        int n_entry = 0;
        for (int i = 0; i < 2 * t->n_strategy; i++) {
            const int at = i % t->n_strategy, packing = i / t->n_strategy;
            if (strcmp(t->strategy_isa[at], "ref") &&
                t->strategies[at]->can(&sides[packing].copies->format, m))
                e[n_entry++] = (entry){t->strategies[at], t->strategy_isa[at], &sides[packing], 1e30};
        }
        for (int round = 0; round < ROUNDS; round++)
            for (int i = 0; i < n_entry; i++)
                e[i].best = NUM_MIN(e[i].best, time_once(e[i].by, e[i].p, m, alone));
        for (int i = 0; i < n_entry; i++)
            printf("W%dA%d %5ld x %-5ld %-6s M %ld %-9s %-16s %-7s %8.1f us %6.2f GB/s %7.1f GMAC/s\n", bits,
                   act_bits, (long)n, (long)k, cached ? "cache" : "memory", (long)m, e[i].isa, e[i].by->name,
                   e[i].p->copies->format.packing == PACK_PLANES ? "planes" : "parts", e[i].best * 1e6,
                   (double)e[i].p->bytes / e[i].best * 1e-9, (double)(n * k * m) / e[i].best * 1e-9);
        fflush(stdout);
    }
    product_close(&sides[0]);
    product_close(&sides[1]);
}

int main(int argc, char **argv) {
    static const int pairs[][2] = {{2, 8}, {2, 4}, {3, 8}, {3, 4}, {4, 8}, {4, 4}, {8, 8}};
    pool *alone;
    dpr_unit units[16];
    if (pool_open(1, &alone, NULL))
        return 1;
    const int n_unit = dpr_measure(units, 16);
    for (int i = 0; i < n_unit; i++)
        printf("unit %-9s %-12s w%d x a%d: %7.1f G products of slices a second\n", units[i].isa,
               units[i].name, units[i].w_bits, units[i].a_bits, units[i].rate * 1e-9);
    for (size_t i = 0; i < NUM_COUNT(pairs); i++) {
        if (argc > 1 && atoi(argv[1]) != pairs[i][0] * 10 + pairs[i][1])
            continue;
        compare(pairs[i][0], pairs[i][1], 512, 1024, true, alone);
        compare(pairs[i][0], pairs[i][1], 4096, 4096, false, alone);
    }
    pool_close(alone);
    return 0;
}
