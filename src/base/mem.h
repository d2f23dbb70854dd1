/* mem.h - the only access to the heap, so that tests can fail the n-th allocation and memory can be counted.
 *
 * Ownership: memory from mem_* is freed by mem_free. All functions are thread-safe. */
#ifndef NIB_BASE_MEM_H
#define NIB_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t n_byte);          /* uninitialised; NULL when out of memory; 0 bytes gives a pointer */
void *mem_calloc(size_t n, size_t each); /* zeroed; checks n * each */
void *mem_realloc(void *p, size_t n_byte);  /* as realloc; the old block stays on failure */
void *mem_array(size_t n, size_t each);     /* as mem_calloc without zeroing */
char *mem_strndup(const char *s, size_t n); /* NUL-terminated copy */
char *mem_strdup(const char *s);
void mem_free(void *p);                               /* NULL is fine */
void *mem_alloc_aligned(size_t align, size_t n_byte); /* align: a power of two; freed by mem_free */

/* Grows *array (elements of `each` bytes, capacity *cap) to hold at least n; at least doubles. 0 on success.
 */
int mem_grow(void **array, size_t *cap, size_t n, size_t each);

/* Maps a large, page-aligned, zeroed region (weights, KV, scratch); NULL when out of memory. It becomes
 * resident when touched, has huge pages if the system provides them, and returns to the system on mem_unmap.
 */
void *mem_map(size_t n_byte);
void *mem_map_sparse(size_t n_byte); /* the same without huge pages: touched, and resident, bit by bit */
void mem_unmap(void *p, size_t n_byte);
/* The same from a file, shared with other processes that map it; NULL:
 * not possible, or out of memory. */
void *mem_map_shared(int file, size_t n_byte);
/* Addresses that nothing else has and nobody may access; page-aligned. NULL: there are none. */
void *mem_addresses(size_t n_byte);
void mem_addresses_end(void *p, size_t n_byte);
/* Allows huge pages in such a region (also a sparse one) for parts that are touched from now on. A touched
 * huge page becomes resident as a whole. */
enum { MEM_HUGE_PAGE = 2 << 20 };
void mem_prefer_huge(void *p, size_t n_byte);
/* Returns whole pages of such a region to the system; they are zero when they are touched again. */
void mem_discard(void *p, size_t n_byte);
/* Makes pages of such a region resident before they are touched; false: the system cannot. */
bool mem_touch(void *p, size_t n_byte);

/* Returns memory that is not in use now to the system: free memory of the heap, and the resident code and
 * constants of the program and its libraries. Code is mapped again when it runs, usually from the page cache;
 * where /proc is not mounted, and after mem_keep_code, it stays. */
void mem_return_unused(void);
void mem_keep_code(void);

/* --- a bound on the memory that one thread allocates --- */
/* While a bound is set, an allocation that takes this thread past it fails as if memory had run out, so that
 * work on input of unknown size ends before it grows. All allocations through this file count, with the
 * allocator's overhead; those of other threads do not. Bounds nest: an inner one ends before the outer one.
 */
typedef struct mem_bound {
    struct mem_bound *outer;
    int64_t max;       /* bytes more than when it was set */
    int64_t now, peak; /* bytes taken since then; below 0: more was freed than taken */
    bool refused;      /* an allocation was refused */
} mem_bound;
void mem_bound_set(mem_bound *b, uint64_t max); /* UINT64_MAX: it only counts */
void mem_bound_end(mem_bound *b);
bool mem_bound_refused(void); /* the innermost bound has refused an allocation */
/* Counts n bytes that other code will allocate for this thread; false: they exceed the bound. */
bool mem_bound_take(uint64_t n_byte);
/* The next n bytes of this thread are charged to a ledger and do not count here; below 0: they were freed. */
void mem_bound_except(int64_t n_byte);

/* --- fault injection, for tests --- */
typedef enum {
    FAULT_ALLOC,
    FAULT_READ,
    FAULT_WRITE, /* file_writer: no space left */
    FAULT_RING,  /* io_uring cannot be set up */
    FAULT_DONE,  /* read_queue: a read in flight ends with an I/O error */
    FAULT_SHORT, /* read_queue: a read in flight ends early */
    FAULT_N
} fault_kind;
enum { FAULT_EVERY = -1 };
/* The nth call from now (1 = next) fails, once, or every call; 0 disarms. */
void fault_arm(fault_kind kind, int64_t nth);
int64_t fault_count(fault_kind kind); /* calls since fault_arm */
int fault_hit(fault_kind kind); /* for code that calls the system itself: true when this call is to fail */

#endif
