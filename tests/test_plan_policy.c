/* The policy from literal facts: against every possible decision, over caps, and its refusals. */
#include "plan/policy.h"

#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

enum { N = 6 }; /* embed, 4 layers, head */

typedef struct facts {
    plan_block_facts blocks[N];
    plan_question q;
} facts;

/* A model of 4 layers with 60 MiB each in its file, and 5 GB/s and 1 GB/s below it. */
static void make(facts *f) {
    static const char *const names[N] = {"embed", "layer.0", "layer.1", "layer.2", "layer.3", "head"};
    memset(f, 0, sizeof *f);
    for (int b = 0; b < N; b++) {
        plan_block_facts *x = &f->blocks[b];
        snprintf(x->name, sizeof x->name, "%s", names[b]);
        x->is_layer = b > 0 && b < N - 1;
        x->importance = x->kl_a8 = x->kl_left_out = -1;
        x->macs = 50000000;
        x->n_op = 10;
        x->choices[0] = (plan_choice){.format = "file", .bits = 8, .bytes = 60 * MIB, .file_bytes = 60 * MIB};
        x->n_choice = 1;
    }
    f->blocks[0].choices[0] = (plan_choice){.format = "file", .bits = 8, .table_bytes = 30 * MIB};
    f->q = (plan_question){.model = "literal",
                           .content = "",
                           .blocks = f->blocks,
                           .n_block = N,
                           .held = {[NIB_OWNER_RUNTIME] = 8 * MIB, [NIB_OWNER_TABLES] = 2 * MIB},
                           .touched = {[NIB_OWNER_RUNTIME] = 5 * MIB, [NIB_OWNER_TABLES] = 2 * MIB},
                           .session = MIB,
                           .need = {.vectors = MIB,
                                    .ring = 4 * MIB,
                                    .row = MIB,
                                    .staging = 3 * MIB,
                                    .stream_staging = 2 * MIB,
                                    .tables = MIB,
                                    .sums = MIB},
                           .caches = {{PLAN_KV_F16, 8 * MIB, 2 * MIB, 4096}},
                           .n_cache = 1,
                           .attention_macs = 1000,
                           .rates = {.n_thread = 2,
                                     .n_core = 2,
                                     .ram_read = 5e9,
                                     .disk_read = 1e9,
                                     .disk_file = 1e9,
                                     .disk_wait = 1e-4,
                                     .pack = 2e9,
                                     .two_slices = 1.5,
                                     .op_s = 5e-6},
                           .n_ctx = 2048,
                           .n_batch = 512,
                           .n_prompt = 128,
                           .n_gen = 128,
                           .cap = {NIB_AUTO, NIB_AUTO, NIB_AUTO},
                           .mode = 'a',
                           .stream = true,
                           .packed = true,
                           .loss_most = 0.001};
    for (int i = 0; i < PLAN_BITS; i++) {
        f->q.rates.one_row[i] = 4e9 + 2e8 * i;
        f->q.rates.many_rows[i] = 5e10;
    }
}

static void add_choice(plan_block_facts *x, const char *format, int bits, uint64_t bytes, double kl) {
    plan_choice *c = &x->choices[x->n_choice++];
    *c = (plan_choice){.bits = bits, .bytes = bytes, .file_bytes = 60 * MIB, .kl = kl};
    snprintf(c->format, sizeof c->format, "%s", format);
}

static void measured(facts *f) {
    for (int b = 1; b < N; b++) {
        add_choice(&f->blocks[b], "u6g64", 6, 47 * MIB, 0.0006 * (1 + b % 3));
        add_choice(&f->blocks[b], "u4g64", 4, 32 * MIB, 0.004 * (1 + b % 4));
        add_choice(&f->blocks[b], "u3g32", 3, 26 * MIB, 0.03 * (1 + b % 2));
    }
}

static plan decided(const plan_question *q) {
    plan p;
    nib_error err = {NIB_OK, ""};
    if (plan_make(q, &p, &err))
        fail_msg("%s", err.message);
    return p;
}

/* Tokens a second as decisions count them: reading and computing overlap wholly. */
static double speed_of(const plan *p) {
    return 1 / NUM_MAX(p->predicted.disk_s, p->predicted.compute_s);
}

