/* arena.h - a bump allocator for objects with a common lifetime. Not thread-safe. Freed as a whole. */
#ifndef NIB_BASE_ARENA_H
#define NIB_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

typedef struct arena {
    struct arena_chunk *head;
    size_t bytes; /* taken from the heap, in all chunks */
} arena;

void arena_init(arena *a);
void arena_deinit(arena *a);
/* Reserves one piece of the heap for the next n_byte of allocations. False: out of memory. */
bool arena_reserve(arena *a, size_t n_byte);
void *arena_alloc(arena *a, size_t n_byte);             /* 16-byte aligned, zeroed; NULL when out of memory */
void *arena_array(arena *a, size_t n, size_t each);     /* checks the product */
char *arena_strndup(arena *a, const char *s, size_t n); /* NUL-terminated copy; NULL when out of memory */

#endif
