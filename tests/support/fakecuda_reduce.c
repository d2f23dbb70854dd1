/* fakecuda_reduce.c - the fake table's memory of several processes, and sums over their devices: as the
 * kernel stores and reads (kernels/cuda/reduce.cu), pair by pair. */
#include "support/fakecuda_parts.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_SHARED = 2 * CUDA_MAX_RANK };

static struct {
    void *at;
    size_t bytes;
    int file;
} shared[MAX_SHARED];

static int keep(int file, size_t bytes, void **p) {
    int i = 0;
    while (i < MAX_SHARED && shared[i].at)
        i++;
    void *at = i < MAX_SHARED ? mem_map_shared(file, bytes) : NULL;
    if (!at)
        return OUT_OF_MEMORY;
    shared[i].at = at;
    shared[i].bytes = bytes;
    shared[i].file = file;
    fake.held++;
    *p = (void *)((uintptr_t)at | DEVICE_BIT);
    return 0;
}

int fake_share_new(void **p, size_t bytes, cuda_handle *handle) {
    const int e = fake_call();
    if (e)
        return e;
    const int file = memfd_create("fake-cuda", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)bytes))
        return OUT_OF_MEMORY;
    snprintf(handle->bytes, sizeof handle->bytes, "/proc/%ld/fd/%d", (long)getpid(), file);
    return keep(file, bytes, p);
}

int fake_share_open(void **p, const cuda_handle *handle) {
    struct stat is;
    const int e = fake_call(), file = e ? -1 : open(handle->bytes, O_RDWR | O_CLOEXEC);
    if (e)
        return e;
    if (file < 0 || fstat(file, &is))
        return fake_misuse("a handle of memory that is not there");
    return keep(file, (size_t)is.st_size, p);
}

int fake_share_close(void *p) {
    for (int i = 0; i < MAX_SHARED; i++)
        if (shared[i].at && shared[i].at == real(p)) {
            mem_unmap(shared[i].at, shared[i].bytes);
            close(shared[i].file);
            shared[i].at = NULL;
            fake.held--;
            return 0;
        }
    return fake_misuse("memory is closed that is not shared");
}

bool fake_is_shared(const void *p) {
    for (int i = 0; i < MAX_SHARED; i++)
        if (shared[i].at && shared[i].at == real(p))
            return true;
    return false;
}

/* A line of a pair: each half a float and a mark of the sum. */
typedef struct line {
    _Atomic uint64_t half[2];
} line;

static uint32_t mark(uint64_t number, int half) {
    const uint32_t low = (uint32_t)(2 * number + 1), high = (uint32_t)(number >> 31);
    return half ? low + high * 0x9e3779b8U : low;
}

static line *line_of(const cuda_ranks *a, int of, int from, uint64_t number, int64_t i) {
    return (line *)real(a->places[of]) + ((int64_t)(number & 1) * a->n_rank + from) * a->max_pair + i;
}

static void store(line *to, const float *v, uint64_t number) {
    for (int h = 0; h < 2; h++) {
        uint32_t bits;
        memcpy(&bits, &v[h], sizeof bits);
        atomic_store(&to->half[h], (uint64_t)bits << 32 | mark(number, h));
    }
}

static bool load(line *from, float *v, uint64_t number) {
    for (int h = 0; h < 2; h++) {
        const uint64_t half = atomic_load(&from->half[h]);
        const uint32_t bits = (uint32_t)(half >> 32);
        if ((uint32_t)half != mark(number, h))
            return false;
        memcpy(&v[h], &bits, sizeof bits);
    }
    return true;
}

/* False: a rank has given the pass up, or is silent. */
static bool wait_for(const cuda_ranks *a, int from, uint64_t number, int64_t i, float *v) {
    _Atomic int64_t *failed = (_Atomic int64_t *)real(a->failed);
    const int64_t pass = *(const int64_t *)real(a->pass);
    const double begin = time_now();
    while (!load(line_of(a, a->rank, from, number, i), v, number)) {
        if (atomic_load(failed) >= pass)
            return false;
        if (time_now() - begin > 4) {
            atomic_store(failed, pass);
            return false;
        }
        sched_yield();
    }
    return true;
}

