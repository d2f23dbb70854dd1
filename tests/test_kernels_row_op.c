/* Ops on whole rows, and entries of compressed attention, against their formulas. */
#include "base/num.h"
#include "kernels/entries.h"
#include "kernels/kv_layout.h"
#include "kernels/row_op.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { D = 70, N = 3 };

static void fill(float *x, int n, int seed) {
    for (int i = 0; i < n; i++)
        x[i] = sinf((float)(i * 7 + seed));
}

static void run(const op *o, const float *in, const float *in2, const float *w, float *out) {
    row_op(kernels_table(), o, &(row_args){.in = in, .in2 = in2, .out = out, .w = w});
}

/* In place, transposed factors, and added to what is there. */
static void parts_are_mixed(void **state) {
    (void)state;
    float x[N * D], was[N * D], f[2 + N * N];
    fill(f, 2 + N * N, 1);
    for (int adds = 0; adds < 2; adds++) {
        fill(x, N * D, 2);
        fill(was, N * D, 2);
        const op o = {.kind = OP_MIX,
                      .n = N * D,
                      .k = N * D,
                      .adds = adds,
                      .u.mix = {.n_out = N,
                                .n_in = N,
                                .d = D,
                                .at = 2,
                                .step_out = 1,
                                .step_in = N,
                                .width = 2 + N * N,
                                .plus = 0.5f}};
        run(&o, x, f, NULL, x);
        for (int i = 0; i < N; i++)
            for (int c = 0; c < D; c++) {
                double sum = adds ? (double)was[i * D + c] : 0;
                for (int j = 0; j < N; j++)
                    sum += (0.5 + (double)f[2 + j * N + i]) * (double)was[j * D + c];
                assert_true(fabs(sum - (double)x[i * D + c]) < 1e-5);
            }
    }
}

static void a_part_is_added_to_some(void **state) {
    (void)state;
    float x[N * D], was[N * D], y[D];
    fill(x, N * D, 3);
    fill(was, N * D, 3);
    fill(y, D, 4);
    const op o = {.kind = OP_MIX,
                  .n = N * D,
                  .k = D,
                  .adds = true,
                  .u.mix = {.n_out = N - 1, .n_in = 1, .d = D, .first = 1, .plus = 1}};
    run(&o, y, NULL, NULL, x);
    for (int i = 0; i < N * D; i++)
        assert_true(x[i] == (i < D ? was[i] : was[i] + y[i % D]));
}

static double mean_square(const float *x) {
    double sum = 0;
    for (int i = 0; i < D; i++)
        sum += (double)x[i] * (double)x[i];
    return sum / D;
}

static void groups_get_a_magnitude(void **state) {
    (void)state;
    float x[N * D], as[D];
    fill(x, N * D, 5);
    fill(as, D, 6);
    for (int i = 0; i < D; i++)
        x[i] *= 1e-6f; /* below the least magnitude */
    const op o = {
        .kind = OP_LIKE, .n = N * D, .k = N * D, .u.num = {.value = 1e-5f, .every = N, .offset = D}};
    const double small = mean_square(x);
    run(&o, x, as, NULL, x);
    assert_true(fabs(mean_square(x) / (mean_square(as) * small / 1e-5) - 1) < 1e-5);
    for (int g = 1; g < N; g++)
        assert_true(fabs(mean_square(x + g * D) / mean_square(as) - 1) < 1e-5);
}

static void gates_are_shared(void **state) {
    (void)state;
    float x[N * D], g[N], was[N * D];
    fill(x, N * D, 7);
    fill(was, N * D, 7);
    fill(g, N, 8);
    run(&(op){.kind = OP_SHARE, .n = N * D, .k = N}, g, x, NULL, x);
    for (int i = 0; i < N * D; i++)
        assert_true(x[i] == was[i] * g[i / D]);
}

