/* mem.c - heap with fault injection, and page-aligned regions. */
#include "base/mem.h"
#include "base/num.h"

#include <assert.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A region of at least one huge page begins at a huge-page boundary. Its size is not rounded up: an end that
 * does not fill a huge page has small pages, so a region never takes more than was requested. */
#define HUGE_PAGE ((size_t)MEM_HUGE_PAGE)

static struct { _Atomic int64_t count, target; } faults[FAULT_N];

void fault_arm(fault_kind kind, int64_t nth) {
    atomic_store(&faults[kind].target, 0);
    atomic_store(&faults[kind].count, 0);
    atomic_store(&faults[kind].target, nth);
}

int64_t fault_count(fault_kind kind) {
    return atomic_load(&faults[kind].count);
}

int fault_hit(fault_kind kind) {
    const int64_t n = atomic_fetch_add_explicit(&faults[kind].count, 1, memory_order_relaxed) + 1;
    const int64_t target = atomic_load_explicit(&faults[kind].target, memory_order_relaxed);
    return n == target || target == FAULT_EVERY;
}

/* ---- the bound ---- */

enum { CHUNK_HEAD = 16 }; /* what the allocator has before each block */

static _Thread_local mem_bound *bound; /* the innermost */

void mem_bound_set(mem_bound *b, uint64_t max) {
    *b = (mem_bound){.outer = bound, .max = (int64_t)NUM_MIN(max, (uint64_t)INT64_MAX)};
    bound = b;
}

void mem_bound_end(mem_bound *b) {
    assert(bound == b);
    bound = b->outer;
}

bool mem_bound_refused(void) {
    return bound && bound->refused;
}

static void count(int64_t n_byte) {
    for (mem_bound *b = bound; b; b = b->outer) {
        b->now += n_byte;
        b->peak = NUM_MAX(b->peak, b->now);
    }
}

static bool may_take(uint64_t n_byte) {
    for (mem_bound *b = bound; b; b = b->outer)
        if (b->max != INT64_MAX && n_byte > (uint64_t)(b->max - NUM_MIN(b->now, b->max))) {
            b->refused = true;
            return false;
        }
    return true;
}

bool mem_bound_take(uint64_t n_byte) {
    if (!may_take(n_byte))
        return false;
    count((int64_t)NUM_MIN(n_byte, (uint64_t)INT64_MAX / 2));
    return true;
}

void mem_bound_except(int64_t n_byte) {
    for (mem_bound *b = bound; b; b = b->outer)
        b->now -= n_byte;
}

static int64_t block_bytes(void *p) {
    return bound && p ? (int64_t)malloc_usable_size(p) + CHUNK_HEAD : 0;
}

static void *counted(void *p) {
    count(block_bytes(p));
    return p;
}

static bool refuses(uint64_t n_byte) {
    return fault_hit(FAULT_ALLOC) || !may_take(n_byte);
}

/* ---- the heap ---- */

void *mem_alloc(size_t n_byte) {
    if (refuses(n_byte))
        return NULL;
    return counted(malloc(n_byte ? n_byte : 1));
}

void *mem_calloc(size_t n, size_t each) {
    size_t total;
    if (__builtin_mul_overflow(n, each, &total) || refuses(total))
        return NULL;
    return counted(calloc(1, total ? total : 1));
}

/* The old and the new block may exist at the same time for a moment. */
void *mem_realloc(void *p, size_t n_byte) {
    const int64_t before = block_bytes(p);
    if (refuses(n_byte))
        return NULL;
    void *q = counted(realloc(p, n_byte ? n_byte : 1));
    if (q)
        count(-before);
    return q;
}

void *mem_array(size_t n, size_t each) {
    size_t total;
    if (__builtin_mul_overflow(n, each, &total))
        return NULL;
    return mem_alloc(total);
}

