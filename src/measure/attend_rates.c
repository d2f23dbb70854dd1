/* attend_rates.c - see attend_rates.h. Each thread attends with one row to sequence after sequence, all heads
 * of it, as a layer's rows of generated tokens do. Heads of queries and of keys are as many: with more heads
 * of queries a byte takes more work. */
#include "measure/attend_rates.h"

#include "base/mem.h"
#include "base/num.h"
#include "kernels/kernels.h"

#include <string.h>

enum { HEADS = 8, WIDTH = 128, PAGES = 16 };
enum { MAX_PASSES = 512, FEW_PASSES = 3, PASS_BYTES = 8 << 20 /* of a thread */ };
enum { FILL = 0x11 }; /* as halves: small numbers */

/* Sequences of one format, in memory that no cache holds. */
typedef struct attend_job {
    const kernel_table *kernels;
    const canceller *cancel;
    uint8_t *memory; /* [n_byte] */
    uint64_t n_byte;
    kv_view view;    /* of any sequence, without its pages */
    uint8_t **pages; /* [n_sequence][PAGES] */
    uint64_t each;   /* bytes of a sequence */
    int64_t n_sequence;
    int64_t first, n; /* of a pass: its first sequence, and those of a thread */
    const float *q;   /* [HEADS * WIDTH] */
    double *seconds;  /* of each thread: its processor time for a pass */
    uint8_t *own;     /* of each thread: a row of results, and scratch */
    size_t own_bytes;
} attend_job;

static void attend_some(void *arg, int thread, int n_thread) {
    const attend_job *j = arg;
    uint8_t *own = j->own + (size_t)thread * j->own_bytes;
    attend_args a = {.kv = j->view,
                     .q = j->q,
                     .out = (float *)(void *)own,
                     .n_row = 1,
                     .first_position = PAGES * KV_BLOCK - 1,
                     .n_head = HEADS,
                     .scale = 0.1f,
                     .scratch = own + HEADS * WIDTH * sizeof(float)};
    const double begin = time_thread();
    (void)n_thread;
    for (int64_t i = 0; i < j->n; i++) {
        a.kv.pages = j->pages + (j->first + thread * j->n + i) % j->n_sequence * PAGES;
        j->kernels->attend(&a, 0, HEADS, 0, 1);
    }
    j->seconds[thread] = time_thread() - begin;
}

static nib_status time_passes(attend_job *j, pool *threads, double seconds, rate *out, nib_error *err) {
    const double start = time_now();
    double values[MAX_PASSES];
    int n = 0;
    for (; n < MAX_PASSES && (n < FEW_PASSES || time_now() - start < seconds); n++) {
        const int64_t n_sequence = j->n * pool_size(threads);
        double slowest = 1e-9;
        pool_run(threads, attend_some, j);
        for (int i = 0; i < pool_size(threads); i++)
            slowest = NUM_MAX(slowest, j->seconds[i]);
        values[n] = (double)j->each * (double)n_sequence / slowest;
        j->first = (j->first + n_sequence) % j->n_sequence;
        NIB_TRY(cancel_check(j->cancel, err));
    }
    *out = rate_of(values, n);
    return NIB_OK;
}

/* Cuts the memory into sequences of the format, after the newest block of all in f16. */
static nib_status set_format(attend_job *j, type_id type, nib_error *err) {
    uint64_t part = 0, half = 0;
    mem_free(j->pages);
    j->pages = NULL;
    if (!kv_page_bytes(type, HEADS, WIDTH, &part) || !kv_page_bytes(TYPE_F16, HEADS, WIDTH, &half))
        return nib_fail(err, NIB_E_FAILED, "expected a format of keys and values, found none");
    part = (uint64_t)num_round_up((int64_t)part, 64);
    half = (uint64_t)num_round_up((int64_t)half, 64);
    j->each = PAGES * 2 * part;
    j->n_sequence = (int64_t)((j->n_byte - 2 * half) / j->each);
    const size_t n_page = (size_t)j->n_sequence * PAGES;
    if (!(j->pages = mem_array(n_page, sizeof *j->pages)))
        return nib_fail_nomem(err, n_page * sizeof *j->pages, "attention");
    for (size_t i = 0; i < n_page; i++)
        j->pages[i] = j->memory + 2 * half + i * 2 * part;
    j->view = (kv_view){.value_at = (int64_t)part,
                        .type = type,
                        .n_kv_head = HEADS,
                        .d_head = WIDTH,
                        .recent = j->memory,
                        .recent_value_at = (int64_t)half};
    j->n = NUM_MAX((int64_t)(PASS_BYTES / j->each), 1);
    j->first = 0;
    return NIB_OK;
}

/* one: a pool of one thread. */
static nib_status measure_formats(attend_job *j, pool *threads, pool *one, double seconds, hardware *out,
                                  nib_error *err) {
    static const struct {
        type_id type;
        int bits;
    } formats[] = {{TYPE_F16, 16}, {TYPE_KV8, 8}, {TYPE_KV4, 4}};
    const int n_format = NUM_COUNT(formats);
    for (int i = 0; i < n_format; i++) {
        hardware_attend *to = &out->attend[i];
        NIB_TRY(set_format(j, formats[i].type, err));
        to->bits = formats[i].bits;
        NIB_TRY(time_passes(j, one, seconds / (2 * n_format), &to->one_thread, err));
        NIB_TRY(time_passes(j, threads, seconds / (2 * n_format), &to->all_threads, err));
    }
    out->n_attend = n_format;
    return NIB_OK;
}

nib_status attend_rates_measure(pool *threads, uint64_t n_byte, double seconds, const canceller *cancel,
                                hardware *out, nib_error *err) {
    const size_t row = HEADS * WIDTH * sizeof(float);
    const size_t n = (size_t)pool_size(threads),
                 own = (row + attend_scratch_bytes(WIDTH, true) + 63) / 64 * 64;
    float *q = mem_calloc(HEADS * WIDTH, sizeof *q);
    attend_job j = {.kernels = kernels_table(),
                    .cancel = cancel,
                    .memory = mem_map(n_byte),
                    .n_byte = n_byte,
                    .q = q,
                    .seconds = mem_calloc(n, sizeof *j.seconds),
                    .own = mem_alloc_aligned(64, n * own),
                    .own_bytes = own};
    pool *one = NULL;
    nib_status status = j.memory && q && j.seconds && j.own ? pool_open(1, &one, err)
                                                            : nib_fail_nomem(err, n_byte, "attention");
    if (status == NIB_OK) {
        memset(j.memory, FILL, n_byte);
        status = measure_formats(&j, threads, one, seconds, out, err);
    }
    pool_close(one);
    mem_free(j.pages);
    mem_free(j.own);
    mem_free(j.seconds);
    mem_free(q);
    if (j.memory)
        mem_unmap(j.memory, n_byte);
    return status;
}