/* Slices of a stack: the first ones stay before any second one does, and together they are the choice. */
static void stacks_are_written_by_slice(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        facts f;
        make(&f);
        for (int b = 1; b < N; b++) {
            add_choice(&f.blocks[b], "u4g64+u4g64", 8, 48 * MIB, 1e-6);
            f.blocks[b].choices[1].second_bytes = 24 * MIB;
        }
        f.q.may_round = true;
        f.q.cap[NIB_TIER_RAM] = (uint64_t)(50 + 40 * i) * MIB;
        plan p = decided(&f.q);
        for (int b = 1; b < N; b++) {
            uint64_t of[2][NIB_N_TIER] = {{0}};
            char name[PACK_NAME];
            assert_true(plan_block_recipe(&p.blocks[b], name));
            assert_string_equal(name, "u4g64+u4g64");
            for (int s = 0; s < p.blocks[b].n_slice; s++)
                of[p.blocks[b].slices[s].format[0] == '+'][p.blocks[b].slices[s].tier] +=
                    p.blocks[b].slices[s].bytes;
            for (int second = 0; second < 2; second++)
                assert_int_equal(of[second][NIB_TIER_RAM] + of[second][NIB_TIER_DISK], 24 * MIB);
            assert_true(of[0][NIB_TIER_DISK] == 0 || of[1][NIB_TIER_RAM] == 0);
        }
        plan_clear(&p);
    }
}

static uint64_t kept(const plan *p, int tier) {
    uint64_t sum = 0;
    for (int b = 0; b < p->n_block; b++)
        for (int i = 0; i < p->blocks[b].n_slice; i++)
            if (p->blocks[b].slices[i].tier == tier)
                sum += p->blocks[b].slices[i].bytes;
    return sum;
}

/* What the plan says is what it decided: promised memory is within the cap, and JSON can hold it. */
static void check(const plan_question *q, const plan *p) {
    char *text;
    plan again;
    nib_error err = {NIB_OK, ""};
    const bool streamed = kept(p, NIB_TIER_DISK) > 0;
    const uint64_t beside = plan_ram_beside(q, &q->caches[0], streamed, p->packed, 0);
    if (q->cap[NIB_TIER_RAM] != NIB_AUTO)
        assert_true(beside + kept(p, NIB_TIER_RAM) <= q->cap[NIB_TIER_RAM]);
    assert_true(p->predicted.ram_peak <= q->cap[NIB_TIER_RAM]);
    assert_true(p->predicted.quality <= q->loss_most + 1e-12 || q->speed > 0);
    if (plan_print(p, &text, &err) || plan_parse(text, strlen(text), &again, &err))
        fail_msg("%s", err.message);
    nib_free(text);
    plan_clear(&again);
}

static void everything_stays(void **state) {
    (void)state;
    facts f;
    make(&f);
    plan p = decided(&f.q);
    check(&f.q, &p);
    assert_int_equal(kept(&p, NIB_TIER_DISK), 0);
    assert_int_equal(kept(&p, NIB_TIER_RAM), 330 * MIB);
    assert_string_equal(p.binds, "memory read");
    assert_int_equal(p.predicted.disk_bytes, 0);
    /* 300 MiB at 5 GB/s, or at the 5.6 GB/s of products: the slower */
    assert_true(p.predicted.tok_s < 5e9 / (300.0 * MIB) && p.predicted.tok_s > 4.8e9 / (300.0 * MIB));
    plan_clear(&p);
}

/* More RAM is never slower, and every byte of it is used while something is streamed. */
static void more_is_never_slower(void **state) {
    (void)state;
    for (int costs = 0; costs < 2; costs++) {
        facts f;
        double last = 0;
        make(&f);
        if (costs) {
            measured(&f);
            f.q.loss_most = 0.02;
            f.q.may_round = true;
        }
        for (uint64_t cap = 28 * MIB; cap < 380 * MIB; cap += 1700 * 1024) {
            f.q.cap[NIB_TIER_RAM] = cap;
            plan p = decided(&f.q);
            check(&f.q, &p);
            if (p.predicted.tok_s < last * (1 - 1e-9))
                fail_msg("%.6f tok/s with %llu bytes, %.6f before", p.predicted.tok_s,
                         (unsigned long long)cap, last);
            last = p.predicted.tok_s;
            if (kept(&p, NIB_TIER_DISK) > 30 * MIB && !costs) {
                const uint64_t used =
                    plan_ram_beside(&f.q, &f.q.caches[0], true, true, 0) + kept(&p, NIB_TIER_RAM);
                assert_true(cap - used < 6 * 4096);
                if (kept(&p, NIB_TIER_DISK) > 100 * MIB)
                    assert_string_equal(p.binds, "disk read");
                assert_true(p.one_more_gb[NIB_TIER_RAM] > 0);
            }
            plan_clear(&p);
        }
    }
}

