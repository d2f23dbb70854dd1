/* Times packing alone: bench_pack [MiB]. GB/s of the file's bytes for every type and instruction set, one
 * thread, processor time, variants in turns, the best of several rounds. The source stays in the second-level
 * cache and the destination does not, as when a model is loaded. memcpy of the same bytes is timed too. MiB:
 * of packed weights (64). */
#include "../tests/support/matrix.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "numbers/pack_isa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 7, K = 2048, N_SOURCE = 64, MAX_ISA = 8 };

typedef struct job {
    pack_format f;
    type_id type;
    const uint8_t *raw;
    size_t row_bytes;
    uint8_t *to;
    int64_t n; /* rows to write */
    void *scratch;
} job;

static double pack_all(const job *j, const pack_isa *isa) {
    const double start = time_thread();
    for (int64_t first = 0; first < j->n; first += PACK_PANEL) {
        const void *rows[PACK_PANEL];
        for (int i = 0; i < PACK_PANEL; i++)
            rows[i] = j->raw + (size_t)((first + i) % N_SOURCE) * j->row_bytes;
        pack_panel_by(isa, &j->f, &(pack_from){.type = j->type}, K, first, PACK_PANEL, rows, j->to,
                      j->scratch);
    }
    return time_thread() - start;
}

static double copy_all(const job *j) {
    const double start = time_thread();
    for (int64_t first = 0; first < j->n; first += N_SOURCE)
        memcpy(j->to + (size_t)first * j->row_bytes, j->raw, N_SOURCE * j->row_bytes);
    return time_thread() - start;
}

static void tell(job *j, const char *name) {
    double best[MAX_ISA], copy = 1e30;
    const double gb = (double)j->n * (double)j->row_bytes * 1e-9;
    for (int i = 0; i < MAX_ISA; i++)
        best[i] = 1e30;
    for (int round = 0; round < ROUNDS; round++) {
        copy = NUM_MIN(copy, copy_all(j));
        for (int i = 0; i < MAX_ISA && pack_isa_at(i); i++)
            best[i] = NUM_MIN(best[i], pack_all(j, pack_isa_at(i)));
    }
    printf("%-14s %8.2f", name, gb / copy);
    for (int i = 0; i < MAX_ISA && pack_isa_at(i); i++)
        printf(" %8.2f", gb / best[i]);
    printf("\n");
}

/* One type, or floats rounded to a uniform format. */
static void bench(const char *name, type_id type, const pack_format *f, size_t max, uint8_t *to) {
    uint64_t row_bytes, panel;
    if (!type_row_bytes(type, K, &row_bytes) || !pack_bytes(f, PACK_PANEL, K, &panel))
        return;
    matrix m = matrix_open(type, N_SOURCE, K, MATRIX_RANDOM, 1);
    job j = {*f, type, m.raw, m.raw_row_bytes, to, 0, malloc(pack_scratch_bytes(f, K))};
    j.n = (int64_t)(max / NUM_MAX(panel, PACK_PANEL * row_bytes)) * PACK_PANEL / N_SOURCE * N_SOURCE;
    tell(&j, name);
    free(j.scratch);
    matrix_close(&m);
}

int main(int argc, char **argv) {
    const size_t max = (size_t)(argc > 1 ? atoi(argv[1]) : 64) << 20;
    uint8_t *to = mem_map(max);
    pack_format f;
    if (!to)
        return 1;
    memset(to, 1, max);
    printf("%-14s %8s", "GB/s", "memcpy");
    for (int i = 0; i < MAX_ISA && pack_isa_at(i); i++)
        printf(" %8s", pack_isa_at(i)->name);
    printf("\n");
    for (int id = 0; id < TYPE_COUNT; id++)
        if (pack_choose((type_id)id, K, &f))
            bench(type_get((type_id)id)->name, (type_id)id, &f, max, to);
    static const char *const uniform[] = {"u4g64", "u4g64a", "u8g128", "u4g128t"};
    for (size_t i = 0; i < NUM_COUNT(uniform); i++)
        if (pack_from_name(uniform[i], K, &f))
            bench(uniform[i], TYPE_F16, &f, max, to);
    mem_unmap(to, max);
    return 0;
}
