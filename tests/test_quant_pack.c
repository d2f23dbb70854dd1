/* Packing loses nothing: every type, odd shapes, read back row by row and compared with the file type's own
 * dequantiser, bit by bit; packed bytes end at a forbidden page. Uniform formats round to nearest. */
#include "support/matrix.h"

#include "quant/pack_isa.h"
#include "quant/recipe.h"
#include "quant/tile.h"

#include <math.h>
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
            assert_null(t->dequantize);
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

static bool has_search(const pack_format *f) {
    return f->scale == PACK_SCALE_F16 && f->group != PACK_GROUP_ROW;
}

/* Squared error of n values as pack_scale.h weights it. */
static double weighted_error(const float *x, const float *found, int64_t n) {
    double squares = 0, sum = 0;
    for (int64_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)x[i] - (double)found[i];
        sum += (sqrt(squares / (double)n) + fabs((double)x[i])) * d * d;
    }
    return sum;
}

static uint16_t finite_half(float x) {
    const uint16_t h = half_from_float(x);
    return (h & 0x7fff) > 0x7bff ? (uint16_t)((h & 0x8000) | 0x7bff) : h;
}

/* The same at the step that just reaches the largest value; with a minimum, that reaches both ends. */
static double plain_error(const float *x, int64_t n, const pack_format *f) {
    const int zero = tile_zero(f), most = (1 << f->bits) - 1;
    float low = x[0], high = x[0], found[256];
    assert_true(n <= 256);
    for (int64_t i = 0; i < n; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    const float peak = -low > high ? low : high, min = f->asym ? half_to_float(finite_half(low)) : 0;
    const float step = half_to_float(finite_half(f->asym ? (high - min) / (float)most : peak / (float)-zero));
    for (int64_t i = 0; i < n; i++) {
        const float q = step == 0 ? 0 : rintf((x[i] - min) / step);
        found[i] = fminf(fmaxf(q, (float)-zero), (float)(most - zero)) * step + min;
    }
    return weighted_error(x, found, n);
}

/* Round to nearest: at most half a step off, or what rounding the scale to a half makes of the last codes.
 * Where the scale is searched for, values at the ends may lose more, and all together never do. */
static void check_rounding(const pack_format *f, int64_t n, int64_t k, matrix_kind kind) {
    char name[PACK_NAME];
    pack_name(f, name);
    matrix m = matrix_open_uniform(name, n, k, kind, (uint64_t)(n + k));
    const int64_t group = f->group == PACK_GROUP_ROW ? k : f->group;
    float *found = malloc((size_t)k * sizeof(float));
    for (int64_t r = 0; r < n; r++) {
        const float *x = (const float *)(const void *)(m.raw + (size_t)r * m.raw_row_bytes);
        float most = 0;
        pack_read_row(&m.view, r, found);
        for (int64_t i = 0; i < k; i++)
            most = fmaxf(most, fabsf(x[i]));
        for (int64_t g = 0; g < k; g += group) {
            float low = x[g], high = x[g];
            for (int64_t i = g; i < k && i < g + group; i++) {
                low = fminf(low, x[i]);
                high = fmaxf(high, x[i]);
            }
            /* symmetric: the side with the smaller magnitude may lose its last code */
            float size = f->asym ? (high - low) / (float)((1 << f->bits) - 1)
                                 : fmaxf(fabsf(low), fabsf(high)) / (float)(1 << (f->bits - 1));
            float bound = size * (f->asym ? 0.5f : 1.0f) + most * 1e-3f;
            bound += (float)(1 << f->bits) * 3.1e-8f; /* a subnormal scale is off by half a unit */
            if (has_search(f))
                bound += size;
            if (f->scale == PACK_SCALE_TWO) /* steps are multiples of the row's */
                bound = 2 * size + most / 127 + 127 * 3.1e-8f;
            for (int64_t i = g; i < k && i < g + group; i++)
                if (!(fabsf(found[i] - x[i]) <= bound))
                    fail_msg("%s %dx%d (%d, %d): %g for %g, more than %g off", name, (int)n, (int)k, (int)r,
                             (int)i, (double)found[i], (double)x[i], (double)bound);
            const int64_t n_here = g + group < k ? group : k - g;
            const double error = has_search(f) ? weighted_error(x + g, found + g, n_here) : 0;
            if (has_search(f) && error > plain_error(x + g, n_here, f) * (1 + 1e-5))
                fail_msg("%s (%d, %d): an error of %g, %g without a search", name, (int)r, (int)g, error,
                         plain_error(x + g, n_here, f));
        }
    }
    free(found);
    matrix_close(&m);
}

static void test_rounding(void **state) {
    (void)state;
    static const int groups[] = {16, 32, 64, 128, PACK_GROUP_ROW};
    static const int64_t ks[] = {1, 63, 64, 65, 200, 256, 300, 576};
    for (int bits = 2; bits <= 8; bits++)
        for (int g = 0; g < 5; g++)
            for (int form = 0; form < 6; form++)
                for (int i = 0; i < 8; i++) {
                    pack_format f;
                    if (!pack_uniform(bits, groups[g], form % 3 == 1, form % 3 == 2, ks[i], &f))
                        continue;
                    f.flavour = form / 3;
                    check_rounding(&f, i % 2 ? 17 : 5, ks[i], MATRIX_RANDOM);
                    check_rounding(&f, 3, ks[i], (matrix_kind)(1 + i % 4));
                }
}

/* What the search gains on normally distributed values (a sum of twelve uniform ones), in groups of 64. */
static void test_search_gains(void **state) {
    (void)state;
    static const struct {
        const char *format;
        double most; /* of the plain error */
    } goals[] = {{"u3g64", 0.90},  {"u4g64", 0.92},  {"u5g64", 0.94},  {"u8g64", 0.95},
                 {"u3g64a", 0.85}, {"u4g64a", 0.92}, {"u5g64a", 0.97}, {"u8g64a", 0.99}};
    enum { K = 64 * 64 };
    float *x = malloc(K * sizeof *x), *out = malloc(K * sizeof *out);
    uint64_t seed = 5;
    for (int i = 0; i < K; i++) {
        x[i] = 0;
        for (int j = 0; j < 12; j++)
            x[i] += random_float(&seed) * 0.01f;
    }
    for (size_t c = 0; c < sizeof goals / sizeof *goals; c++) {
        pack_format f;
        uint64_t bytes = 0;
        const void *rows[] = {x};
        double error = 0, plain = 0;
        assert_true(pack_from_name(goals[c].format, K, &f) && pack_bytes(&f, 1, K, &bytes));
        guarded data = guard_open((size_t)bytes), scratch = guard_open(pack_scratch_bytes(&f, K));
        pack_panel(&f, TYPE_F32, 1, K, 0, 1, rows, data.data, scratch.data);
        pack_read_row(&(view){data.data, f, 1, K}, 0, out);
        for (int g = 0; g < K; g += 64) {
            error += weighted_error(x + g, out + g, 64);
            plain += plain_error(x + g, 64, &f);
        }
        if (error > goals[c].most * plain)
            fail_msg("%s: %.3f of the plain error", goals[c].format, error / plain);
        guard_close(&scratch);
        guard_close(&data);
    }
    free(x);
    free(out);
}

static double column_error(const float *x, const float *found, const float *column, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const double d = (double)x[i] - (double)found[i];
        sum += (double)column[i] * d * d;
    }
    return sum;
}