static void pages_stay_whole(void **state) {
    (void)state;
    enum { EACH = 15, N_PAGE = (N - 1) * EACH + 1 };
    pager_page pages[N_PAGE];
    facts f;
    make(&f);
    for (int i = 0; i < N_PAGE - 1; i++)
        pages[i] = (pager_page){.block = 1 + i / EACH, .bytes = 4 * MIB};
    pages[N_PAGE - 1] = (pager_page){.block = 0, .bytes = 30 * MIB, .table = true};
    f.q.pages = pages;
    f.q.n_page = N_PAGE;
    f.q.cap[NIB_TIER_RAM] = 150 * MIB;
    plan p = decided(&f.q);
    check(&f.q, &p);
    const uint64_t beside = plan_ram_beside(&f.q, &f.q.caches[0], true, true, 0);
    assert_int_equal(kept(&p, NIB_TIER_RAM), (150 * MIB - beside) / (4 * MIB) * (4 * MIB));
    for (int b = 1; b < N; b++) { /* spread evenly: no block has two pages more than another */
        assert_int_equal(p.blocks[b].slices[0].bytes % (4 * MIB), 0);
        assert_in_range(p.blocks[b].slices[0].bytes / (4 * MIB), 4, 6);
    }
    plan_clear(&p);
    measured(&f); /* other formats have other pages */
    f.q.may_round = true;
    f.q.loss_most = 1;
    p = decided(&f.q);
    check(&f.q, &p);
    for (int b = 1; b < N; b++) {
        const plan_choice *c = &f.blocks[b].choices[0];
        while (strcmp(c->format, p.blocks[b].slices[0].format) != 0)
            c++;
        uint64_t sum = 0;
        for (int i = 0; i < p.blocks[b].n_slice; i++)
            sum += p.blocks[b].slices[i].bytes;
        assert_int_equal(sum, c->bytes);
    }
    assert_true(p.predicted.disk_s >= 0);
    plan_clear(&p);
}

/* Every choice of formats for the four layers and the head; residency as the policy does it (bytes that fit
 * stay), since no other of the same size is better. */
static double brute_force(const plan_question *q, double *least_loss) {
    double best = 0;
    int way[N] = {0};
    *least_loss = INFINITY;
    for (;;) {
        double compute[2], bytes = 0, loss = 0;
        for (int streamed = 0; streamed < 2; streamed++)
            compute[streamed] = plan_fixed_seconds(q, &q->caches[0], streamed);
        for (int b = 0; b < N; b++) {
            const double s = plan_block_seconds(q, b, way[b], 8);
            compute[0] += s;
            compute[1] += s;
            bytes += (double)q->blocks[b].choices[way[b]].bytes;
            loss += q->blocks[b].choices[way[b]].kl;
        }
        const double whole = (double)plan_ram_beside(q, &q->caches[0], false, true, 0) + bytes + 30.0 * MIB;
        const double room =
            (double)q->cap[NIB_TIER_RAM] - (double)plan_ram_beside(q, &q->caches[0], true, true, 0);
        const double over = NUM_MAX(bytes - room, 0);
        double t = NUM_MAX(over * plan_disk_seconds(q, true), compute[1]);
        if (whole <= (double)q->cap[NIB_TIER_RAM])
            t = compute[0];
        if (loss <= q->loss_most && (q->speed <= 0 || 1 / t >= q->speed)) {
            best = NUM_MAX(best, 1 / t);
            *least_loss = NUM_MIN(*least_loss, loss);
        }
        int b = 1;
        while (b < N && ++way[b] == q->blocks[b].n_choice)
            way[b++] = 0;
        if (b == N)
            return best;
    }
}

static void formats_are_the_best(void **state) {
    (void)state;
    static const double losses[] = {0.0, 0.005, 0.02, 0.1};
    for (uint64_t cap = 30 * MIB; cap < 340 * MIB; cap += 9 * MIB)
        for (size_t i = 0; i < NUM_COUNT(losses); i++) {
            facts f;
            double least;
            make(&f);
            measured(&f);
            f.q.cap[NIB_TIER_RAM] = cap;
            f.q.loss_most = losses[i];
            f.q.may_round = true;
            plan p = decided(&f.q);
            check(&f.q, &p);
            const double want = brute_force(&f.q, &least);
            /* the policy keeps multiples of 4096 */
            if (fabs(speed_of(&p) - want) > 2e-4 * want)
                fail_msg("cap %llu, loss %g: %.8g tok/s instead of %.8g", (unsigned long long)cap, losses[i],
                         speed_of(&p), want);
            plan_clear(&p);
        }
}