static void few_values_remain(void **state) {
    (void)state;
    float x[D], out[D];
    double mean = 0, squares = 0;
    fill(x, D, 9);
    for (int i = 0; i < D; i++)
        mean += (double)x[i] / D;
    for (int i = 0; i < D; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean) / D;
    run(&(op){.kind = OP_SPARSIFY, .n = D, .k = D, .u.num.value = 0.5f}, x, NULL, NULL, out);
    for (int i = 0; i < D; i++)
        assert_true(fabs(fmax(0, (double)x[i] - mean - 0.5 * sqrt(squares)) - (double)out[i]) < 1e-6);
    const float far[] = {-100, -1, 0, 1, 19, 100};
    run(&(op){.kind = OP_SOFTPLUS, .n = 6, .k = 6}, far, NULL, NULL, out);
    for (int i = 0; i < 6; i++)
        assert_true(fabs((double)out[i] - (double)(far[i] > 30 ? far[i] : log1pf(expf(far[i])))) < 1e-5);
}

/* Between streams the factors are those of a matrix whose rows and columns have the sum 1. */
static void streams_are_connected(void **state) {
    (void)state;
    float in[N * (N + 2)], base[N * (N + 2)], out[N * (N + 2)];
    const float scale[] = {0.5f, 2, 3};
    fill(in, N * (N + 2), 1);
    fill(base, N * (N + 2), 2);
    op o = {.kind = OP_CONNECT, .n = N * (N + 2), .k = N * (N + 2)};
    o.u.num.offset = N;
    o.u.num.every = 40;
    o.u.num.value = 1e-6f;
    row_op(kernels_table(), &o, &(row_args){.in = in, .out = out, .w = scale, .b = base});
    for (int i = 0; i < N; i++) {
        float row = 0, column = 0;
        for (int j = 0; j < N; j++) {
            row += out[2 * N + i * N + j];
            column += out[2 * N + j * N + i];
        }
        assert_true(fabsf(row - 1) < 1e-3f && fabsf(column - 1) < 1e-3f);
        assert_true(fabsf(out[i] - 1 / (1 + expf(-in[i] / 2 - base[i]))) < 1e-5f);
        assert_true(fabsf(out[N + i] - 2 / (1 + expf(-2 * in[N + i] - base[N + i]))) < 1e-5f);
    }
}

enum { WIDE = 5, INDEX = 3, LAST = 700, PAGES = LAST / KV_BLOCK + 1 };

/* Entry e: the sum of its positions, and of the ones before it if entries overlap, by their softmax. */
static double entry_of(const float *x, const float *gate, const float *bias, int64_t k, int64_t every,
                       int64_t e, int64_t c) {
    double sum = 0, weight = 0;
    const int64_t own = k - WIDE;
    for (int64_t p = (own ? NUM_MAX(e - 1, 0) : e) * every; p < (e + 1) * every; p++) {
        const int64_t at = p < e * every ? c : own + c;
        const double w = exp((double)(gate[p * k + at] + bias[p % every * k + at]));
        weight += w;
        sum += w * (double)x[p * k + at];
    }
    return sum / weight;
}

/* The pages of a cache with entries only, and as many bytes as it says. */
static kv_view open_entries(type_id type, int64_t every, uint8_t **pages, uint8_t *memory) {
    const uint64_t entries = entries_page_bytes(type, every, WIDE, KV_BLOCK);
    const uint64_t each = entries + entries_page_bytes(type, every, INDEX, KV_BLOCK);
    for (int i = 0; i < PAGES; i++)
        pages[i] = memory + (uint64_t)i * each;
    return (kv_view){.pages = pages,
                     .type = type,
                     .n_kv_head = 1,
                     .d_head = WIDE,
                     .entry_pages = pages,
                     .index_at = (int64_t)entries,
                     .every = every,
                     .d_index = INDEX};
}