char *mem_strndup(const char *s, size_t n) {
    if (n == SIZE_MAX)
        return NULL;
    char *copy = mem_alloc(n + 1);
    if (copy) {
        if (n)
            memcpy(copy, s, n);
        copy[n] = 0;
    }
    return copy;
}

char *mem_strdup(const char *s) {
    return mem_strndup(s, strlen(s));
}

void mem_free(void *p) {
    count(-block_bytes(p));
    free(p);
}

void *mem_alloc_aligned(size_t align, size_t n_byte) {
    void *p = NULL;
    if (refuses(n_byte))
        return NULL;
    if (align < sizeof(void *))
        align = sizeof(void *);
    return posix_memalign(&p, align, n_byte ? n_byte : 1) ? NULL : counted(p);
}

int mem_grow(void **array, size_t *cap, size_t n, size_t each) {
    if (n <= *cap)
        return 0;
    size_t want = *cap > SIZE_MAX / 2 ? n : NUM_MAX(n, *cap * 2);
    want = NUM_MAX(want, 8);
    size_t total;
    if (__builtin_mul_overflow(want, each, &total))
        return -1;
    void *bigger = mem_realloc(*array, total);
    if (!bigger)
        return -1;
    *array = bigger;
    *cap = want;
    return 0;
}

static size_t page_round(size_t n_byte) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (n_byte == 0)
        return page;
    return n_byte > SIZE_MAX - (page - 1) ? 0 : (n_byte + page - 1) / page * page;
}

static void *map_pages(size_t n_byte) {
    void *p = mmap(NULL, n_byte, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Huge pages need a huge-page boundary, which mmap does not guarantee: map more, then unmap both ends. */
static void *map_huge(size_t size) {
    char *p = map_pages(size + HUGE_PAGE);
    if (!p)
        return map_pages(size);
    size_t head = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (head)
        munmap(p, head);
    if (HUGE_PAGE - head)
        munmap(p + head + size, HUGE_PAGE - head);
    madvise(p + head, size, MADV_HUGEPAGE);
    return p + head;
}

static void *counted_pages(void *p, size_t size) {
    if (p)
        count((int64_t)size);
    return p;
}

void *mem_map(size_t n_byte) {
    size_t size = page_round(n_byte);
    if (size == 0 || refuses(size))
        return NULL;
    const bool small = size < HUGE_PAGE || size > SIZE_MAX - HUGE_PAGE;
    return counted_pages(small ? map_pages(size) : map_huge(size), size);
}

void *mem_map_sparse(size_t n_byte) {
    size_t size = page_round(n_byte);
    if (size == 0 || refuses(size))
        return NULL;
    void *p = map_pages(size);
    if (p)
        madvise(p, size, MADV_NOHUGEPAGE); /* in case the system gives huge pages to every mapping */
    return counted_pages(p, size);
}

void *mem_map_shared(int file, size_t n_byte) {
    const size_t size = page_round(n_byte);
    if (size == 0 || refuses(size))
        return NULL;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return p == MAP_FAILED ? NULL : counted_pages(p, size);
}

void mem_prefer_huge(void *p, size_t n_byte) {
    if (n_byte)
        madvise(p, page_round(n_byte), MADV_HUGEPAGE);
}

void mem_discard(void *p, size_t n_byte) {
    if (n_byte)
        madvise(p, n_byte, MADV_DONTNEED);
}

bool mem_touch(void *p, size_t n_byte) {
#ifdef MADV_POPULATE_WRITE /* Linux 5.14 */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)p % page;
    return madvise((char *)p - before, page_round(n_byte + before), MADV_POPULATE_WRITE) == 0;
#else
    (void)p;
    (void)n_byte;
    return false;
#endif
}

void mem_unmap(void *p, size_t n_byte) {
    if (!p)
        return;
    count(-(int64_t)page_round(n_byte));
    munmap(p, page_round(n_byte));
}

void *mem_addresses(size_t n_byte) {
    void *p = mmap(NULL, n_byte, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void mem_addresses_end(void *p, size_t n_byte) {
    munmap(p, n_byte);
}
