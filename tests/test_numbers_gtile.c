/* The order that a GPU reads: a permutation of each panel that can be undone, and from which a warp's lanes,
 * modelled here one by one, take the codes that the matrix instruction needs. */
#include "support/fakecuda_gtile.h"
#include "support/matrix.h"

#include "numbers/gtile.h"
#include "numbers/tile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t dword_at(const uint8_t *part, int i) {
    uint32_t u;
    memcpy(&u, part + 4 * i, 4);
    return u;
}

/* Register `a` (0..3) of lane 4g + t for half h of a tile: the field of one part, as the kernels read it. */
static uint32_t lane_register(const uint8_t *part, int width, int g, int t, int h, int a) {
    const int lane = 4 * g + t, row = a & 1, second = a >> 1;
    switch (width) {
    case 8: return dword_at(part, 128 * h + 4 * lane + a);
    case 4: return dword_at(part, 4 * lane + a) >> 4 * h & 0x0f0f0f0fu;
    case 2: return dword_at(part, 2 * lane + row) >> (4 * h + 2 * second) & 0x03030303u;
    default: return dword_at(part, 2 * (2 * g + t % 2) + row) >> (t / 2 + 4 * h + 2 * second) & 0x01010101u;
    }
}

/* Codes as lanes see them against the plain meaning of the Q-tile. */
static void check_lanes(const pack_format *f, const uint8_t *q_tile, const uint8_t *g_tile) {
    for (int lane = 0; lane < 32; lane++)
        for (int h = 0; h < 2; h++)
            for (int a = 0; a < 4; a++) {
                const int g = lane / 4, t = lane % 4, row = g + 8 * (a & 1), quad = 8 * h + t + 4 * (a >> 1);
                uint8_t codes[TILE_K];
                pack_format plain = *f;
                plain.table = PACK_TABLE_NONE;
                tile_read_row_codes(&plain, q_tile, NULL, row, codes);
                uint32_t found = 0, expected = dword_at(codes, quad);
                int64_t at = 0;
                int low = f->bits;
                for (const uint8_t *w = tile_parts(f); low > 0; w++) {
                    low -= *w;
                    found |= lane_register(g_tile + at, *w, g, t, h, a) << low;
                    at += 2 * *w * TILE_LINE;
                }
                if (found != expected)
                    fail_msg("%d bits, lane %d, half %d, register %d: %08x, expected %08x", f->bits, lane, h,
                             a, found, expected);
            }
}

static void check_matrix(const matrix *m) {
    const pack_format *f = &m->view.format;
    const size_t bytes = (size_t)tile_panel_bytes(f, m->k);
    for (int64_t p = 0; p < (m->n + PACK_PANEL - 1) / PACK_PANEL; p++) {
        const uint8_t *panel = (const uint8_t *)m->view.data + (size_t)p * bytes;
        guarded there = guard_open(bytes), back = guard_open(bytes);
        gtile_from_qtile(f, m->k, panel, there.data);
        for (int64_t t = 0; t < tile_count(m->k); t++) {
            const tile_chunk q = tile_chunk_at(f, panel, m->k, t / TILE_CHUNK);
            const int64_t at = t % TILE_CHUNK * tile_code_bytes(f);
            check_lanes(f, q.codes + at, (const uint8_t *)there.data + (q.codes - panel) + at);
        }
        gtile_to_qtile(f, m->k, there.data, back.data);
        assert_memory_equal(back.data, panel, bytes);
        gtile_to_qtile(f, m->k, there.data, there.data); /* in place */
        assert_memory_equal(there.data, panel, bytes);
        gtile_from_qtile(f, m->k, back.data, back.data);
        gtile_to_qtile(f, m->k, back.data, there.data);
        assert_memory_equal(there.data, panel, bytes);
        guard_close(&there);
        guard_close(&back);
    }
}

static const int64_t shapes[][2] = {{1, 1}, {15, 31}, {17, 64}, {16, 65}, {33, 300}, {16, 576}};

static void test_uniform(void **state) {
    (void)state;
    static const char *const ends[] = {"g16", "g32", "g64a", "g128", "grow", "growa", "g32t", "g128p"};
    for (int bits = 2; bits <= 8; bits++)
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
                char name[PACK_NAME];
                pack_format f;
                snprintf(name, sizeof name, "u%d%s", bits, ends[e]);
                if (!pack_from_name(name, shapes[s][1], &f))
                    continue;
                matrix m = matrix_open_uniform(name, shapes[s][0], shapes[s][1], MATRIX_RANDOM, s + 1);
                check_matrix(&m);
                matrix_close(&m);
            }
}

static void test_file_types(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q5_1, TYPE_Q8_0,  TYPE_Q2_K,  TYPE_Q3_K,
                                    TYPE_Q4_K, TYPE_Q6_K, TYPE_MXFP4, TYPE_IQ4_XS};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int n_block = 1; n_block <= 3; n_block++) {
            matrix m = matrix_open(types[i], 17, n_block * type_get(types[i])->block_elems, MATRIX_RANDOM, 7);
            check_matrix(&m);
            matrix_close(&m);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_uniform), cmocka_unit_test(test_file_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