/* The entries that a row chooses are those of the largest scores, and these are what was pooled. */
static void check_chosen(const kv_view *kv, const float *keys, const float *want, int64_t position) {
    static _Alignas(64) float page[KV_BLOCK * WIDE];
    float q[2 * INDEX], w[] = {1, -0.5f}, scratch[16 + INDEX], chosen[17], row[WIDE];
    op o = {.kind = OP_SELECT, .n = 17};
    o.u.select.n_head = 2;
    o.u.select.d_head = INDEX;
    o.u.select.n_used = 16;
    o.u.select.scale = 0.5f;
    fill(q, 2 * INDEX, (int)position);
    entries_select(kv, &o, position, q, w, scratch, chosen);
    const int64_t n = entries_seen(kv, position), used = NUM_MIN(n, 16);
    double score[LAST], least = INFINITY;
    assert_true(chosen[0] == (float)used);
    for (int64_t e = 0; e < n; e++) {
        score[e] = 0;
        for (int h = 0; h < 2; h++) {
            double s = 0;
            for (int i = 0; i < INDEX; i++)
                s += (double)q[h * INDEX + i] * (double)keys[e * INDEX + i];
            score[e] += (double)w[h] * fmax(s, 0);
        }
    }
    for (int64_t i = 0; i < used; i++)
        least = fmin(least, score[(int64_t)chosen[1 + i]]);
    int64_t above = 0;
    for (int64_t e = 0; e < n; e++)
        above += score[e] > least + 1e-2;
    assert_true(above <= used);
    uint8_t *pages[] = {(uint8_t *)page};
    const kv_view to = {.pages = pages, .type = TYPE_F32, .n_kv_head = 1, .d_head = WIDE};
    entries_gather(kernels_table(), kv, chosen, 0, used, row, &to);
    for (int64_t i = 0; i < used; i++)
        for (int64_t c = 0; c < WIDE; c++) {
            const float found = page[kv_key_at(WIDE, i, c)];
            assert_true(i == 0 || chosen[1 + i] > chosen[i]);
            assert_true(fabsf(found - want[(int64_t)chosen[1 + i] * WIDE + c]) < 2e-3f);
        }
}

static void entries_stand_for_positions(void **state) {
    (void)state;
    static float x[LAST * 2 * WIDE], gate[LAST * 2 * WIDE], bias[2 * KV_BLOCK * 2 * WIDE], out[LAST * WIDE];
    static float keys[LAST * INDEX], want[LAST * WIDE];
    static uint8_t memory[PAGES * KV_BLOCK * (WIDE + INDEX) * 4];
    static const int64_t every[] = {2, 4, 64, 128};
    fill(x, LAST * 2 * WIDE, 1);
    fill(gate, LAST * 2 * WIDE, 2);
    fill(bias, 2 * KV_BLOCK * 2 * WIDE, 3);
    for (int i = 0; i < 16; i++) {
        const int64_t m = every[i % 4], k = i / 4 % 2 ? 2 * WIDE : WIDE;
        uint8_t *pages[PAGES];
        const kv_view kv = open_entries(i / 8 ? TYPE_F16 : TYPE_F32, m, pages, memory);
        float states[6 * WIDE];
        pool_args a = {
            .x = x, .gate = gate, .bias = bias, .out = out, .n = WIDE, .k = k, .every = m, .state = states};
        for (int64_t n; a.position < LAST; a.position += n) { /* in pieces */
            a.n_row = n = NUM_MIN(1 + a.position % 90, LAST - a.position);
            a.x = x + a.position * k;
            a.gate = gate + a.position * k;
            a.out = out + a.position * WIDE;
            entries_pool(&a, 0, 2);
            entries_pool(&a, 2, WIDE);
        }
        for (int64_t p = 0; p < LAST; p++) {
            const int64_t e = p / m;
            fill(keys + e * INDEX, INDEX, (int)e);
            entries_store(&kv, false, p, out + p * WIDE);
            entries_store(&kv, true, p, keys + e * INDEX);
            for (int64_t c = 0; c < WIDE; c++) {
                const bool ends = (p + 1) % m == 0;
                want[e * WIDE + c] = ends ? (float)entry_of(x, gate, bias, k, m, e, c) : 0;
                assert_true(fabsf(out[p * WIDE + c] - want[e * WIDE + c]) < 1e-4f);
            }
            if (p % 50 == 49 || p == LAST - 1)
                check_chosen(&kv, keys, want, p);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_mixed),
        cmocka_unit_test(a_part_is_added_to_some),
        cmocka_unit_test(groups_get_a_magnitude),
        cmocka_unit_test(gates_are_shared),
        cmocka_unit_test(few_values_remain),
        cmocka_unit_test(streams_are_connected),
        cmocka_unit_test(entries_stand_for_positions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
