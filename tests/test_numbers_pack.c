/* Packing loses nothing: every type, odd shapes, read back row by row and compared with the file type's own
 * dequantizer, bit by bit; packed bytes end at a forbidden page. */
#include "support/matrix.h"

#include "numbers/pack_isa.h"
#include "numbers/recipe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void check_matrix(type_id type, int64_t n, int64_t k, matrix_kind kind) {
    matrix m = matrix_open(type, n, k, kind, (uint64_t)(type * 1000 + n + k));
    float *expected = malloc((size_t)k * sizeof(float));
    guarded found = guard_open((size_t)k * sizeof(float));
    for (int64_t r = 0; r < n; r++) {
        matrix_row(&m, r, expected);
        pack_read_row(&m.view, r, found.data);
        for (int64_t i = 0; i < k; i++)
            if (memcmp((float *)found.data + i, expected + i, sizeof(float)))
                fail_msg("%s %dx%d row %d element %d: %a, expected %a", type_get(type)->name, (int)n, (int)k,
                         (int)r, (int)i, (double)((float *)found.data)[i], (double)expected[i]);
    }
    guard_close(&found);
    free(expected);
    matrix_close(&m);
}

static void test_round_trip(void **state) {
    (void)state;
    static const int64_t ns[] = {1, 15, 16, 17, 48}, ks[] = {1, 2, 8, 9, 15, 18, 64};
    int n_type = 0;
    for (int id = 0; id < TYPE_COUNT; id++) {
        const type_info *t = type_get((type_id)id);
        pack_format f;
        if (!pack_choose((type_id)id, t->block_elems, &f)) {
            assert_true(t->dequantize == NULL || id == TYPE_I32 || id == TYPE_I64); /* tables of ids */
            continue;
        }
        n_type++;
        for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
            for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
                for (int kind = MATRIX_RANDOM; kind <= MATRIX_TINY; kind++)
                    if (t->block_elems < 256 || ks[j] <= 9)
                        check_matrix((type_id)id, ns[i], ks[j] * t->block_elems, (matrix_kind)kind);
    }
    assert_true(n_type >= 18);
}

/* Codebooks, packed as codes or looked up, and integer zeros, packed or subtracted: the file's values, and
 * the bytes of a weight. */
static void test_books(void **state) {
    (void)state;
    static const struct {
        type_id type;
        int bits, wide, beside; /* bits of a code; bytes of a panel besides its codes */
    } cases[] = {{TYPE_C3, 3, 8, 64 + 128},
                 {TYPE_C4, 4, 8, 64 + 256},
                 {TYPE_C4O45, 4, 8, 64 + 256 + 3 * 64},
                 {TYPE_N4G32, 4, 5, 2 * 384 + 192},
                 {TYPE_N4G64, 4, 5, 2 * 192 + 128},
                 {TYPE_N4G128, 4, 5, 2 * 128 + 64}};
    enum { N = 37, K = 640 };
    float expected[K], found[K];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        matrix narrow = matrix_open(cases[i].type, N, K, MATRIX_RANDOM, 3 + i),
               wide = matrix_open_wide(cases[i].type, N, K, MATRIX_RANDOM, 3 + i);
        uint64_t bytes;
        assert_int_equal(narrow.view.format.bits, cases[i].bits);
        assert_int_equal(wide.view.format.bits, cases[i].wide);
        assert_true(pack_bytes(&narrow.view.format, N, K, &bytes));
        assert_int_equal(bytes, 3 * (16 * K * cases[i].bits / 8 + cases[i].beside));
        for (int64_t r = 0; r < N; r++) {
            matrix_row(&wide, r, expected);
            pack_read_row(&wide.view, r, found);
            for (int64_t k = 0; k < K; k++) /* 0 may be -0 */
                assert_true(found[k] == expected[k]);
            pack_read_row(&narrow.view, r, found);
            assert_memory_equal(found, expected, sizeof found);
        }
        matrix_close(&narrow);
        matrix_close(&wide);
    }
    pack_format f;
    assert_true(pack_choose(TYPE_IQ4_NL, 64, &f));
    pack_widen(&f);
    assert_int_equal(f.bits, 4);
}

