/* Rounding floats to uniform formats gives the same bytes on every instruction set, for all values: ordinary
 * ones, both zeros, denormals, infinities and NaNs, groups of equal values. */
#include "base/num.h"
#include "numbers/pack_isa.h"
#include "support/matrix.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = PACK_PANEL, N_KIND = 9 };

static float value_of(int kind, int64_t i, uint64_t *s) {
    const float x = random_float(s), size = i / 16 % 3 ? 0.03f : 0.4f;
    const int draw = (int)(random_next(s) >> 40) % 100;
    switch (kind) {
    case 0: return x * size;
    case 1: return draw < 50 ? 0.0f : -0.0f;
    case 2: return draw < 90 ? (draw % 2 ? 0.0f : -0.0f) : x;
    case 3: return x * 1e-38f;
    case 4: return ldexpf(x, draw - 50);
    case 5: return draw ? x : draw % 2 ? NAN : INFINITY;
    case 6: return i / 128 % 2 ? 0.25f : -3;
    case 7: return fabsf(x);
    default: return draw < 5 ? 40 * x : 0.01f * x; /* outliers */
    }
}

/* Row r of k values of the type. */
static void fill_row(type_id type, int kind, int64_t k, uint8_t *row, uint64_t *s) {
    const type_info *info = type_get(type);
    for (int64_t i = 0; i < k; i++) {
        const float x = value_of(kind, i, s);
        if (type == TYPE_F16 && kind == N_KIND - 2) { /* any bits there are */
            const uint16_t h = (uint16_t)(random_next(s) >> 33);
            memcpy(row + 2 * i, &h, 2);
        } else {
            info->quantize(&x, row + i * info->block_bytes, 1);
        }
    }
}

static void check(const pack_format *f, pack_from from, int64_t k, int kind, uint64_t seed) {
    uint64_t bytes = 0, row_bytes = 0;
    guarded raw[ROWS];
    const void *rows[ROWS];
    assert_true(pack_bytes(f, ROWS, k, &bytes) && type_row_bytes(from.type, k, &row_bytes));
    for (int r = 0; r < ROWS; r++) {
        raw[r] = guard_open((size_t)row_bytes);
        fill_row(from.type, (kind + r / 6) % N_KIND, k, raw[r].data, &seed);
        rows[r] = raw[r].data;
    }
    uint8_t *expected = calloc(1, (size_t)bytes), *found = calloc(1, (size_t)bytes);
    void *scratch = malloc(pack_scratch_bytes(f, k));
    for (int i = 0; pack_isa_at(i); i++) {
        char name[PACK_NAME];
        pack_panel_by(pack_isa_at(i), f, &from, k, 0, ROWS, rows, i ? found : expected, scratch);
        pack_name(f, name);
        for (uint64_t at = 0; at < bytes && i; at++)
            if (found[at] != expected[at])
                fail_msg("%s, %s from %s, K %d, kind %d: byte %d is %d, expected %d", pack_isa_at(i)->name,
                         name, type_get(from.type)->name, (int)k, kind, (int)at, found[at], expected[at]);
    }
    free(scratch);
    free(found);
    free(expected);
    for (int r = 0; r < ROWS; r++)
        guard_close(&raw[r]);
}

static void test_same_bytes(void **state) {
    (void)state;
    static const int groups[] = {16, 32, 64, 128, PACK_GROUP_ROW};
    static const type_id types[] = {TYPE_F16, TYPE_BF16, TYPE_F32};
    static const int64_t ks[] = {1, 7, 40, 100, 256, 300, 530};
    uint64_t seed = 3;
    int turn = 0;
    float columns[530];
    for (int i = 0; i < 530; i++)
        columns[i] = fabsf(random_float(&seed)) * (float)(i % 5);
    for (int bits = 2, round = 0; round < 5; bits = bits < 8 ? bits + 1 : (round++, 2))
        for (int g = 0; g < 5; g++)
            for (int form = 0; form < 3; form++)
                for (int kind = 0; kind < N_KIND; kind++, turn++) {
                    const int64_t k = ks[turn % 7];
                    pack_format f;
                    pack_from from = {.type = types[turn % 3], .imatrix = turn % 4 ? NULL : columns};
                    if (!pack_uniform(bits, groups[g], form == 1, form == 2, k, &f))
                        continue;
                    if (turn % 5 == 0)
                        pack_uniform(2 + turn % 3, 64, turn % 2, false, k, &from.over);
                    check(&f, from, k, kind, (uint64_t)turn + 1);
                }
}

static void test_halves(void **state) {
    (void)state;
    uint16_t all[1 << 16];
    static float expected[1 << 16], found[1 << 16];
    for (int i = 0; i < 1 << 16; i++)
        all[i] = (uint16_t)i;
    pack_rounder_plain.f16_values(all, expected, 1 << 16);
    for (int i = 0; pack_isa_at(i); i++)
        for (int64_t n = 65530; n <= 65536; n += 6) {
            pack_isa_at(i)->round->f16_values(all, found, n);
            assert_memory_equal(found, expected, (size_t)n * sizeof *found);
        }
}

/* Every half, and floats next to the middle of two halves, as halves. */
static void test_to_halves(void **state) {
    (void)state;
    enum { N = 3 << 16 };
    static float x[N];
    static uint16_t expected[N], found[N];
    for (int i = 0; i < N; i++) {
        const uint32_t h = (uint32_t)i / 3, step = (uint32_t)i % 3;
        x[i] = half_to_float((uint16_t)h);
        x[i] = step && isfinite(x[i]) ? x[i] * (1 + 0x1p-11f * (float)(2 * (int)step - 3) * 0.999f) : x[i];
    }
    pack_rounder_plain.f16_write(x, expected, N);
    assert_int_equal(expected[3 * 0x3c00], 0x3c00);
    for (int i = 0; pack_isa_at(i); i++)
        for (int64_t n = N - 6; n <= N; n += 6) {
            pack_isa_at(i)->round->f16_write(x, found, n);
            assert_memory_equal(found, expected, (size_t)n * sizeof *found);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_halves), cmocka_unit_test(test_to_halves),
                                       cmocka_unit_test(test_same_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
