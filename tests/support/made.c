/* made.c - see made.h. */
#include "support/made.h"

#include "support/faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

void made_container(const container *c) {
    for (size_t i = 0; i < container_n_tensor(c); i++) {
        const container_tensor *t = container_tensor_at(c, i);
        fault_made(t->name, strlen(t->name));
        fault_made(&t->type, sizeof t->type);
        fault_made(t->shape, (size_t)t->n_dim * sizeof *t->shape);
        fault_made(&t->file, sizeof t->file);
        fault_made(&t->offset, sizeof t->offset);
        fault_made(&t->bytes, sizeof t->bytes);
    }
    for (size_t i = 0; i < container_n_meta(c); i++) {
        const char *key;
        container_meta_at(c, i, &key);
        fault_made(key, strlen(key));
    }
}

void made_file(const char *path) {
    char part[4096];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;)
        fault_made(part, n);
    fclose(f);
}
