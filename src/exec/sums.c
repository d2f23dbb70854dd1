/* sums.c - see sums.h. */
#include "exec/sums.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    PLACE_FLOATS = 1 << 16, /* of a rank's place, at least a row: 256 KiB stay in the caches */
    LINE = 64,
    SPINS = 1000,    /* about 20 microseconds: less than to sleep and wake */
    LOOK_MS = 50,    /* between two looks at what else may have happened */
    PASS_SHIFT = 32, /* a sum's number is that of the pass, then that in the pass */
};

typedef struct rank_state {
    alignas(LINE) _Atomic uint64_t done; /* number of the last sum that the rank has written, plus 1 */
    _Atomic uint64_t tag[2];             /* of the sums in its places */
} rank_state;

typedef struct shared {
    alignas(
        LINE) _Atomic int64_t failed;    /* number of the last pass that failed; GPUs read and write it too */
    alignas(LINE) _Atomic uint32_t bell; /* changes when a rank has written or failed */
    _Atomic uint32_t n_waiting;
    rank_state rank[];
} shared;

struct rank_sums {
    shared *at;
    float *places; /* [2][n_rank][place] */
    int rank, n_rank;
    int64_t width, place; /* floats */
    canceller gone;
    int64_t pass;
    _Atomic uint64_t now;
};

static int64_t place_floats(int64_t width) {
    return NUM_MAX((int64_t)PLACE_FLOATS / width, 1) * width;
}

static uint64_t head_bytes(int n_rank) {
    return (sizeof(shared) + (uint64_t)n_rank * sizeof(rank_state) + LINE - 1) / LINE * LINE;
}

uint64_t sums_bytes(int n_rank, int64_t width) {
    return head_bytes(n_rank) + 2 * (uint64_t)n_rank * (uint64_t)place_floats(width) * sizeof(float);
}

nib_status sums_open(void *memory, int rank, int n_rank, int64_t width, const canceller *gone,
                     rank_sums **out, nib_error *err) {
    rank_sums *s = mem_calloc(1, sizeof *s);
    if (!s)
        return nib_fail_nomem(err, sizeof *s, "sums over ranks");
    s->at = memory;
    s->places = (float *)(void *)((uint8_t *)memory + head_bytes(n_rank));
    s->rank = rank;
    s->n_rank = n_rank;
    s->width = width;
    s->place = place_floats(width);
    s->gone = *gone;
    *out = s;
    return NIB_OK;
}

void sums_close(rank_sums *s) {
    mem_free(s);
}

int sums_n_rank(const rank_sums *s) {
    return s->n_rank;
}

void sums_begin(rank_sums *s, int64_t pass) {
    s->pass = pass;
    atomic_store_explicit(&s->now, (uint64_t)pass << PASS_SHIFT, memory_order_relaxed);
}

int64_t sums_pass(const rank_sums *s) {
    return s->pass;
}

int sums_rank(const rank_sums *s) {
    return s->rank;
}

int64_t *sums_failed_at(const rank_sums *s) {
    return (int64_t *)(uintptr_t)&s->at->failed;
}

/* ---- the bell ---- */

static void ring(shared *at) {
    atomic_fetch_add(&at->bell, 1);
    if (atomic_load(&at->n_waiting))
        syscall(SYS_futex, &at->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps until the bell is no longer `heard`, or for LOOK_MS. */
static void sleep_until_it_rings(shared *at, uint32_t heard) {
    const struct timespec most = {.tv_nsec = LOOK_MS * 1000000L};
    atomic_fetch_add(&at->n_waiting, 1);
    syscall(SYS_futex, &at->bell, FUTEX_WAIT, heard, &most, NULL, 0);
    atomic_fetch_sub(&at->n_waiting, 1);
}

void sums_fail(rank_sums *s, int64_t pass) {
    atomic_store(&s->at->failed, pass);
    ring(s->at);
}

/* ---- one sum ---- */

int64_t sums_max_rows(const rank_sums *s) {
    return s->place / s->width;
}

uint64_t sums_now(const rank_sums *s) {
    return atomic_load_explicit(&s->now, memory_order_relaxed);
}

const float *sums_of(const rank_sums *s, uint64_t now, int rank) {
    return s->places + ((int64_t)(now & 1) * s->n_rank + rank) * s->place;
}

float *sums_own(const rank_sums *s, uint64_t now) {
    return s->places + ((int64_t)(now & 1) * s->n_rank + s->rank) * s->place;
}

void sums_publish(rank_sums *s, uint64_t now, uint64_t tag) {
    rank_state *own = &s->at->rank[s->rank];
    atomic_store_explicit(&s->now, now + 1, memory_order_relaxed);
    atomic_store_explicit(&own->tag[now & 1], tag, memory_order_relaxed);
    atomic_store_explicit(&own->done, now + 1, memory_order_release);
    ring(s->at);
}

/* The first rank that has not written its part; n_rank: all have. */
static int first_missing(const rank_sums *s, uint64_t now) {
    int r = 0;
    while (r < s->n_rank && atomic_load_explicit(&s->at->rank[r].done, memory_order_acquire) > now)
        r++;
    return r;
}

nib_status sums_check(const rank_sums *s, nib_error *err) {
    if (atomic_load(&s->at->failed) >= s->pass)
        return nib_fail(err, NIB_E_CANCELLED, "another rank has given the pass up");
    return cancel_asked(&s->gone) ? nib_fail(err, NIB_E_IO, "a rank of the model has ended") : NIB_OK;
}

static nib_status check_tags(const rank_sums *s, uint64_t now, uint64_t tag, nib_error *err) {
    for (int r = 0; r < s->n_rank; r++) {
        const uint64_t other = atomic_load_explicit(&s->at->rank[r].tag[now & 1], memory_order_relaxed);
        if (other != tag)
            return nib_fail(err, NIB_E_FAILED, "expected rows %llx of rank %d, found rows %llx",
                            (unsigned long long)tag, r, (unsigned long long)other);
    }
    return NIB_OK;
}

nib_status sums_wait(const rank_sums *s, uint64_t now, uint64_t tag, nib_error *err) {
    for (int i = 0; i < SPINS; i++) {
        if (first_missing(s, now) == s->n_rank)
            return check_tags(s, now, tag, err);
        thread_relax();
    }
    for (;;) {
        const uint32_t heard = atomic_load(&s->at->bell);
        if (first_missing(s, now) == s->n_rank)
            return check_tags(s, now, tag, err);
        NIB_TRY(sums_check(s, err));
        sleep_until_it_rings(s->at, heard);
    }
}
