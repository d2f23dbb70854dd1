/* process.c - see process.h. */
#include "support/process.h"

#include "base/mem.h"
#include "base/num.h"
#include "memory/ledger.h"

#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    MAX_REGIONS = 512,
    PAGES_AT_ONCE = 4096,
    CODE_AND_STACKS =
        8 << 20 /* about the size of a plain build of a test: the exact figure decides nothing */
};

typedef struct region {
    void *at;
    size_t n_byte;
} region;

static struct {
    pthread_mutex_t lock;
    region regions[MAX_REGIONS];
    int n;
    uint64_t peak;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Exists in every sanitized build, and in no other. */
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

static uint64_t heap_in_use(void) {
    if (__sanitizer_get_current_allocated_bytes)
        return __sanitizer_get_current_allocated_bytes();
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static uint64_t touched_bytes(const region *r) {
    unsigned char in_core[PAGES_AT_ONCE];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n_page = (r->n_byte + page - 1) / page;
    uint64_t touched = 0;
    for (size_t first = 0; first < n_page; first += PAGES_AT_ONCE) {
        size_t n = NUM_MIN(n_page - first, (size_t)PAGES_AT_ONCE);
        if (mincore((char *)r->at + first * page, n * page, in_core) != 0)
            return r->n_byte;
        for (size_t i = 0; i < n; i++)
            touched += (in_core[i] & 1) * page;
    }
    return touched;
}

/* Under the lock. */
static uint64_t count(void) {
    uint64_t now = CODE_AND_STACKS + heap_in_use();
    for (int i = 0; i < seen.n; i++)
        now += touched_bytes(&seen.regions[i]);
    seen.peak = NUM_MAX(seen.peak, now);
    return now;
}

static ledger_process look(void) {
    pthread_mutex_lock(&seen.lock);
    ledger_process p = {.now = count()};
    p.peak = seen.peak;
    pthread_mutex_unlock(&seen.lock);
    return p;
}

static void *note(void *at, size_t n_byte) {
    if (!at)
        return NULL;
    pthread_mutex_lock(&seen.lock);
    if (seen.n == MAX_REGIONS)
        fail_msg("more than %d regions at a time", MAX_REGIONS);
    seen.regions[seen.n++] = (region){at, n_byte};
    pthread_mutex_unlock(&seen.lock);
    return at;
}

void *__real_mem_map(size_t n_byte);
void *__real_mem_map_sparse(size_t n_byte);
void __real_mem_unmap(void *at, size_t n_byte);
void *__wrap_mem_map(size_t n_byte);
void *__wrap_mem_map_sparse(size_t n_byte);
void __wrap_mem_unmap(void *at, size_t n_byte);

void *__wrap_mem_map(size_t n_byte) {
    return note(__real_mem_map(n_byte), n_byte);
}

void *__wrap_mem_map_sparse(size_t n_byte) {
    return note(__real_mem_map_sparse(n_byte), n_byte);
}

/* Counts a region once more before it is unmapped: its pages are at their maximum then. */
void __wrap_mem_unmap(void *at, size_t n_byte) {
    pthread_mutex_lock(&seen.lock);
    count();
    for (int i = 0; i < seen.n; i++)
        if (seen.regions[i].at == at) {
            seen.regions[i] = seen.regions[--seen.n];
            break;
        }
    pthread_mutex_unlock(&seen.lock);
    __real_mem_unmap(at, n_byte);
}

static void begin(ledger_process (*with)(void)) {
    pthread_mutex_lock(&seen.lock);
    seen.peak = 0;
    pthread_mutex_unlock(&seen.lock);
    ledger_set_process_usage(with);
}

void process_counted(void) {
    begin(look);
}

void process_measured(void) {
    begin(__sanitizer_get_current_allocated_bytes ? look : NULL);
}

uint64_t process_bytes(void) {
    mem_return_unused();
    return ledger_process_usage().now;
}
