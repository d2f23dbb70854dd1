/* Channels of residuals that are read from a file: every code that a row needs is read, neighbouring channels
 * take one read, rows share common channels, and a file that ends too early is an error. */
#include "exec/residual_reader.h"

#include "base/num.h"
#include "support/matrix.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BEFORE = 96 /* bytes of the file in front of the codes */ };

typedef struct reading {
    residual all; /* in memory */
    file *f;
    residual_reader *reader;
    void *memory;
    int64_t n_row, max_chosen;
    salient *chosen; /* [n_row, max_chosen] */
    int32_t *n_chosen;
} reading;

static reading reading_open(int bits, int64_t n, int64_t k, int64_t n_row, int64_t max_chosen, int64_t cut) {
    reading t = {.n_row = n_row, .max_chosen = max_chosen};
    uint64_t bytes, seed = (uint64_t)(bits * n + k);
    file_writer *out;
    const char *path = temp_path("codes");
    assert_true(residual_bytes(bits, n, k, &bytes));
    uint8_t *codes = aligned_alloc(RESIDUAL_ALIGN, bytes);
    t.all = residual_in(codes, bits, n, k);
    for (uint64_t i = 0; i < bytes; i++)
        codes[i] = (uint8_t)random_next(&seed);
    assert_int_equal(file_writer_open(path, &out, NULL), NIB_OK);
    assert_int_equal(file_writer_write(out, codes, BEFORE, NULL), NIB_OK);
    assert_int_equal(file_writer_write(out, codes, (size_t)(t.all.step * k - cut), NULL), NIB_OK);
    assert_int_equal(file_writer_commit(out, NULL), NIB_OK);
    assert_int_equal(file_open(path, 0, &t.f, NULL), NIB_OK);
    t.memory = aligned_alloc(
        RESIDUAL_ALIGN, (size_t)num_round_up((int64_t)residual_reader_bytes(max_chosen, k), RESIDUAL_ALIGN));
    assert_int_equal(residual_reader_open(t.f, t.memory, max_chosen, k, &t.reader, NULL), NIB_OK);
    t.chosen = calloc((size_t)(n_row * max_chosen), sizeof *t.chosen);
    t.n_chosen = calloc((size_t)n_row, sizeof *t.n_chosen);
    return t;
}

static void reading_close(reading *t) {
    residual_reader_close(t->reader);
    file_close(t->f);
    free(t->all.rows), free(t->memory), free(t->chosen), free(t->n_chosen);
}

static void pick(reading *t, int64_t row, int64_t channel) {
    assert_true(t->n_chosen[row] < t->max_chosen);
    t->chosen[row * t->max_chosen + t->n_chosen[row]++] = (salient){(int32_t)channel, 1.0f};
}

/* About one of `every` channels, in runs. */
static void pick_some(reading *t, uint64_t seed, int every) {
    for (int64_t r = 0; r < t->n_row; r++)
        for (int64_t c = 0; c < t->all.k && t->n_chosen[r] < t->max_chosen; c++)
            if (random_next(&seed) / 64 % (uint64_t)every == 0)
                pick(t, r, c);
}

static void compare(reading *t, const residual_piece *p) {
    for (int64_t r = p->row; r < p->end_row; r++) {
        const salient *chosen = t->chosen + r * t->max_chosen;
        const salient *local = residual_reader_local(t->reader, chosen, t->n_chosen[r]);
        for (int32_t i = 0; i < t->n_chosen[r]; i++)
            for (int64_t o = p->n0; o < p->end; o++) {
                const float found = residual_code(&p->part, local[i].at, o - p->base),
                            expected = residual_code(&t->all, chosen[i].at, o);
                if (memcmp(&found, &expected, sizeof found) != 0) /* halves may be no numbers */
                    fail_msg("row %d, channel %d, output %d: another code", (int)r, (int)chosen[i].at,
                             (int)o);
            }
    }
}

/* All rows, outputs [n0, n1). Returns the number of pieces. */
static int read_all(reading *t, int64_t n0, int64_t n1) {
    const residual_rows rows = {&t->all, BEFORE, t->chosen, t->n_chosen, t->max_chosen, t->n_row};
    residual_piece p;
    int n = 0;
    for (int64_t at = n0; at < n1; at = p.end)
        for (int64_t row = 0; row < t->n_row; row = p.end_row, n++) {
            residual_reader_request(t->reader, &rows, row, at, n1);
            assert_int_equal(residual_reader_wait(t->reader, &p, NULL), NIB_OK);
            assert_true(p.row == row && p.end_row > row && p.n0 == at && p.end > at && p.end <= n1);
            compare(t, &p);
        }
    return n;
}

static void test_codes(void **state) {
    (void)state;
    for (int bits = 2; bits <= 16; bits *= 2)
        for (int64_t n_row = 1; n_row <= 9; n_row += 8) {
            reading t = reading_open(bits, 1040, 700, n_row, 300, 0);
            pick_some(&t, (uint64_t)n_row + 5, 3);
            read_all(&t, 0, 1040);
            read_all(&t, 48, 1024 + 16);
            read_all(&t, 16, 32);
            reading_close(&t);
        }
}

/* 64 neighbouring channels with all outputs are one read; common channels of two rows are read once. */
static void test_together(void **state) {
    (void)state;
    residual_read count = {0};
    reading t = reading_open(4, 512, 600, 2, 100, 0);
    for (int64_t r = 0; r < 2; r++)
        for (int64_t c = 100; c < 164; c++)
            pick(&t, r, c);
    assert_int_equal(read_all(&t, 0, 512), 1);
    residual_reader_count(t.reader, &count);
    assert_int_equal(count.n, 1);
    assert_int_equal(count.n_byte, 64 * 256);
    reading_close(&t);
}

/* More than a piece takes: rows one after the other, each as far as the buffer goes. */
static void test_many(void **state) {
    (void)state;
    reading t = reading_open(8, 256, 4096, 3, 4000, 0);
    for (int64_t r = 0; r < 3; r++)
        for (int64_t c = r; c < 4096 && t.n_chosen[r] < 3000; c++)
            pick(&t, r, c);
    for (int64_t c = 3100; c < 4096; c += 2)
        pick(&t, 2, c);
    read_all(&t, 0, 256);
    reading_close(&t);
}

static void test_truncated(void **state) {
    (void)state;
    nib_error err;
    residual_piece p;
    reading t = reading_open(4, 512, 600, 1, 100, 256);
    const residual_rows rows = {&t.all, BEFORE, t.chosen, t.n_chosen, t.max_chosen, 1};
    pick(&t, 0, 3);
    pick(&t, 0, 599); /* the last channel, which the file lacks */
    residual_reader_request(t.reader, &rows, 0, 0, 512);
    assert_int_equal(residual_reader_wait(t.reader, &p, &err), NIB_E_MODEL);
    t.n_chosen[0] = 1;
    read_all(&t, 0, 512);
    reading_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_codes), cmocka_unit_test(test_together),
                                       cmocka_unit_test(test_many), cmocka_unit_test(test_truncated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
