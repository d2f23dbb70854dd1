/* The resident bytes of registers, rows of integers and scratch that the ledger expects of a pass, against
 * the system's: one row and many; fused products that read integers, unfused ones, and 16-bit activations. */
#include "exec/cpu/cpu.h"
#include "kernels/strategy.h"
#include "engine/engine.h"
#include "support/engine.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_ROW = 64, N_CTX = 128, N_VOCAB = 1000, PAGE = 4096 };

static const tiny_shape shape = {TYPE_Q4_1, 2, 1024, 1536, 8, 2, N_VOCAB, N_CTX, true};

static uint64_t resident(void *at, uint64_t n_byte) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = ((size_t)n_byte + page - 1) / page;
    unsigned char *pages = malloc(n);
    uint64_t sum = 0;
    assert_non_null(pages);
    assert_int_equal(mincore(at, (size_t)n_byte, pages), 0);
    for (size_t i = 0; i < n; i++)
        sum += (pages[i] & 1) * page;
    free(pages);
    return sum;
}

static void check(int n_row, bool no_fuse, int activation, uint64_t *touched) {
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_error err = {0};
    int32_t tokens[N_ROW];
    nib_engine_options_init(&o);
    o.n_thread = 1;
    o.n_batch = o.n_ctx = N_CTX;
    o.no_fuse = no_fuse;
    o.activation = activation;
    if (nib_engine_open(tiny_model("workspace.gguf", &shape), &o, &e, &err))
        fail_msg("%s", err.message);
    nib_session *s = session_must_open(e);
    for (int i = 0; i < n_row; i++)
        tokens[i] = (i * 7919 + 13) % N_VOCAB;
    if (nib_session_sync(s, tokens, n_row, &err))
        fail_msg("%s", err.message);
    const memory_region *memory = &cpu_of(engine_parts_of(e).step->backend)->ws.memory;
    const uint64_t has = resident(memory->at, memory->bytes);
    *touched = memory->touched;
    const uint64_t apart = has > *touched ? has - *touched : *touched - has;
    /* with few rows most is the usual scratch, which is counted as a whole; a counted page may also hold
     * other data */
    if (apart > (n_row < N_ROW ? (uint64_t)STRATEGY_SCRATCH + PAGE : *touched / 25))
        fail_msg("expected %llu bytes, found %llu resident", (unsigned long long)*touched,
                 (unsigned long long)has);
    nib_session_close(s);
    nib_engine_close(e);
}

static void what_is_resident_is_what_is_told(void **state) {
    uint64_t one, fused, not_fused, sixteen;
    (void)state;
    check(1, false, 0, &one);
    check(N_ROW, false, 0, &fused);
    check(N_ROW, true, 0, &not_fused);
    check(N_ROW, false, 16, &sixteen);
    assert_true(fused > one);
    assert_true(not_fused >= fused + (uint64_t)N_ROW * 1024 * sizeof(float)); /* normed rows */
    assert_true(sixteen >= fused + (uint64_t)N_ROW * 1536);                   /* second rows of integers */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_resident_is_what_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
