/* rate.c - see rate.h.
 * One word of every cache line is read: memory delivers whole lines, and with so few instructions only memory
 * limits the rate (summing every word in baseline code took a quarter longer than memory did). Which pattern
 * is fastest differs from machine to machine and with the number of threads, so all are tried. */
#include "base/rate.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

enum {
    LINE = 64,
    STEP = 4 * LINE,
    PASS = 16 << 20,
    FEW_PASSES = 4,
    MAX_PASSES = 512,
    TRIES = 15 /* of each pattern, to find the fastest */
};

/* streams and ahead (bytes of prefetch distance; 0: no prefetch) are compile-time constants. */
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

rate_share rate_share_of(double *rates, const double *reads, int n) {
    for (int i = 0; i < n; i++)
        rates[i] /= (reads[i] + reads[i + 1]) / 2;
    qsort(rates, (size_t)n, sizeof *rates, by_size);
    return (rate_share){
        .median = (rates[n / 2] + rates[(n - 1) / 2]) / 2, .low = rates[n / 4], .high = rates[n - 1 - n / 4]};
}

int rate_fastest(rate_pass_fn pass, void *arg) {
    double values[RATE_PATTERNS][TRIES], best = 0;
    int fastest = 0;
    for (int i = 0; i < TRIES; i++)
        for (int p = 0; p < RATE_PATTERNS; p++)
            values[p][i] = pass(arg, p);
    for (int p = 0; p < RATE_PATTERNS; p++) {
        const double median = rate_of(values[p], TRIES).median;
        if (median > best) {
            best = median;
            fastest = p;
        }
    }
    return fastest;
}

struct rate_reader {
    pool *threads;
    char *data;
    uint64_t n_byte; /* of the whole buffer */
    uint64_t part;   /* of each thread */
    uint64_t n_pass; /* bytes that one thread reads in one pass */
    uint64_t at;     /* where the next pass begins in each thread's part */
    int n_round;     /* passes in a row, without a barrier between them */
    double rate;     /* of the last ones */
    int pattern;
    const canceller *cancel; /* of opening */
    uint64_t sums[1024];
};

static void read_part(void *arg, int thread, int n_thread) {
    rate_reader *r = arg;
    const char *part = r->data + (uint64_t)thread * r->part;
    const uint64_t all = r->part / r->n_pass * r->n_pass;
    (void)n_thread;
    for (uint64_t i = 0; i < (uint64_t)r->n_round; i++)
        r->sums[thread] += rate_read(part + (r->at + i * r->n_pass) % all, r->n_pass, r->pattern);
}

static void touch_part(void *arg, int thread, int n_thread) {
    rate_reader *r = arg;
    char *part = r->data + (uint64_t)thread * r->part;
    (void)n_thread;
    for (uint64_t at = 0; at < r->part && !cancel_asked(r->cancel); at += PASS)
        memset(part + at, thread + 1, (size_t)NUM_MIN(r->part - at, (uint64_t)PASS));
}

/* Bytes a second. */
static double read_rounds(rate_reader *r, int n_round) {
    const double bytes = (double)r->n_pass * n_round * pool_size(r->threads), begin = time_now();
    r->n_round = n_round;
    pool_run(r->threads, read_part, r);
    r->rate = bytes / NUM_MAX(time_now() - begin, 1e-9);
    r->at = (r->at + (uint64_t)n_round * r->n_pass) % (r->part / r->n_pass * r->n_pass);
    return r->rate;
}

static double one_pass(void *arg, int pattern) {
    rate_reader *r = arg;
    r->pattern = pattern;
    return read_rounds(r, 1);
}

static nib_status open_reader(int n_thread, uint64_t n_byte, const canceller *cancel, rate_reader **out,
                              nib_error *err) {
    if (n_thread < 1 || n_thread > 1024 || n_byte / (uint64_t)n_thread < 4096)
        return nib_fail(err, NIB_E_USAGE, "expected 1 to 1024 threads and at least 4096 bytes for each");
    rate_reader *r = mem_calloc(1, sizeof *r);
    if (!r)
        return nib_fail_nomem(err, sizeof *r, "measuring memory");
    r->n_byte = n_byte;
    r->cancel = cancel;
    r->part = n_byte / (uint64_t)n_thread / 4096 * 4096;
    r->n_pass = NUM_MIN(r->part, (uint64_t)PASS);
    nib_status status = pool_open(n_thread, &r->threads, err);
    if (!status && !(r->data = mem_map(n_byte + RATE_SLACK)))
        status = nib_fail_nomem(err, n_byte, "measuring memory");
    if (!status) {
        pool_run(r->threads, touch_part, r);
        status = cancel_check(cancel, err);
    }
    if (status) {
        rate_reader_close(r);
        return status;
    }
    *out = r;
    return NIB_OK;
}

nib_status rate_reader_open(int n_thread, uint64_t n_byte, rate_reader **out, nib_error *err) {
    NIB_TRY(open_reader(n_thread, n_byte, NULL, out, err));
    (*out)->pattern = rate_fastest(one_pass, *out);
    return NIB_OK;
}

double rate_reader_pass(rate_reader *r, double seconds) {
    const double one = (double)r->n_pass * pool_size(r->threads);
    return read_rounds(r, (int)NUM_MAX(r->rate * seconds / one + 0.5, 1));
}

void rate_reader_close(rate_reader *r) {
    if (!r)
        return;
    if (r->data)
        mem_unmap(r->data, r->n_byte + RATE_SLACK);
    pool_close(r->threads);
    mem_free(r);
}

nib_status rate_memory_read(int n_thread, uint64_t n_byte, double seconds, const canceller *cancel, rate *out,
                            nib_error *err) {
    double values[RATE_PATTERNS][MAX_PASSES];
    rate_reader *r = NULL;
    nib_status status = NIB_OK;
    int n = 0;
    NIB_TRY(open_reader(n_thread, n_byte, cancel, &r, err));
    const double start = time_now();
    for (; n < MAX_PASSES && status == NIB_OK && (n < FEW_PASSES || time_now() - start < seconds); n++) {
        for (int p = 0; p < RATE_PATTERNS; p++)
            values[p][n] = one_pass(r, p);
        status = cancel_check(cancel, err);
    }
    rate_reader_close(r);
    if (status != NIB_OK)
        return status;
    *out = rate_of(values[0], n);
    for (int p = 1; p < RATE_PATTERNS; p++) {
        const rate now = rate_of(values[p], n);
        *out = now.best > out->best ? now : *out;
    }
    return NIB_OK;
}
