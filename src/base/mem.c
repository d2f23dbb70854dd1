/* mem.c - heap with fault injection, and page-aligned regions. */
#include "base/mem.h"
#include "base/num.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A region of at least one huge page lies on a huge page's boundary. Its size is not rounded up: its end,
 * when it does not fill a huge page, has small ones, so a region never takes more than was asked for. */
#define HUGE_PAGE ((size_t)2 << 20)

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
    int64_t n = atomic_fetch_add_explicit(&faults[kind].count, 1, memory_order_relaxed) + 1;
    return n == atomic_load_explicit(&faults[kind].target, memory_order_relaxed);
}

void *mem_alloc(size_t n_byte) {
    if (fault_hit(FAULT_ALLOC))
        return NULL;
    return malloc(n_byte ? n_byte : 1);
}

void *mem_calloc(size_t n, size_t each) {
    size_t total;
    if (__builtin_mul_overflow(n, each, &total) || fault_hit(FAULT_ALLOC))
        return NULL;
    return calloc(1, total ? total : 1);
}

void *mem_realloc(void *p, size_t n_byte) {
    if (fault_hit(FAULT_ALLOC))
        return NULL;
    return realloc(p, n_byte ? n_byte : 1);
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
    free(p);
}

void *mem_alloc_aligned(size_t align, size_t n_byte) {
    void *p = NULL;
    if (fault_hit(FAULT_ALLOC))
        return NULL;
    if (align < sizeof(void *))
        align = sizeof(void *);
    return posix_memalign(&p, align, n_byte ? n_byte : 1) ? NULL : p;
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

void *mem_map(size_t n_byte) {
    size_t size = page_round(n_byte);
    if (size == 0 || fault_hit(FAULT_ALLOC))
        return NULL;
    if (size < HUGE_PAGE || size > SIZE_MAX - HUGE_PAGE)
        return map_pages(size);
    /* Huge pages need a huge-page boundary, which mmap does not promise: take more, give the ends back. */
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

void *mem_map_sparse(size_t n_byte) {
    size_t size = page_round(n_byte);
    if (size == 0 || fault_hit(FAULT_ALLOC))
        return NULL;
    void *p = map_pages(size);
    if (p)
        madvise(p, size, MADV_NOHUGEPAGE); /* where the system gives huge pages to everything */
    return p;
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
    if (p)
        munmap(p, page_round(n_byte));
}