static void test_recipes(void **state) {
    (void)state;
    static const char *const good[] = {"file",        "u4g64",           "u4g64w",
                                       "u8g32a",      "u3g32aw",         "u4growp",
                                       "u4g64+u4g64", "u3g128aw+u5g32w", "u4g128p+u2g16a"};
    static const char *const bad[] = {"",
                                      "w",
                                      "+u4g64",
                                      "u4g64+",
                                      "u4g64+file",
                                      "filew",
                                      "u4g64ww",
                                      "u4g64w+u4g64",
                                      "u4groww",
                                      "u4g64tw",
                                      "u4g64+u4grow",
                                      "u4g64t+u4g64",
                                      "u4g64+u4g64+u4g64",
                                      "u4g64wa"};
    recipe r;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char slice[2][PACK_NAME] = {"", ""}, name[PACK_NAME];
        if (!recipe_parse(good[i], 576, &r))
            fail_msg("%s: refused", good[i]);
        for (int j = 0; j < r.n_slice; j++)
            recipe_slice_name(&r.slice[j], r.uses_imatrix, j > 0, slice[j]);
        assert_true(recipe_join(slice[0], slice[1], name));
        assert_string_equal(name, r.n_slice ? good[i] : "");
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (recipe_parse(bad[i], 576, &r))
            fail_msg("%s: taken", bad[i]);
}

