/* alloc.c - see alloc.h. The functions replace those of glibc for the program and its libraries. */
#include "faults/alloc.h"
#include "support/sanitized.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

static _Atomic int64_t n_call, target;
static _Thread_local bool spared;

void malloc_fault_arm(int64_t nth) {
    atomic_store(&target, 0);
    atomic_store(&n_call, 0);
    atomic_store(&target, nth);
}

int64_t malloc_fault_count(void) {
    return atomic_load(&n_call);
}

void malloc_fault_spare(bool yes) {
    spared = yes;
}

#if !SANITIZED
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void *malloc(size_t n);
void *calloc(size_t n, size_t each);
void *realloc(void *p, size_t n);
int posix_memalign(void **out, size_t align, size_t n);

static bool fails(void) {
    if (spared || atomic_fetch_add(&n_call, 1) + 1 != atomic_load(&target))
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n) {
    return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t each) {
    return fails() ? NULL : __libc_calloc(n, each);
}

void *realloc(void *p, size_t n) {
    return fails() ? NULL : __libc_realloc(p, n);
}

int posix_memalign(void **out, size_t align, size_t n) {
    void *p = fails() ? NULL : __libc_memalign(align, n);
    if (p)
        *out = p;
    return p ? 0 : ENOMEM;
}
#endif
