/* walk.h - reads everything that a container returns, so that a sanitizer sees invalid memory. */
#ifndef NIB_TESTS_WALK_H
#define NIB_TESTS_WALK_H

#include "formats/container.h"

#include <stdlib.h>
#include <string.h>

static inline uint64_t walk_string(meta_string s) {
    uint64_t sum = s.n_byte + (uint8_t)s.data[s.n_byte];
    for (size_t i = 0; i < s.n_byte; i++)
        sum += (uint8_t)s.data[i];
    return sum;
}

static inline uint64_t walk_value(const meta_value *v) {
    uint64_t sum = 0;
    if (v->type == META_STRING)
        return walk_string(v->v.s);
    for (size_t i = 0; v->type == META_ARRAY && i < v->n; i++)
        sum += v->elem == META_STRING ? walk_string(v->v.strings[i]) : (uint64_t)v->v.ints[i];
    return sum;
}

/* Every key must be found under its name, every tensor must be inside its file. */
static inline void walk_container(const container *c) {
    uint64_t sum = 0;
    for (size_t i = 0; i < container_n_meta(c); i++) {
        const char *key;
        const meta_value *v = container_meta_at(c, i, &key);
        if (container_meta(c, key) != v)
            abort();
        sum += walk_value(v);
    }
    for (size_t i = 0; i < container_n_tensor(c); i++) {
        const container_tensor *t = container_tensor_at(c, i);
        if (container_find(c, t->name) != t || t->bytes > UINT64_MAX - t->offset ||
            t->offset + t->bytes > file_size(container_file(c, t->file)))
            abort();
        sum += t->bytes;
    }
    __asm__ volatile("" : : "r"(sum)); /* so that the compiler cannot leave the reading out */
}

/* Opens the container at the path and reads all of it, and once more without its vocabulary; a refusal is
 * fine. */
static inline void walk_path(const char *path) {
    container *c;
    nib_error err;
    if (container_open(path, NULL, &c, &err) != NIB_OK)
        return;
    walk_container(c);
    container_drop_vocab(c);
    walk_container(c);
    container_close(c);
}

#endif
