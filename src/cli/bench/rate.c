/* rate.c - see rate.h. */
#include "cli/bench/rate.h"

#include <time.h>

#define READ_SECONDS 0.01

void bench_rate_open(bench_rate *r, const cli_args *args, int n_thread) {
    if (args->ram == NIB_AUTO)
        memory_reader_open(&r->memory, n_thread);
}

void bench_rate_close(bench_rate *r) {
    memory_reader_close(&r->memory);
}

bool bench_rate_is_on_gpu(bench_rate *r, const nib_engine *engine) {
    nib_memory now;
    nib_engine_memory(engine, &now);
    const bool on_gpu = now.tier[NIB_TIER_VRAM].planned > 0;
    if (on_gpu)
        memory_reader_close(&r->memory);
    return on_gpu;
}

void bench_rate_begin(bench_rate *r) {
    r->n = 0;
    r->reads[0] = memory_reader_pass(&r->memory, READ_SECONDS);
}

void bench_rate_piece(bench_rate *r, double per_second) {
    if (r->n == BENCH_MAX_PIECES)
        return;
    r->pieces[r->n++] = per_second;
    r->reads[r->n] = memory_reader_pass(&r->memory, READ_SECONDS);
}

/* If the reading process has ended, all later passes give zero, so checking the last one is enough. */
void bench_rate_share(bench_rate *r, double step_bytes, rate_share *share, rate *read) {
    const int n = r->n;
    if (n == 0 || r->reads[n] <= 0)
        return;
    for (int i = 0; i < n; i++)
        r->pieces[i] *= step_bytes;
    *share = rate_share_of(r->pieces, r->reads, n);
    *read = rate_of(r->reads, n + 1);
    r->n = 0;
}

void bench_rate_alone(bench_rate *r, rate *read) {
    enum { PASSES = 30 };
    for (int i = 0; i < PASSES; i++)
        r->reads[i] = memory_reader_pass(&r->memory, READ_SECONDS);
    if (r->reads[PASSES - 1] > 0)
        *read = rate_of(r->reads, PASSES);
}

double bench_cpu_seconds(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

json_t *bench_rate_json(double x) {
    return x > 0 ? json_real(x) : json_null();
}
