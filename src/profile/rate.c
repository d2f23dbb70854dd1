/* rate.c - see rate.h. The reader sums eight independent streams of words, so that the loads, and not the
 * additions, are what it waits for, and asks for lines 1 KiB ahead: the pattern that the product kernels
 * have. */
#include "profile/rate.h"

#include "base/mem.h"
#include "base/thread.h"

#include <string.h>

enum { BLOCK = 4096, AHEAD = 1024 };

typedef struct read_job {
    const unsigned char *data;
    int64_t n_block;
    uint64_t sums[1024]; /* one a thread; the result must be used, or the compiler drops the loop */
} read_job;

static uint64_t read_block(const unsigned char *block) {
    uint64_t sum[8] = {0};
    for (int line = 0; line < BLOCK; line += 64) {
        __builtin_prefetch(block + line + AHEAD, 0, 2);
        uint64_t words[8];
        memcpy(words, block + line, sizeof words);
        for (int i = 0; i < 8; i++)
            sum[i] += words[i];
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

static void read_part(void *arg, int thread, int n_thread) {
    read_job *job = arg;
    int64_t begin, end;
    pool_split(job->n_block, 1, thread, n_thread, &begin, &end);
    uint64_t sum = 0;
    for (int64_t i = begin; i < end; i++)
        sum += read_block(job->data + i * BLOCK);
    job->sums[thread] = sum;
}

static void touch_part(void *arg, int thread, int n_thread) {
    read_job *job = arg;
    int64_t begin, end;
    pool_split(job->n_block, 1, thread, n_thread, &begin, &end);
    memset((unsigned char *)job->data + begin * BLOCK, thread + 1, (size_t)((end - begin) * BLOCK));
}

nib_status rate_memory_read(int n_thread, uint64_t n_byte, int repeats, double *bytes_per_s, nib_error *err) {
    if (n_thread < 1 || n_thread > 1024 || n_byte < BLOCK)
        return nib_fail(err, NIB_E_USAGE, "expected 1 to 1024 threads and at least %d bytes", BLOCK);
    pool *threads;
    NIB_TRY(pool_open(n_thread, &threads, err));
    read_job job = {.n_block = (int64_t)(n_byte / BLOCK)};
    void *memory = mem_map(n_byte + AHEAD);
    if (!memory) {
        pool_close(threads);
        return nib_fail_nomem(err, n_byte, "measuring memory");
    }
    job.data = memory;
    pool_run(threads, touch_part, &job);
    double best = 0;
    for (int i = 0; i < repeats; i++) {
        double start = time_now();
        pool_run(threads, read_part, &job);
        double rate = (double)(job.n_block * BLOCK) / (time_now() - start);
        best = rate > best ? rate : best;
    }
    mem_unmap(memory, n_byte + AHEAD);
    pool_close(threads);
    *bytes_per_s = best;
    return NIB_OK;
}