static void assert_same_decision(const plan *a, const plan *b) {
    assert_int_equal(a->packed, b->packed);
    for (int i = 0; i < N; i++) {
        assert_int_equal(a->blocks[i].activation, b->blocks[i].activation);
        assert_int_equal(a->blocks[i].n_slice, b->blocks[i].n_slice);
        for (int s = 0; s < a->blocks[i].n_slice; s++) {
            assert_string_equal(a->blocks[i].slices[s].format, b->blocks[i].slices[s].format);
            assert_int_equal(a->blocks[i].slices[s].tier, b->blocks[i].slices[s].tier);
            assert_true(a->blocks[i].slices[s].bytes == b->blocks[i].slices[s].bytes);
        }
    }
}

/* Second slices are products more, and minima take time, where that was measured. */
static void stacks_and_minima_cost(void **state) {
    (void)state;
    facts f;
    make(&f);
    plan_choice *c = &f.blocks[1].choices[0];
    const double plain = plan_block_seconds(&f.q, 1, 0, 8);
    plan before = decided(&f.q);
    c->more_op = 7;
    assert_true(fabs(plan_block_seconds(&f.q, 1, 0, 8) - plain - 7 * f.q.rates.op_s) < 1e-12);
    c->asym_bytes = 30 * MIB;
    const double more = plan_block_seconds(&f.q, 1, 0, 8);
    f.q.rates.asym = 1.5;
    const double minima = 0.5 * 30.0 * MIB / f.q.rates.one_row[4];
    assert_true(fabs(plan_block_seconds(&f.q, 1, 0, 8) - more - minima) < 1e-12);
    plan after = decided(&f.q);
    assert_true(fabs(after.predicted.compute_s - before.predicted.compute_s - 7 * f.q.rates.op_s - minima) <
                1e-9);
    plan_clear(&after);
    plan_clear(&before);
}

/* What runs took changes what is expected, and no decision: the same command gives the same tokens. */
static void runs_decide_nothing(void **state) {
    (void)state;
    int n_corrected = 0;
    for (int i = 0; i < 40; i++) {
        facts f;
        make(&f);
        measured(&f);
        f.q.cap[NIB_TIER_RAM] = (uint64_t)(30 + 10 * i) * MIB;
        f.q.may_round = i % 2;
        f.q.loss_most = 0.02;
        f.q.speed = i % 5 == 4 ? 2 : 0;
        f.q.packed = i % 3;
        plan without = decided(&f.q);
        learned_run runs[2] = {
            {.n_thread = 2, .kv = "f16", .formula_s = 1, .seconds = {3}, .n_seconds = 1},
            {.n_thread = 2, .kv = "f16", .formula_s = 1, .seconds = {0.3}, .n_seconds = 1}};
        runs[0].work.bytes[0][8] = runs[1].work.bytes[0][8] = runs[0].work.disk_bytes = 1e8;
        runs[0].work.cache_macs = runs[1].work.cache_macs = 192e3;
        const learned l = {runs, 2};
        f.q.learned = &l;
        plan with = decided(&f.q);
        assert_same_decision(&with, &without);
        n_corrected += with.predicted.n_run > 0 && with.predicted.tok_s != without.predicted.tok_s;
        plan_clear(&with);
        plan_clear(&without);
    }
    assert_true(n_corrected > 10);
}

static void quality_for_a_speed(void **state) {
    (void)state;
    facts f;
    make(&f);
    measured(&f);
    f.q.cap[NIB_TIER_RAM] = 150 * MIB;
    f.q.may_round = true;
    f.q.loss_most = 1;
    for (double speed = 5; speed < 16; speed += 0.7) {
        double least;
        f.q.speed = speed;
        nib_error err = {NIB_OK, ""};
        plan p;
        if (brute_force(&f.q, &least) <= 0) {
            assert_int_equal(plan_make(&f.q, &p, &err), NIB_E_NOFIT);
            assert_non_null(strstr(err.message, "tokens a second"));
            continue;
        }
        p = decided(&f.q);
        assert_true(speed_of(&p) >= speed * (1 - 2e-4));
        assert_true(p.predicted.quality <= least + 1e-9);
        plan_clear(&p);
    }
}

