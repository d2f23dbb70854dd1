/* QDEC's tuner: viable numbers of blocks as in the paper's appendix, and channels for a target, on made-up
 * times. */
#include "base/num.h"
#include "plan/tune.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Llama-3-8B. */
static const tune_kind kinds[] = {{4096, 6144}, {4096, 4096}, {4096, 28672}, {14336, 4096}};
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
 * product. The time of a fetch beyond its product delays the next product too, so times of single kinds do
 * not add up. */
typedef struct machine {
    double product[N_KIND], each; /* seconds; of a channel fetched by one block */
    double noise;                 /* times are up to so much longer */
    double later; /* with residuals so much longer, once no residuals were measured for the third time */
    int asked, plain;
    int64_t all; /* channels of the last choice that was reported */
} machine;

static double chain(const machine *m, const tune_choice *c) {
    double sum = 0;
    for (int i = 0; i < N_KIND; i++) {
        const int64_t k = c->k_chunk[i];
        const double fetch = 2 + (double)k * m->each / NUM_MIN(c->n_tb[i], 8),
                     product = m->product[i] * (k ? 1 + 0.001 * c->n_tb[i] : 1);
        sum += product;
        if (k && fetch > product)
            sum += 1.5 * (fetch - product);
    }
    return sum;
}

static nib_status time_of(void *user, const tune_choice *c, double *seconds, nib_error *err) {
    machine *m = user;
    bool any = false;
    (void)err;
    for (int i = 0; i < N_KIND; i++)
        any |= c->k_chunk[i] > 0;
    m->asked++;
    *seconds = chain(m, c) * (1 + m->noise * (m->asked * 7 % 10) / 10);
    m->plain += !any;
    if (any && m->plain > 2)
        *seconds *= 1 + m->later;
    return NIB_OK;
}

static void step(void *user, const tune_choice *c, double seconds, double base) {
    machine *m = user;
    assert_true(seconds >= base);
    m->all = 0;
    for (int i = 0; i < N_KIND; i++)
        m->all += c->k_chunk[i];
}

static int64_t channels(const tuned *t) {
    int64_t sum = 0;
    for (int k = 0; k < N_KIND; k++)
        sum += t->choice.k_chunk[k];
    return sum;
}

static void targets(void **state) {
    (void)state;
    static const double all[] = {0.025, 0.05, 0.1, 0.2, 1};
    int64_t before = 0;
    for (size_t i = 0; i < NUM_COUNT(all); i++) {
        machine m = {.product = {10, 7, 40, 20}, .each = 2};
        const tune_problem problem = {kinds, N_KIND, 66, 200, all[i], time_of, step, &m};
        tuned t;
        assert_int_equal(tune(&problem, &t, NULL), NIB_OK);
        assert_true(t.base == 77 && t.seconds == chain(&m, &t.choice) && t.n_timed == m.asked);
        assert_true(t.seconds <= t.base * (1 + all[i]));
        assert_true(m.asked < 500 && m.all == channels(&t));
        for (int k = 0; k < N_KIND; k++) { /* at most a tenth of the target is left, or nothing more fits */
            tune_choice more = t.choice;
            assert_true(tune_is_viable(&kinds[k], t.choice.n_tb[k]) &&
                        t.choice.n_tb[k] <= problem.max_blocks);
            more.k_chunk[k]++;
            assert_true(t.seconds >= t.base * (1 + 0.9 * all[i]) ||
                        chain(&m, &more) > t.base * (1 + 0.93 * all[i]));
        }
        assert_true(channels(&t) > before); /* a larger target gets more channels */
        before = channels(&t);
    }
}

/* Times are noisy, or longer when the choice is measured again: the promise is the time that is measured
 * then. */
static void promise(void **state) {
    (void)state;
    static const double all[] = {0.025, 0.05, 0.1, 0.2};
    for (size_t i = 0; i < NUM_COUNT(all); i++)
        for (int kind = 0; kind < 2; kind++) {
            machine m = {.product = {10, 7, 40, 20}, .each = 2, .noise = 0.01};
            m.later = kind ? 0.03 : 0;
            const tune_problem problem = {kinds, N_KIND, 66, 200, all[i], time_of, NULL, &m};
            tuned t;
            assert_int_equal(tune(&problem, &t, NULL), NIB_OK);
            assert_true(t.seconds <= t.base * (1 + all[i]));
            assert_true(kind || channels(&t) > 0);
            assert_true(channels(&t) == 0 || chain(&m, &t.choice) * (1 + m.later) <= 77 * (1.02 + all[i]));
        }
}

/* Fetching costs more than the small products take: the large ones alone get any, or none does. */
static void too_small(void **state) {
    (void)state;
    machine m = {.product = {1.5, 1, 40, 20}, .each = 2};
    tune_problem problem = {kinds, N_KIND, 66, 200, 0.01, time_of, NULL, &m};
    tuned t;
    assert_int_equal(tune(&problem, &t, NULL), NIB_OK);
    assert_true(t.choice.k_chunk[0] == 0 && t.choice.k_chunk[1] == 0 && t.choice.k_chunk[2] > 0 &&
                t.choice.k_chunk[3] > 0);
    m = (machine){.product = {1, 1, 1, 1}, .each = 2};
    assert_int_equal(tune(&problem, &t, NULL), NIB_OK);
    assert_true(channels(&t) == 0 && t.seconds == t.base);
    problem.max_blocks = TUNE_MAX_BLOCKS + 1;
    assert_int_equal(tune(&problem, &t, NULL), NIB_E_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(viable), cmocka_unit_test(targets),
                                       cmocka_unit_test(promise), cmocka_unit_test(too_small)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
