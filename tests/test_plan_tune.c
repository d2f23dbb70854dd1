/* QDEC's tuner: viable numbers of blocks as in the paper's appendix, and channels for a target, on times that
 * are made up. */
#include "base/num.h"
#include "plan/tune.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Llama-3-8B. */
static const tune_kind kinds[] = {
    {"qkv", 4096, 6144}, {"o", 4096, 4096}, {"gate+up", 4096, 28672}, {"down", 14336, 4096}};
enum { N_KIND = NUM_COUNT(kinds) };

static void viable(void **state) {
    (void)state;
    static const int qkv[] = {1, 2, 3, 4, 5, 6, 8, 12, 24}, o[] = {1, 2, 3, 4, 6, 8, 16},
                     down[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16};
    const struct {
        const tune_kind *kind;
        const int *all;
        size_t n;
    } cases[] = {
        {&kinds[0], qkv, NUM_COUNT(qkv)}, {&kinds[1], o, NUM_COUNT(o)}, {&kinds[3], down, NUM_COUNT(down)}};
    for (size_t c = 0; c < NUM_COUNT(cases); c++)
        for (int n = 0, at = 0; n <= 128; n++) {
            const bool is = (size_t)at < cases[c].n && cases[c].all[at] == n;
            assert_int_equal(tune_is_viable(cases[c].kind, n), is);
            at += is;
        }
    assert_int_equal(tune_blocks(&kinds[0], 24), 24);
    assert_int_equal(tune_blocks(&kinds[0], 23), 12);
    assert_int_equal(tune_blocks(&kinds[1], 24), 16);
    assert_int_equal(tune_blocks(&kinds[2], 24), 23); /* the paper's (24, 16, 23, 14 or 16) */
}

/* Hidden behind the product up to a knee, then a line; more blocks fetch faster up to 8, and slow the
 * product. */
typedef struct machine {
    double product[N_KIND], each; /* seconds; of a channel fetched by one block */
    int asked;
    int64_t last[N_KIND];
    double told;
} machine;

static nib_status time_of(void *user, int kind, int64_t k, int n_tb, double *seconds, nib_error *err) {
    machine *m = user;
    const double fetch = 2 + (double)k * m->each / NUM_MIN(n_tb, 8), slow = k ? 1 + 0.001 * n_tb : 1;
    (void)err;
    m->asked++;
    *seconds = NUM_MAX(m->product[kind] * slow, k ? fetch : 0);
    return NIB_OK;
}

static void step(void *user, int kind, int64_t k, double seconds) {
    machine *m = user;
    assert_true(k == m->last[kind] + 1 || m->last[kind] == 0);
    m->last[kind] = k;
    m->told = seconds;
}

static void targets(void **state) {
    (void)state;
    static const double all[] = {0.025, 0.05, 0.1, 0.2};
    int64_t before = 0;
    for (size_t i = 0; i < NUM_COUNT(all); i++) {
        machine m = {.product = {10, 7, 40, 20}, .each = 2};
        tune_ask ask = {kinds, N_KIND, 66, 200, all[i], time_of, step, &m};
        tuned t;
        int64_t sum = 0;
        double seconds = 0, one;
        assert_int_equal(tune(&ask, &t, NULL), NIB_OK);
        assert_true(t.base == 77 && t.seconds <= t.base * (1 + all[i]));
        for (int k = 0; k < N_KIND; k++) {
            assert_true(tune_is_viable(&kinds[k], t.n_tb[k]) && t.n_tb[k] <= t.max_blocks);
            time_of(&m, k, t.k_chunk[k], t.n_tb[k], &one, NULL);
            seconds += one;
            sum += t.k_chunk[k];
        }
        assert_true(seconds > t.seconds - 1e-4 && seconds < t.seconds + 1e-4);
        assert_true(sum > before);         /* more is allowed, more is got */
        for (int k = 0; k < N_KIND; k++) { /* nothing more fits */
            double more;
            time_of(&m, k, t.k_chunk[k], t.n_tb[k], &one, NULL);
            time_of(&m, k, t.k_chunk[k] + 1, t.n_tb[k], &more, NULL);
            assert_true(t.seconds - one + more > t.base * (1 + all[i]) - 1e-4);
        }
        before = sum;
    }
}

/* Fetching costs more than the small products take: the large ones alone get any, or none does. */
static void too_small(void **state) {
    (void)state;
    machine m = {.product = {1.5, 1, 40, 20}, .each = 2};
    tune_ask ask = {kinds, N_KIND, 66, 200, 0.01, time_of, NULL, &m};
    tuned t;
    assert_int_equal(tune(&ask, &t, NULL), NIB_OK);
    assert_true(t.k_chunk[0] == 0 && t.k_chunk[1] == 0 && t.k_chunk[2] > 0 && t.k_chunk[3] > 0);
    m = (machine){.product = {1, 1, 1, 1}, .each = 2};
    assert_int_equal(tune(&ask, &t, NULL), NIB_OK);
    for (int k = 0; k < N_KIND; k++)
        assert_int_equal(t.k_chunk[k], 0);
    assert_true(t.seconds == t.base);
    ask.max_blocks = TUNE_MAX_BLOCKS + 1;
    assert_int_equal(tune(&ask, &t, NULL), NIB_E_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(viable), cmocka_unit_test(targets),
                                       cmocka_unit_test(too_small)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
