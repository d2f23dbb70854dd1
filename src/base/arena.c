/* arena.c - see arena.h. Chunks double, so that a big arena is a few blocks and a small one is small. */
#include "base/arena.h"
#include "base/mem.h"
#include "base/num.h"

#include <string.h>

#define ARENA_ALIGN 16u
#define CHUNK_MIN   ((size_t)4 << 10)
#define CHUNK_MAX   ((size_t)1 << 20)

typedef struct arena_chunk {
    struct arena_chunk *next;
    size_t used, cap; /* of data[] */
    _Alignas(ARENA_ALIGN) unsigned char data[];
} arena_chunk;

void arena_init(arena *a) {
    a->head = NULL;
    a->bytes = 0;
}

void arena_deinit(arena *a) {
    for (arena_chunk *c = a->head; c;) {
        arena_chunk *next = c->next;
        mem_free(c);
        c = next;
    }
    arena_init(a);
}

static arena_chunk *new_chunk(arena *a, size_t need) {
    size_t cap = a->head ? NUM_MIN(a->head->cap * 2, CHUNK_MAX) : CHUNK_MIN;
    cap = NUM_MAX(cap, need);
    arena_chunk *c = mem_calloc(1, sizeof *c + cap);
    if (!c)
        return NULL;
    c->cap = cap;
    a->bytes += sizeof *c + cap;
    /* A chunk for one large request is full at once, so the chunk before it stays the current one. */
    if (a->head && need > CHUNK_MAX) {
        c->next = a->head->next;
        a->head->next = c;
    } else {
        c->next = a->head;
        a->head = c;
    }
    return c;
}

static size_t align_up(size_t n) {
    return (n + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

bool arena_reserve(arena *a, size_t n_byte) {
    const arena_chunk *c = a->head;
    return n_byte <= SIZE_MAX / 2 &&
           ((c && c->cap - c->used >= n_byte) || new_chunk(a, align_up(n_byte)) != NULL);
}

void *arena_alloc(arena *a, size_t n_byte) {
    if (n_byte > SIZE_MAX / 2)
        return NULL;
    size_t need = align_up(NUM_MAX(n_byte, 1));
    arena_chunk *c = a->head;
    if (!c || c->cap - c->used < need)
        c = new_chunk(a, need);
    if (!c)
        return NULL;
    void *p = c->data + c->used;
    c->used += need;
    return p;
}

void *arena_array(arena *a, size_t n, size_t each) {
    size_t total;
    return __builtin_mul_overflow(n, each, &total) ? NULL : arena_alloc(a, total);
}

char *arena_strndup(arena *a, const char *s, size_t n) {
    char *copy = n == SIZE_MAX ? NULL : arena_alloc(a, n + 1);
    if (copy && n)
        memcpy(copy, s, n);
    return copy;
}