/* Columns that matter more err less, and equal ones change nothing. */
static void test_columns(void **state) {
    (void)state;
    static const char *const names[] = {"u3g32", "u4g64", "u3g64a", "u4g128a"};
    enum { K = 700 };
    float x[K], column[3][K], found[3][K];
    uint64_t seed = 9;
    for (int i = 0; i < K; i++) {
        x[i] = random_float(&seed) + random_float(&seed) + random_float(&seed);
        column[0][i] = 1;
        column[1][i] = 8;
        column[2][i] = i % 11 ? 0.01f : 100;
    }
    for (size_t c = 0; c < sizeof names / sizeof *names; c++) {
        pack_format f;
        uint64_t bytes = 0;
        const void *rows[] = {x};
        assert_true(pack_from_name(names[c], K, &f) && pack_bytes(&f, 1, K, &bytes));
        guarded data = guard_open((size_t)bytes), scratch = guard_open(pack_scratch_bytes(&f, K));
        for (int i = 0; i < 3; i++) {
            const pack_from from = {.type = TYPE_F32, .columns = column[i]};
            pack_panel_from(&f, &from, K, 0, 1, rows, data.data, scratch.data);
            pack_read_row(&(view){data.data, f, 1, K}, 0, found[i]);
        }
        assert_memory_equal(found[0], found[1], sizeof found[0]);
        const double plain = column_error(x, found[0], column[2], K);
        const double weighted = column_error(x, found[2], column[2], K);
        if (weighted > 0.7 * plain)
            fail_msg("%s: %.3f of the error without columns", names[c], weighted / plain);
        guard_close(&scratch);
        guard_close(&data);
    }
}