static void refusals(void **state) {
    (void)state;
    facts f;
    plan p;
    nib_error err = {NIB_OK, ""};
    make(&f);
    const uint64_t least = plan_ram_beside(&f.q, &f.q.caches[0], true, false, 0);
    f.q.cap[NIB_TIER_RAM] = least - 1;
    assert_int_equal(plan_make(&f.q, &p, &err), NIB_E_NOFIT);
    char size[32];
    assert_non_null(strstr(err.message, num_format_cap(least, size)));
    f.q.cap[NIB_TIER_RAM] = least;
    p = decided(&f.q);
    check(&f.q, &p);
    assert_false(p.packed); /* no room for its checksums */
    plan_clear(&p);
    f.q.stream = false;
    assert_int_equal(plan_make(&f.q, &p, &err), NIB_E_NOFIT);
    f.q.stream = true;
    f.q.mode = 'b';
    assert_int_equal(plan_make(&f.q, &p, &err), NIB_E_USAGE); /* not measured */
    for (int b = 1; b < N - 1; b++)
        f.blocks[b].kl_left_out = 0.03 + 0.01 * b;
    assert_int_equal(plan_make(&f.q, &p, &err), NIB_E_NOFIT);
    assert_non_null(strstr(err.message, "0.04"));
}

static void modes(void **state) {
    (void)state;
    facts f;
    make(&f);
    measured(&f);
    f.q.cap[NIB_TIER_RAM] = 150 * MIB;
    f.q.may_round = true;
    f.q.loss_most = 0.1;
    plan a = decided(&f.q);
    for (int b = 1; b < N - 1; b++) {
        f.blocks[b].kl_left_out = 0.034 - 0.001 * b; /* the last ones first, then, whatever they score */
        f.blocks[b].importance = 0.2 * b;
    }
    f.q.mode = 'b';
    plan b = decided(&f.q);
    check(&f.q, &b);
    assert_true(b.blocks[4].left_out && b.blocks[3].left_out && b.blocks[2].left_out);
    assert_false(b.blocks[1].left_out);
    for (int i = 0; i < N; i++)
        for (int s = 0; s < b.blocks[i].n_slice; s++)
            assert_string_equal(b.blocks[i].slices[s].format, "file");
    f.q.mode = 'c';
    plan c = decided(&f.q);
    check(&f.q, &c);
    assert_true(c.predicted.tok_s >= b.predicted.tok_s);
    plan_clear(&a);
    plan_clear(&b);
    plan_clear(&c);
}

static void activations(void **state) {
    (void)state;
    facts f;
    make(&f);
    for (int b = 1; b < N - 1; b++)
        f.blocks[b].importance = 0.3 * (b - 1); /* 0, 0.3, 0.6, 0.9 */
    plan p = decided(&f.q);
    for (int b = 0; b < N; b++)
        assert_int_equal(p.blocks[b].activation, b == 4 ? 16 : 8);
    plan_clear(&p);
    for (int b = 0; b < N; b++) /* measured: costs decide, not the score */
        f.blocks[b].kl_a8 = b == 2 ? 0.01 : 0.00001;
    p = decided(&f.q);
    check(&f.q, &p);
    for (int b = 1; b < N; b++)
        assert_int_equal(p.blocks[b].activation, b == 2 ? 16 : 8);
    plan_clear(&p);
    f.q.activation = 16;
    p = decided(&f.q);
    assert_int_equal(p.blocks[0].activation, 16);
    plan_clear(&p);
}

/* A packed file beyond the disk's cap is not written: the original is streamed, at the price of packing. */
static void disk_cap(void **state) {
    (void)state;
    facts f;
    make(&f);
    f.q.cap[NIB_TIER_RAM] = 100 * MIB;
    f.q.rates.pack = 5e8;
    plan with = decided(&f.q);
    assert_true(with.packed && with.predicted.disk_peak == 331 * MIB);
    f.q.cap[NIB_TIER_DISK] = 300 * MIB;
    plan without = decided(&f.q);
    assert_false(without.packed);
    assert_int_equal(without.predicted.disk_peak, 0);
    assert_string_equal(without.binds, "packing");
    assert_true(without.predicted.tok_s < with.predicted.tok_s);
    assert_true(without.one_more_gb[NIB_TIER_DISK] > 0);
    plan_clear(&with);
    plan_clear(&without);
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
        cmocka_unit_test(stacks_are_written_by_slice),
        cmocka_unit_test(everything_stays),
        cmocka_unit_test(more_is_never_slower),
        cmocka_unit_test(pages_stay_whole),
        cmocka_unit_test(formats_are_the_best),
        cmocka_unit_test(stacks_and_minima_cost),
        cmocka_unit_test(runs_decide_nothing),
        cmocka_unit_test(quality_for_a_speed),
        cmocka_unit_test(refusals),
        cmocka_unit_test(modes),
        cmocka_unit_test(activations),
        cmocka_unit_test(disk_cap),
        cmocka_unit_test(qualities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
