/* Runs of rows as few reads: contiguous rows take one read, every row has exactly one place, and lists that
 * would need too many reads are refused. */
#include "weights/load_reads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { K = 64, ROW = K * 4, MAX = 40 }; /* f32 rows */

typedef struct made {
    container_tensor tensors[MAX];
    weight_piece pieces[MAX];
    weight w;
} made;

/* A matrix of n pieces of n_row rows each, piece i at offset[i] of its file. */
static void make(made *m, int n, int64_t n_row, const uint64_t *offset, const int *which) {
    memset(m, 0, sizeof *m);
    for (int i = 0; i < n; i++) {
        m->tensors[i].offset = offset[i];
        m->tensors[i].file = which ? which[i] : 0;
        m->pieces[i] = (weight_piece){&m->tensors[i], 0, n_row};
    }
    m->w = (weight){.name = "w", .n = n * n_row, .k = K, .type = TYPE_F32, .shared_block = -1};
    m->w.pieces = m->pieces;
    m->w.n_piece = n;
}

/* Every row in exactly one read, reads beside each other in the buffer. */
static void check(load_reads *r, const weight *w) {
    uint64_t at = 0, useful = 0;
    const uint64_t bytes = load_reads_place(r);
    for (int i = 0; i < r->n; i++) {
        const load_read *one = &r->list[i];
        assert_int_equal(one->at, at);
        assert_true(one->begin < one->end && one->useful <= one->end - one->begin);
        const uint64_t begin = one->begin / FILE_ALIGN * FILE_ALIGN;
        at += (one->end - begin + FILE_ALIGN - 1) / FILE_ALIGN * FILE_ALIGN;
        useful += one->useful;
    }
    assert_int_equal(bytes, at);
    assert_int_equal(useful, (uint64_t)w->n * ROW);
    for (int64_t i = 0, row, left; i < w->n; i++) {
        const weight_piece *p = loader_piece(w, i, &row, &left);
        const uint64_t begin = p->tensor->offset + (uint64_t)row * ROW;
        int n = 0;
        for (int j = 0; j < r->n; j++)
            n += r->list[j].file == p->tensor->file && r->list[j].begin <= begin &&
                 begin + ROW <= r->list[j].end;
        assert_int_equal(n, 1);
    }
}

static int reads_of(const made *m) {
    load_reads r = {0};
    if (!load_reads_add(&r, &m->w, 0, m->w.n))
        return -1;
    check(&r, &m->w);
    return r.n;
}

static void neighbours_come_in_one(void **state) {
    (void)state;
    static made m;
    const uint64_t size = 16 * ROW, near = size + (8 << 10), far = size + (40 << 10);
    make(&m, 3, 16, (uint64_t[]){100, 100 + size, 100 + 2 * size}, NULL);
    assert_int_equal(reads_of(&m), 1);
    make(&m, 3, 16, (uint64_t[]){100 + 2 * near, 100, 100 + near}, NULL); /* the last one joins both */
    assert_int_equal(reads_of(&m), 1);
    make(&m, 3, 16, (uint64_t[]){100, 100 + far, 100 + 2 * far}, NULL);
    assert_int_equal(reads_of(&m), 3);
    make(&m, 2, 16, (uint64_t[]){0, size}, (int[]){0, 1});
    assert_int_equal(reads_of(&m), 2);
}

static void any_order(void **state) {
    (void)state;
    static made m;
    srand(7);
    for (int turn = 0; turn < 500; turn++) {
        uint64_t offset[MAX];
        const int n = 1 + rand() % MAX;
        const uint64_t step = 16 * ROW + (uint64_t)(rand() % 3) * (9 << 10);
        for (int i = 0; i < n; i++)
            offset[i] = 33 + (uint64_t)i * step;
        for (int i = n - 1; i > 0; i--) {
            const int j = rand() % (i + 1);
            const uint64_t o = offset[i];
            offset[i] = offset[j];
            offset[j] = o;
        }
        make(&m, n, 16, offset, NULL);
        const int got = reads_of(&m); /* on the way there may be more than it has place for */
        if (step <= 16 * ROW + (16 << 10) && n <= MAX_LOAD_READS)
            assert_int_equal(got, 1);
        else if (n <= MAX_LOAD_READS)
            assert_int_equal(got, n);
        else
            assert_true(got == 1 || got == -1);
    }
}

static void refused(void **state) {
    (void)state;
    static made m;
    uint64_t offset[MAX];
    for (int i = 0; i < MAX; i++)
        offset[i] = (uint64_t)i << 20;
    make(&m, MAX_LOAD_READS, 16, offset, NULL);
    assert_int_equal(reads_of(&m), MAX_LOAD_READS);
    make(&m, MAX_LOAD_READS + 1, 16, offset, NULL);
    assert_int_equal(reads_of(&m), -1);
    make(&m, 1, 16, offset, NULL);
    m.w.transposed = true;
    assert_int_equal(reads_of(&m), -1);
    make(&m, 1, 16, offset, NULL);
    load_reads r = {0};
    assert_false(load_reads_add(&r, &m.w, 8, 16)); /* beyond the last piece */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_come_in_one),
        cmocka_unit_test(any_order),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