/* A stack is its two slices added up, and the second holds just what the first left over. */
static void test_stack(void **state) {
    (void)state;
    static const char *const names[][2] = {{"u4g64", "u4g64"}, {"u3g32", "u4g128a"}, {"u4g32a", "u2g16"}};
    enum { K = 333 };
    float x[K], first[K], rest[K], second[K];
    uint64_t seed = 4;
    for (int i = 0; i < K; i++)
        x[i] = random_float(&seed) * 3;
    for (size_t c = 0; c < sizeof names / sizeof *names; c++) {
        float *const out[] = {first, second};
        pack_from from = {.type = TYPE_F32};
        for (int slice = 0; slice < 2; slice++) {
            pack_format f;
            uint64_t bytes = 0;
            const void *rows[] = {x};
            assert_true(pack_from_name(names[c][slice], K, &f) && pack_bytes(&f, 1, K, &bytes));
            guarded data = guard_open((size_t)bytes), scratch = guard_open(pack_scratch_bytes(&f, K));
            pack_panel_from(&f, &from, K, 0, 1, rows, data.data, scratch.data);
            pack_read_row(&(view){data.data, f, 1, K}, 0, out[slice]);
            if (slice == 1) { /* as a matrix of those values would be */
                rows[0] = rest;
                pack_panel(&f, TYPE_F32, 1, K, 0, 1, rows, data.data, scratch.data);
                pack_read_row(&(view){data.data, f, 1, K}, 0, rest);
                assert_memory_equal(rest, second, sizeof rest);
            }
            from.over = f;
            for (int i = 0; slice == 0 && i < K; i++)
                rest[i] = x[i] - first[i];
            guard_close(&scratch);
            guard_close(&data);
        }
        double off = 0, base = 0;
        for (int i = 0; i < K; i++) {
            base += fabs((double)x[i] - (double)first[i]);
            off += fabs((double)x[i] - (double)first[i] - (double)second[i]);
        }
        assert_true(off < base / 2);
    }
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
            recipe_slice_name(&r.slice[j], r.by_column, j > 0, slice[j]);
        assert_true(recipe_join(slice[0], slice[1], name));
        assert_string_equal(name, r.n_slice ? good[i] : "");
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (recipe_parse(bad[i], 576, &r))
            fail_msg("%s: taken", bad[i]);
}

/* Integers that a step of one represents come back as they are. */
static void test_rounding_exact(void **state) {
    (void)state;
    static const char *const names[] = {"u2g16",  "u3g32a",  "u4g64",  "u5g128a",
                                        "u6grow", "u7growa", "u8g128", "u4g128p"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        matrix m = matrix_open_uniform(names[i], 20, 300, MATRIX_UNIT, i + 1);
        float row[300];
        for (int r = 0; r < 20; r++) {
            pack_read_row(&m.view, r, row);
            assert_memory_equal(row, m.raw + (size_t)r * m.raw_row_bytes, sizeof row);
        }
        matrix_close(&m);
    }
}

