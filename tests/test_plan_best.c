/* A decision against every other one, by the exact prediction: formats, activations, resident or streamed,
 * from a packed file or the model's. None is as fast and better, none is faster by more than the planner's
 * tolerance; of those that have a requested speed none loses less. */
#include "support/planfacts.h"
#include "support/sanitized.h"

#include "base/num.h"
#include "plan/homes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* How many questions: of each, every decision is predicted. */
enum { N_ANY = SANITIZED ? 24 : 150, N_SPEED = SANITIZED ? 16 : 100 };

static uint32_t state = 1;

static int random_to(int n) {
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 8) % (uint32_t)n);
}

typedef struct others {
    const plan_question *q;
    plan_decision d;
    double time, loss; /* of the planner's decision */
    int n_dominate;    /* as fast, and better */
    double min_time;
    double min_loss; /* of those as fast as requested */
} others;

/* Makes as much resident as the caps hold. False: the decision does not keep them. */
static bool place(const plan_question *q, plan_decision *d) {
    uint64_t bytes[FACTS_N], all = 0;
    bool rounded = false;
    for (int b = 0; b < FACTS_N; b++) {
        const plan_choice *c = &q->blocks[b].choices[d->choice[b]];
        rounded = rounded || d->choice[b] > 0;
        bytes[b] = c->bytes;
        all += c->bytes + c->table_bytes;
    }
    const uint64_t cap = q->cap[NIB_TIER_RAM];
    const uint64_t beside = plan_ram_beside(q, &q->caches[0], d->streamed, d->packed, 0);
    if (beside > cap || (d->streamed && ((rounded && !d->packed) || cap == NIB_AUTO)))
        return false;
    memcpy(d->kept, bytes, sizeof bytes);
    if (d->streamed)
        homes_share(bytes, FACTS_N, cap - beside, d->kept);
    return d->streamed || all <= cap - beside;
}

static void look_at(others *o) {
    const plan_question *q = o->q;
    plan_prediction p;
    const char *binds;
    for (int i = 0; i < 3; i++) {
        o->d.streamed = i > 0;
        o->d.packed = q->packed && i < 2;
        o->d.cache = &q->caches[0];
        if ((i == 2 && !q->packed) || !place(q, &o->d))
            continue;
        plan_predict(q, &o->d, &p, &binds);
        if (p.quality > q->max_loss)
            continue;
        const double time = plan_run_seconds(q, &p);
        o->min_time = NUM_MIN(o->min_time, time);
        o->n_dominate += time <= o->time * (1 + 1e-9) && p.quality < o->loss - 1e-9;
        if (p.tok_s >= q->speed)
            o->min_loss = NUM_MIN(o->min_loss, p.quality);
    }
}

static void look_at_all(others *o, int b) {
    if (b == FACTS_N) {
        look_at(o);
        return;
    }
    for (int c = 0; c < o->q->blocks[b].n_choice; c++)
        for (int bits = 8; bits <= (o->q->blocks[b].kl_a8 < 0 ? 8 : 16); bits += 8) {
            o->d.choice[b] = c;
            o->d.activation[b] = bits;
            look_at_all(o, b + 1);
        }
}

static void make(facts *f) {
    facts_make(f);
    for (int b = 1; b < FACTS_N; b++) {
        facts_add_choice(&f->blocks[b], "u6g64", 6, 47 * MIB, 0.0001 * (1 + random_to(20)));
        facts_add_choice(&f->blocks[b], "u4g64", 4, 32 * MIB, 0.001 * (1 + random_to(20)));
        f->blocks[b].kl_a8 = 0.0001 * random_to(30);
    }
    plan_rates *r = &f->q.rates;
    f->q.cap[NIB_TIER_RAM] = random_to(4) ? (uint64_t)(40 + random_to(400)) * MIB : NIB_AUTO;
    f->q.max_loss = random_to(2) ? 0.1 : 0.02;
    f->q.packed = random_to(3) > 0;
    f->q.may_round = true;
    f->q.n_prompt = 1 + random_to(512); /* one pass */
    f->q.n_gen = 1 + random_to(300);
    r->pack = random_to(5) ? 2e9 : 3e8;
    r->two_slices = 1 + random_to(100) / 100.0;
    r->at[PLACE_DISK].to[PLACE_RAM] = r->disk_file = (0.3 + random_to(40) / 10.0) * 1e9;
    for (int bits = 1; bits < PLAN_BITS; bits++) {
        r->many_rows[bits] = (1 + random_to(8)) * 1e10;
        r->one_row[bits] = (2 + random_to(50) / 10.0) * 1e9;
    }
}

/* False: the planner found none. */
static bool decide(const plan_question *q, plan_outcome *out, others *o) {
    static int choice[2][FACTS_N], activation[2][FACTS_N];
    static uint64_t kept[2][FACTS_N];
    plan_decision d = {choice[0], activation[0], kept[0], false, false, NULL};
    nib_error err;
    if (plan_decide(q, &d, out, &err))
        fail_msg("%s", err.message);
    *o = (others){.q = q,
                  .d = {choice[1], activation[1], kept[1], false, false, NULL},
                  .time = out->found ? plan_run_seconds(q, &out->predicted) : 0,
                  .loss = out->found ? out->predicted.quality : -1,
                  .min_time = INFINITY,
                  .min_loss = INFINITY};
    look_at_all(o, 0);
    return out->found;
}

static void none_is_as_fast_and_better(void **unused) {
    (void)unused;
    int n_found = 0, n_streamed = 0;
    for (int i = 0; i < N_ANY; i++) {
        facts f;
        plan_outcome out;
        others o;
        make(&f);
        if (!decide(&f.q, &out, &o)) {
            assert_true(isinf(o.min_time));
            continue;
        }
        n_found++;
        n_streamed += out.predicted.disk_bytes > 0;
        assert_true(out.predicted.quality <= f.q.max_loss + 1e-12);
        if (o.n_dominate || o.time > o.min_time * 1.002)
            fail_msg(
                "case %d: %.6g s with a loss of %.6g; %d others are as fast and better, the fastest takes "
                "%.6g s",
                i, o.time, o.loss, o.n_dominate, o.min_time);
    }
    assert_true(n_found > N_ANY * 2 / 3 && n_streamed > N_ANY / 4 && n_streamed < n_found - N_ANY / 8);
}

static void none_as_fast_as_requested_loses_less(void **unused) {
    (void)unused;
    int n_found = 0, n_refused = 0;
    for (int i = 0; i < N_SPEED; i++) {
        facts f;
        plan_outcome out;
        others o;
        make(&f);
        assert_int_equal(decide(&f.q, &out, &o), isfinite(o.min_time));
        if (!out.found)
            continue;
        f.q.speed = out.predicted.tok_s * (0.5 + 0.01 * random_to(60));
        if (!decide(&f.q, &out, &o)) {
            n_refused++;
            assert_true(isinf(o.min_loss));
            continue;
        }
        n_found++;
        assert_true(out.predicted.tok_s >= f.q.speed * (1 - 1e-9));
        if (o.loss > o.min_loss + 1e-9)
            fail_msg("case %d: a loss of %.6g, and %.6g is possible", i, o.loss, o.min_loss);
    }
    assert_true(n_found > N_SPEED / 2 && n_refused > N_SPEED / 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(none_is_as_fast_and_better),
                                       cmocka_unit_test(none_as_fast_as_requested_loses_less)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