static void test_names(void **state) {
    (void)state;
    pack_format f;
    char name[PACK_NAME];
    static const char *const good[] = {"u2g16",   "u3g32a",  "u4g64",   "u5g128ap", "u6grow",
                                       "u7growa", "u8g128p", "u4g128t", "u7g32tp"};
    static const char *const bad[] = {"",        "u",      "u4",      "u4g",           "u4gx",    "u1g32",
                                      "u9g32",   "u4g33",  "u4g256",  "u4g32x",        "u4g32at", "u8g32t",
                                      "u4g16t",  "u4rowt", "u4growt", "u4g4294967360", "q4_0",    "u4g128pp",
                                      "u4g32pa", "u4g-1"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(pack_from_name(good[i], 100, &f));
        pack_name(&f, name);
        assert_string_equal(name, good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (pack_from_name(bad[i], 100, &f))
            fail_msg("%s was taken", bad[i]);
    assert_true(pack_from_name("u8growa", MAX_PACK_ROW, &f));
    assert_false(pack_from_name("u8growa", MAX_PACK_ROW + 1, &f));
    assert_false(pack_from_name("u4g128t", MAX_PACK_ROW + 1, &f));
    assert_true(pack_from_name("u4g128", MAX_PACK_ROW + 1, &f));
    assert_false(pack_from_name("u4g128", 0, &f));
    assert_true(pack_choose(TYPE_Q4_K, 256, &f));
    f.packing = PACK_PLANES;
    pack_name(&f, name);
    assert_string_equal(name, "q4_k.planes");
}

/* Packs m's rows by one instruction set, at odd addresses, and compares with the bytes of plain C. */
static void check_same(const matrix *m, const pack_isa *isa, const uint8_t *expected, uint64_t bytes) {
    const pack_format *f = &m->view.format;
    guarded data = guard_open((size_t)bytes), scratch = guard_open(pack_scratch_bytes(f, m->k));
    memset(data.data, 0xa5, (size_t)bytes);
    memset(scratch.data, 0x5a, pack_scratch_bytes(f, m->k));
    for (int64_t first = 0; first < m->n; first += PACK_PANEL) {
        const void *rows[PACK_PANEL];
        guarded raw[PACK_PANEL]; /* each row ends at a forbidden page */
        const int n_row = (int)(m->n - first < PACK_PANEL ? m->n - first : PACK_PANEL);
        for (int i = 0; i < n_row; i++) {
            raw[i] = guard_open(m->raw_row_bytes);
            memcpy(raw[i].data, m->raw + (size_t)(first + i) * m->raw_row_bytes, m->raw_row_bytes);
            rows[i] = raw[i].data;
        }
        pack_panel_by(isa, f, &(pack_from){.type = m->type}, m->k, first, n_row, rows, data.data,
                      scratch.data);
        for (int i = 0; i < n_row; i++)
            guard_close(&raw[i]);
    }
    for (uint64_t i = 0; i < bytes; i++)
        if (((uint8_t *)data.data)[i] != expected[i])
            fail_msg("%s, %s planes %d, %dx%d: byte %d is %d, expected %d", isa->name,
                     type_get(m->type)->name, f->packing, (int)m->n, (int)m->k, (int)i,
                     ((uint8_t *)data.data)[i], expected[i]);
    guard_close(&scratch);
    guard_close(&data);
}

/* Every instruction set gives the same bytes: rows of any bytes at all (scales that are no numbers too), odd
 * shapes, both packings. */
static void check_everywhere(type_id type, int64_t n, int64_t k, int packing, uint64_t seed) {
    const int elems = type_get(type)->block_elems;
    matrix m = packing == PACK_PLANES ? matrix_open_planes(type, n, k, MATRIX_RANDOM, seed)
                                      : matrix_open(type, n, k, MATRIX_RANDOM, seed);
    uint64_t bytes = 0;
    if (elems > 1) /* the floats of uniform formats stay numbers here: test_rounding_poison has the others */
        for (size_t i = 0; i < (size_t)n * m.raw_row_bytes; i++)
            m.raw[i] = (uint8_t)(random_next(&seed) >> 40);
    assert_true(pack_bytes(&m.view.format, n, k, &bytes));
    uint8_t *expected = calloc(1, (size_t)bytes);
    void *scratch = malloc(pack_scratch_bytes(&m.view.format, k));
    for (int64_t first = 0; first < n; first += PACK_PANEL) {
        const void *rows[PACK_PANEL];
        const int n_row = (int)(n - first < PACK_PANEL ? n - first : PACK_PANEL);
        for (int i = 0; i < n_row; i++)
            rows[i] = m.raw + (size_t)(first + i) * m.raw_row_bytes;
        pack_panel_by(pack_isa_at(0), &m.view.format, &(pack_from){.type = type}, k, first, n_row, rows,
                      expected, scratch);
    }
    for (int i = 0; pack_isa_at(i); i++)
        check_same(&m, pack_isa_at(i), expected, bytes);
    free(scratch);
    free(expected);
    matrix_close(&m);
}

static void test_instruction_sets(void **state) {
    (void)state;
    static const int64_t ns[] = {16, 5, 33}, ks[] = {1, 2, 3, 7, 8, 9, 18, 21};
    assert_string_equal(pack_isa_at(0)->name, "ref");
    uint64_t seed = 77;
    for (int id = 0; id < TYPE_COUNT; id++) {
        const type_info *t = type_get((type_id)id);
        pack_format f;
        if (!pack_choose((type_id)id, t->block_elems, &f) || f.layout != PACK_TILE)
            continue;
        for (int packing = PACK_PARTS; packing <= PACK_PLANES; packing++)
            for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
                for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
                    if (t->block_elems < 256 || ks[j] <= 3)
                        check_everywhere((type_id)id, ns[i], ks[j] * t->block_elems, packing, seed++);
    }
}

/* The packers that NIBBLE_ISA leaves: this program, run again under it, checks whether the best one is
 * `best`. */
static void check_limit(const char *limit, const char *best) {
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        setenv("NIBBLE_ISA", limit, 1);
        execl("/proc/self/exe", "test_numbers_pack", best, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_limited(void **state) {
    (void)state;
    const char *vectors = "ref";
    for (int i = 0; pack_isa_at(i); i++)
        if (!strcmp(pack_isa_at(i)->name, "avx2"))
            vectors = "avx2";
    check_limit("ref", "ref");
    check_limit("avx2", vectors);
    check_limit("avxvnni", vectors);
    for (int i = 0; pack_isa_at(i); i++)
        check_limit(pack_isa_at(i)->name, pack_isa_at(i)->name);
}

/* Uniform formats share the packing of tiles. */
static void test_instruction_sets_uniform(void **state) {
    (void)state;
    for (int bits = 2; bits <= 8; bits++)
        for (int packing = 0; packing < 2; packing++)
            for (int64_t k = 33; k < 700; k += 111) {
                char name[PACK_NAME];
                snprintf(name, sizeof name, "u%dg64%s", bits, packing ? "p" : "");
                matrix m = matrix_open_uniform(name, 19, k, MATRIX_RANDOM, (uint64_t)(bits * k));
                uint64_t bytes = 0;
                assert_true(pack_bytes(&m.view.format, 19, k, &bytes));
                for (int i = 0; pack_isa_at(i); i++)
                    check_same(&m, pack_isa_at(i), m.view.data, bytes);
                matrix_close(&m);
            }
}

static void test_choose(void **state) {
    (void)state;
    pack_format f;
    assert_false(pack_choose(TYPE_I32, 64, &f));
    assert_false(pack_choose(TYPE_BOOL, 64, &f));
    assert_false(pack_choose(TYPE_Q4_0, 33, &f));
    assert_false(pack_choose(TYPE_Q4_K, 128, &f));
    assert_false(pack_choose(TYPE_F32, 0, &f));
    assert_false(pack_choose(TYPE_COUNT, 64, &f));
    assert_true(pack_choose(TYPE_F8_E4M3, 3, &f));
    assert_int_equal(f.layout, PACK_ROWS);
    assert_int_equal(f.type, TYPE_BF16);
}

static void test_sizes(void **state) {
    (void)state;
    pack_format f;
    uint64_t bytes;
    assert_true(pack_choose(TYPE_Q4_1, 576, &f));
    assert_true(pack_bytes(&f, 1536, 576, &bytes)); /* 4 bits and 2 halves for 32: as in the file */
    assert_int_equal(bytes, 1536 * 576 / 32 * 20);
    assert_true(pack_choose(TYPE_Q8_0, 640, &f));
    assert_true(pack_bytes(&f, 262144, 640, &bytes));
    assert_int_equal(bytes, 262144 * 640 / 32 * 34);
    assert_true(pack_choose(TYPE_Q6_K, 2048, &f));
    assert_true(pack_bytes(&f, 640, 2048, &bytes));
    assert_int_equal(bytes, 640 / 16 * 2048 / 256 * (16 * 210 + 32)); /* its scales are padded to 64 bytes */
    assert_false(pack_bytes(&f, INT64_MAX, 2048, &bytes));
    assert_false(pack_bytes(&f, 16, INT64_MAX, &bytes));
    assert_false(pack_bytes(&f, -1, 256, &bytes));
    assert_false(pack_bytes(&f, INT64_C(1) << 50, INT64_C(1) << 30, &bytes));
}

/* The parts rule again, in its simplest form: field f of line l is quad l + 2wf. */
static void test_layout(void **state) {
    (void)state;
    matrix m = matrix_open(TYPE_Q8_0, 16, 64, MATRIX_RANDOM, 5);
    const uint8_t *line = m.view.data;
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 64; k++)
            assert_int_equal(line[k / 4 * 64 + 4 * r + k % 4],
                             m.raw[(size_t)r * m.raw_row_bytes + (size_t)(k / 32 * 34 + 2 + k % 32)] ^ 0x80);
    matrix_close(&m);
    m = matrix_open(TYPE_Q4_0, 16, 64, MATRIX_RANDOM, 6);
    line = m.view.data;
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 64; k++) {
            const int quad = k / 4, field = quad / 8, byte = line[quad % 8 * 64 + 4 * r + k % 4];
            const uint8_t *block = m.raw + (size_t)r * m.raw_row_bytes + (size_t)(k / 32 * 18);
            const int j = k % 32;
            assert_int_equal(byte >> 4 * field & 15, j < 16 ? block[2 + j] & 15 : block[2 + j - 16] >> 4);
        }
    matrix_close(&m);
}

int main(int argc, char **argv) {
    if (argc == 2) /* test_limited's */
        return strcmp(pack_isa_best()->name, argv[1]) != 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_instruction_sets),
        cmocka_unit_test(test_instruction_sets_uniform),
        cmocka_unit_test(test_limited),
        cmocka_unit_test(test_books),
        cmocka_unit_test(test_recipes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