/* A value that is no number poisons its group and no other. */
static void test_rounding_poison(void **state) {
    (void)state;
    static const char *const names[] = {"u4g64", "u4g64a", "u3grow", "u4g64t"};
    for (size_t i = 0; i < 4; i++) {
        pack_format f;
        enum { K = 300 };
        float x[K], out[K];
        uint64_t bytes;
        const void *rows[] = {x};
        for (int j = 0; j < K; j++)
            x[j] = j == 70 ? NAN : (float)(j % 7) - 3;
        assert_true(pack_from_name(names[i], K, &f));
        assert_true(pack_bytes(&f, 1, K, &bytes));
        guarded data = guard_open((size_t)bytes), scratch = guard_open(pack_scratch_bytes(&f, K));
        pack_panel(&f, TYPE_F32, 1, K, 0, 1, rows, data.data, scratch.data);
        pack_read_row(&(view){data.data, f, 1, K}, 0, out);
        for (int j = 0; j < K; j++)
            assert_int_equal(isnan(out[j]), i >= 2 || (j >= 64 && j < 128));
        guard_close(&scratch);
        guard_close(&data);
    }
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
    assert_true(pack_from_name("u8growa", PACK_ROW_MOST, &f));
    assert_false(pack_from_name("u8growa", PACK_ROW_MOST + 1, &f));
    assert_false(pack_from_name("u4g128t", PACK_ROW_MOST + 1, &f));
    assert_true(pack_from_name("u4g128", PACK_ROW_MOST + 1, &f));
    assert_false(pack_from_name("u4g128", 0, &f));
    assert_true(pack_choose(TYPE_Q4_K, 256, &f));
    f.flavour = PACK_PLANES;
    pack_name(&f, name);
    assert_string_equal(name, "q4_k.planes");
}

/* Packs m's rows by one instruction set, at odd addresses, and compares with what plain C makes of them. */
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
                     type_get(m->type)->name, f->flavour, (int)m->n, (int)m->k, (int)i,
                     ((uint8_t *)data.data)[i], expected[i]);
    guard_close(&scratch);
    guard_close(&data);
}

/* Every instruction set gives the same bytes: rows of any bytes at all (scales that are no numbers too), odd
 * shapes, both flavours. */
static void check_everywhere(type_id type, int64_t n, int64_t k, int flavour, uint64_t seed) {
    const int elems = type_get(type)->block_elems;
    matrix m = flavour == PACK_PLANES ? matrix_open_planes(type, n, k, MATRIX_RANDOM, seed)
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
        for (int flavour = PACK_PARTS; flavour <= PACK_PLANES; flavour++)
            for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
                for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
                    if (t->block_elems < 256 || ks[j] <= 3)
                        check_everywhere((type_id)id, ns[i], ks[j] * t->block_elems, flavour, seed++);
    }
}

/* What NIBBLE_ISA leaves of the packers: this program, run again under it, says whether it is `best`. */
static void check_limit(const char *limit, const char *best) {
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        setenv("NIBBLE_ISA", limit, 1);
        execl("/proc/self/exe", "test_quant_pack", best, (char *)NULL);
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

/* Uniform formats share the folding of tiles. */
static void test_instruction_sets_uniform(void **state) {
    (void)state;
    for (int bits = 2; bits <= 8; bits++)
        for (int flavour = 0; flavour < 2; flavour++)
            for (int64_t k = 33; k < 700; k += 111) {
                char name[PACK_NAME];
                snprintf(name, sizeof name, "u%dg64%s", bits, flavour ? "p" : "");
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

/* The parts rule, written down once more in the plainest way: field f of line l is quad l + 2wf. */
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
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_rounding_exact),
        cmocka_unit_test(test_search_gains),
        cmocka_unit_test(test_rounding_poison),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_instruction_sets),
        cmocka_unit_test(test_instruction_sets_uniform),
        cmocka_unit_test(test_limited),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_recipes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