/* Pairs [begin, begin + n) of the rows; pairs beyond the rows are zeros. False: a rank has failed. */
static bool add_part(const cuda_reduce *a, int64_t begin, int64_t n, uint64_t number) {
    const cuda_ranks *of = &a->of;
    const int64_t half = a->n / 2;
    const float zeros[2] = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        const float *x = (const float *)real(a->x) + (begin + i) / half * a->ldx + (begin + i) % half * 2;
        for (int r = 0; r < of->n_rank; r++)
            if (r != of->rank)
                store(line_of(of, r, of->rank, number, i), (begin + i) / half < a->n_row ? x : zeros, number);
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = (begin + i) / half, at = (begin + i) % half * 2;
        float sum[2] = {0, 0}, *out = (float *)real(a->out) + row * a->ldo + at;
        for (int r = 0; r < of->n_rank; r++) {
            float v[2] = {0, 0};
            if (r != of->rank && !wait_for(of, r, number, i, v))
                return false;
            if (r == of->rank && row < a->n_row)
                memcpy(v, (const float *)real(a->x) + row * a->ldx + at, sizeof v);
            for (int h = 0; h < 2; h++)
                sum[h] = r ? sum[h] + v[h] : v[h];
        }
        for (int h = 0; h < 2 && row < a->n_row; h++)
            out[h] = a->adds ? out[h] + sum[h] : sum[h];
    }
    return true;
}

static uint64_t number_of(const cuda_ranks *of) {
    return ((uint64_t) * (const int64_t *)real(of->pass) << CUDA_REDUCE_SHIFT) + (uint64_t)of->first;
}

void fake_sum(const cuda_reduce *a) {
    const int64_t all = a->n_row * (a->n / 2), part = cuda_ranks_part(a->n_row, a->n, a->of.max_pair);
    uint64_t number =
        ((uint64_t) * (const int64_t *)real(a->of.pass) << CUDA_REDUCE_SHIFT) + (uint64_t)a->of.first;
    for (int64_t begin = 0; begin < all && add_part(a, begin, part, number++); begin += part)
        ;
}

int fake_reduce(const cuda_reduce *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(reduce, fake_reduce);
    if (a->n % 2 || a->of.max_pair % 32 || (a->leaves.data && a->n % 64))
        return fake_misuse("rows are added whose width the kernel does not have");
    fake_sum(a);
    if (a->leaves.data)
        fake_leave(&a->leaves, real(a->out), a->ldo, a->n_row, a->n, false);
    return 0;
}

/* Pair i of the columns of a rank, and how many of its two floats there are. */
static float *columns_of(const cuda_gather *a, int rank, int64_t i, int *n) {
    const int64_t half = cuda_gather_width(a) / 2, row = i / half, at = a->first[rank] + i % half * 2;
    const int64_t left = a->first[rank + 1] - at;
    *n = row < a->n_row && left > 0 ? (int)NUM_MIN(left, (int64_t)2) : 0;
    return *n ? (float *)real(a->x) + row * a->ld + at : NULL;
}

static bool gather_part(const cuda_gather *a, int64_t begin, int64_t part, uint64_t number) {
    const cuda_ranks *of = &a->of;
    int n;
    for (int64_t i = 0; i < part; i++) {
        float v[2] = {0, 0};
        const float *own = columns_of(a, of->rank, begin + i, &n);
        if (n)
            memcpy(v, own, (size_t)n * sizeof *v);
        for (int r = 0; r < of->n_rank; r++)
            if (r != of->rank)
                store(line_of(of, r, of->rank, number, i), v, number);
    }
    for (int64_t i = 0; i < part; i++)
        for (int r = 0; r < of->n_rank; r++) {
            float v[2], *to = columns_of(a, r, begin + i, &n);
            if (r != of->rank && !wait_for(of, r, number, i, v))
                return false;
            if (r != of->rank && n)
                memcpy(to, v, (size_t)n * sizeof *v);
        }
    return true;
}

int fake_gather(const cuda_gather *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(gather, fake_gather);
    const int64_t width = cuda_gather_width(a), all = a->n_row * width / 2,
                  part = cuda_ranks_part(a->n_row, width, a->of.max_pair);
    uint64_t number = number_of(&a->of);
    for (int64_t begin = 0; begin < all && gather_part(a, begin, part, number++); begin += part)
        ;
    return 0;
}
