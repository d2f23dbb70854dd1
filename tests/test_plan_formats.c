/* The choice of formats, activations and layers from literal facts: against every possible decision, with a
 * bound on the loss and with a target speed. */
#include "base/num.h"
#include "support/planfacts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Seconds of a token, of which reading and computing take a part each. */
static double token_seconds(double disk_s, double compute_s) {
    disk_s *= PLAN_BY_HALVES;
    return NUM_MAX(disk_s, compute_s) + PLAN_APART * NUM_MIN(disk_s, compute_s);
}

static double speed_of(const plan *p) {
    return 1 / token_seconds(p->predicted.disk_s, p->predicted.compute_s);
}

/* Every choice of formats for the four layers and the head; residency as the planner does it (bytes that fit
 * stay), since no other of the same size is better. */
static double brute_force(const plan_question *q, double *min_loss) {
    double best = 0;
    int way[FACTS_N] = {0};
    *min_loss = INFINITY;
    for (;;) {
        double compute[2], bytes = 0, loss = 0;
        for (int streamed = 0; streamed < 2; streamed++)
            compute[streamed] = plan_fixed_seconds(q, &q->caches[0], streamed);
        for (int b = 0; b < FACTS_N; b++) {
            const double s = plan_block_seconds(q, b, way[b], 8);
            compute[0] += s;
            compute[1] += s;
            bytes += (double)q->blocks[b].choices[way[b]].bytes;
            loss += q->blocks[b].choices[way[b]].kl;
        }
        const double whole = (double)plan_ram_beside(q, &q->caches[0], false, true, 0) + bytes + 30.0 * MIB;
        const double capacity =
            (double)q->cap[NIB_TIER_RAM] - (double)plan_ram_beside(q, &q->caches[0], true, true, 0);
        const double over = NUM_MAX(bytes - capacity, 0);
        double t = token_seconds(over * plan_disk_seconds(q, true), compute[1]);
        if (whole <= (double)q->cap[NIB_TIER_RAM])
            t = compute[0];
        if (loss <= q->max_loss && (q->speed <= 0 || 1 / t >= q->speed)) {
            best = NUM_MAX(best, 1 / t);
            *min_loss = NUM_MIN(*min_loss, loss);
        }
        int b = 1;
        while (b < FACTS_N && ++way[b] == q->blocks[b].n_choice)
            way[b++] = 0;
        if (b == FACTS_N)
            return best;
    }
}

static void formats_are_the_best(void **state) {
    (void)state;
    static const double losses[] = {0.0, 0.005, 0.02, 0.1};
    for (uint64_t cap = 30 * MIB; cap < 340 * MIB; cap += 9 * MIB)
        for (size_t i = 0; i < NUM_COUNT(losses); i++) {
            facts f;
            double min;
            facts_make(&f);
            facts_measured(&f);
            f.q.cap[NIB_TIER_RAM] = cap;
            f.q.max_loss = losses[i];
            f.q.may_round = true;
            plan p = facts_plan(&f.q);
            facts_check(&f.q, &p);
            const double want = brute_force(&f.q, &min);
            /* the planner keeps multiples of 4096 */
            if (fabs(speed_of(&p) - want) > 2e-4 * want)
                fail_msg("cap %llu, loss %g: %.8g tok/s instead of %.8g", (unsigned long long)cap, losses[i],
                         speed_of(&p), want);
            plan_clear(&p);
        }
}

static void quality_for_a_speed(void **state) {
    (void)state;
    facts f;
    facts_make(&f);
    facts_measured(&f);
    f.q.cap[NIB_TIER_RAM] = 150 * MIB;
    f.q.may_round = true;
    f.q.max_loss = 1;
    for (double speed = 5; speed < 16; speed += 0.7) {
        double min;
        f.q.speed = speed;
        nib_error err = {NIB_OK, ""};
        plan p;
        if (brute_force(&f.q, &min) <= 0) {
            assert_int_equal(plan_make(&f.q, &p, &err), NIB_E_NOFIT);
            assert_non_null(strstr(err.message, "tokens a second"));
            continue;
        }
        p = facts_plan(&f.q);
        assert_true(speed_of(&p) >= speed * (1 - 2e-4));
        assert_true(p.predicted.quality <= min + 1e-9);
        plan_clear(&p);
    }
}

static void modes(void **state) {
    (void)state;
    facts f;
    facts_make(&f);
    facts_measured(&f);
    f.q.cap[NIB_TIER_RAM] = 150 * MIB;
    f.q.may_round = true;
    f.q.max_loss = 0.1;
    plan a = facts_plan(&f.q);
    for (int b = 1; b < FACTS_N - 1; b++) {
        f.blocks[b].kl_left_out = 0.034 - 0.001 * b; /* the last layers first, whatever their score */
        f.blocks[b].importance = 0.2 * b;
    }
    f.q.mode = 'b';
    plan b = facts_plan(&f.q);
    facts_check(&f.q, &b);
    assert_true(b.blocks[4].left_out && b.blocks[3].left_out && b.blocks[2].left_out);
    assert_false(b.blocks[1].left_out);
    for (int i = 0; i < FACTS_N; i++)
        for (int s = 0; s < b.blocks[i].n_slice; s++)
            assert_string_equal(b.blocks[i].slices[s].format, "file");
    f.q.mode = 'c';
    plan c = facts_plan(&f.q);
    facts_check(&f.q, &c);
    assert_true(c.predicted.tok_s >= b.predicted.tok_s);
    plan_clear(&a);
    plan_clear(&b);
    plan_clear(&c);
}

static void activations(void **state) {
    (void)state;
    facts f;
    facts_make(&f);
    for (int b = 1; b < FACTS_N - 1; b++)
        f.blocks[b].importance = 0.3 * (b - 1); /* 0, 0.3, 0.6, 0.9 */
    plan p = facts_plan(&f.q);
    for (int b = 0; b < FACTS_N; b++)
        assert_int_equal(p.blocks[b].activation, b == 4 ? 16 : 8);
    plan_clear(&p);
    for (int b = 0; b < FACTS_N; b++) /* with measured costs these decide, not the score */
        f.blocks[b].kl_a8 = b == 2 ? 0.01 : 0.00001;
    p = facts_plan(&f.q);
    facts_check(&f.q, &p);
    for (int b = 1; b < FACTS_N; b++)
        assert_int_equal(p.blocks[b].activation, b == 2 ? 16 : 8);
    plan_clear(&p);
    f.q.activation = 16;
    p = facts_plan(&f.q);
    assert_int_equal(p.blocks[0].activation, 16);
    plan_clear(&p);
}

static void qualities(void **state) {
    (void)state;
    double loss, last = 0;
    bool round;
    static const char *const names[] = {"lossless", "high", "balanced", "small"};
    for (int i = 0; i < 4; i++) {
        assert_true(plan_quality(names[i], &loss, &round));
        assert_true(loss > last && round == (i > 0));
        last = loss;
    }
    assert_false(plan_quality("best", &loss, &round));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_are_the_best),
        cmocka_unit_test(quality_for_a_speed),
        cmocka_unit_test(modes),
        cmocka_unit_test(activations),
        cmocka_unit_test(qualities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
