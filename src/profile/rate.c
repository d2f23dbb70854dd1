/* rate.c - see rate.h.
 *
 * One word of every line is read: what comes from memory are lines, and with so few instructions nothing but
 * memory is waited for (summing every word in baseline code took a quarter longer than memory did). Which
 * pattern is fastest differs from machine to machine and with the number of threads, so all are tried. */
#include "profile/rate.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64, STEP = 4 * LINE, PASS = 16 << 20, FEW_PASSES = 4, MOST_PASSES = 512 };

/* streams and ahead are constants: ahead 0 is no prefetch. */
static inline uint64_t read_streams(const char *data, uint64_t n_byte, int streams, int ahead) {
    uint64_t sum[4] = {0}, word;
    const uint64_t part = n_byte / (uint64_t)streams;
    for (uint64_t at = 0; at < part; at += STEP)
        for (int s = 0; s < streams; s++) {
            const char *p = data + (uint64_t)s * part + at;
            for (int l = 0; l < STEP / LINE; l++) {
                if (ahead)
                    __builtin_prefetch(p + l * LINE + ahead, 0, 3);
                memcpy(&word, p + l * LINE, sizeof word);
                sum[l] += word;
            }
        }
    return sum[0] + sum[1] + sum[2] + sum[3];
}

uint64_t rate_read(const void *data, uint64_t n_byte, int pattern) {
    switch (pattern) {
    case 0: return read_streams(data, n_byte, 1, 4096);
    case 1: return read_streams(data, n_byte, 1, 1024);
    case 2: return read_streams(data, n_byte, 2, 2048);
    case 3: return read_streams(data, n_byte, 2, 0);
    default: return read_streams(data, n_byte, 4, 512);
    }
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

rate rate_of(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_size);
    return (rate){.best = values[n - 1], .median = values[n / 2], .worst = values[0]};
}

typedef struct read_job {
    char *data;
    uint64_t n_byte; /* of the whole buffer */
    uint64_t at;     /* where this pass begins in each thread's part */
    uint64_t n_pass; /* bytes of this pass, for one thread */
    int pattern;
    uint64_t sums[1024];
} read_job;

static uint64_t part_bytes(const read_job *job, int n_thread) {
    return job->n_byte / (uint64_t)n_thread / 4096 * 4096;
}

static void read_part(void *arg, int thread, int n_thread) {
    read_job *job = arg;
    const char *part = job->data + (uint64_t)thread * part_bytes(job, n_thread);
    job->sums[thread] += rate_read(part + job->at, job->n_pass, job->pattern);
}

static void touch_part(void *arg, int thread, int n_thread) {
    read_job *job = arg;
    memset(job->data + (uint64_t)thread * part_bytes(job, n_thread), thread + 1,
           (size_t)part_bytes(job, n_thread));
}

static rate measure(pool *threads, read_job *job, double seconds) {
    double values[RATE_PATTERNS][MOST_PASSES];
    const int n_thread = pool_size(threads);
    const uint64_t part = part_bytes(job, n_thread);
    int n = 0, best = 0;
    job->n_pass = NUM_MIN(part, (uint64_t)PASS);
    const double start = time_now();
    for (; n < MOST_PASSES && (n < FEW_PASSES || time_now() - start < seconds); n++)
        for (job->pattern = 0; job->pattern < RATE_PATTERNS; job->pattern++) {
            const double begin = time_now();
            pool_run(threads, read_part, job);
            values[job->pattern][n] = (double)job->n_pass * n_thread / (time_now() - begin);
            job->at = job->at + 2 * job->n_pass <= part ? job->at + job->n_pass : 0;
        }
    rate all[RATE_PATTERNS];
    for (int p = 0; p < RATE_PATTERNS; p++) {
        all[p] = rate_of(values[p], n);
        best = all[p].best > all[best].best ? p : best;
    }
    return all[best];
}

nib_status rate_memory_read(int n_thread, uint64_t n_byte, double seconds, rate *out, nib_error *err) {
    enum { SLACK = 1 << 16 }; /* for prefetches beyond the end */
    if (n_thread < 1 || n_thread > 1024 || n_byte / (uint64_t)n_thread < 4096)
        return nib_fail(err, NIB_E_USAGE, "expected 1 to 1024 threads and at least 4096 bytes for each");
    pool *threads;
    NIB_TRY(pool_open(n_thread, &threads, err));
    read_job job = {.n_byte = n_byte, .data = mem_map(n_byte + SLACK)};
    if (!job.data) {
        pool_close(threads);
        return nib_fail_nomem(err, n_byte, "measuring memory");
    }
    pool_run(threads, touch_part, &job);
    *out = measure(threads, &job, seconds);
    mem_unmap(job.data, n_byte + SLACK);
    pool_close(threads);
    return NIB_OK;
}
