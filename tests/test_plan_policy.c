/* The policy from literal facts: what stays in memory, over caps; what is expected of it; and its refusals.
 */
#include "base/num.h"
#include "support/planfacts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Slices of a stack: the first ones stay before any second one does, and together they are the choice. */
static void stacks_are_written_by_slice(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        facts f;
        facts_make(&f);
        for (int b = 1; b < FACTS_N; b++) {
            facts_add_choice(&f.blocks[b], "u4g64+u4g64", 8, 48 * MIB, 1e-6);
            f.blocks[b].choices[1].second_bytes = 24 * MIB;
        }
        f.q.may_round = true;
        f.q.cap[NIB_TIER_RAM] = (uint64_t)(50 + 40 * i) * MIB;
        plan p = facts_plan(&f.q);
        for (int b = 1; b < FACTS_N; b++) {
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

static void everything_stays(void **state) {
    (void)state;
    facts f;
    facts_make(&f);
    plan p = facts_plan(&f.q);
    facts_check(&f.q, &p);
    assert_int_equal(facts_kept(&p, NIB_TIER_DISK), 0);
    assert_int_equal(facts_kept(&p, NIB_TIER_RAM), 330 * MIB);
    assert_string_equal(p.binds, "memory read");
    assert_int_equal(p.predicted.disk_bytes, 0);
    /* 300 MiB at 5 GB/s, or at the 5.6 GB/s of products: the slower */
    assert_true(p.predicted.tok_s < 5e9 / (300.0 * MIB) && p.predicted.tok_s > 4.8e9 / (300.0 * MIB));
    plan_clear(&p);
}

/* A prompt's last layer takes what keys and values take, but not where weights are streamed. */
static void the_last_layer_is_short(void **state) {
    (void)state;
    for (int streamed = 0; streamed < 2; streamed++) {
        facts f;
        facts_make(&f);
        f.q.n_prompt = 512;
        f.q.n_batch = 512;
        if (streamed)
            f.q.cap[NIB_TIER_RAM] = 150 * MIB;
        f.q.rates.many_rows[8] = 1e9; /* computing binds */
        plan whole, less;
        f.blocks[FACTS_N - 2].cache_macs = f.blocks[FACTS_N - 2].macs;
        whole = facts_plan(&f.q);
        f.blocks[FACTS_N - 2].cache_macs = 0;
        less = facts_plan(&f.q);
        const double saved = whole.predicted.ttft_s - less.predicted.ttft_s;
        if (streamed)
            assert_true(saved == 0 && facts_kept(&whole, NIB_TIER_DISK) > 0);
        else
            assert_true(saved > 20 && saved < 26); /* 512 rows of 5e7 */
        plan_clear(&whole);
        plan_clear(&less);
    }
}

/* Some rows go through all layers, then the next ones; the head comes last. */
static bool by_rows(visits *v, visit *out) {
    const segment *s = v->segments;
    const int head = v->n_block - 1;
    if (v->block == head && v->row + v->n_cell < s->n_row) {
        v->block = 0;
        v->row += v->n_cell;
    }
    if (v->block > head || (v->block == head && s->head_row == s->n_row))
        return false;
    *out = (visit){.block = v->block, .row = v->row, .n_row = NUM_MIN(v->n_cell, s->n_row - v->row)};
    if (v->block++ == head)
        *out = (visit){.block = head, .n_row = s->n_row - s->head_row};
    return true;
}

/* The first token takes what the prompt's visits take: blocks that the ring does not hold are read for every
 * visit but for the pages that stay, and only the last pass has logits. */
static void the_first_token_follows_the_visits(void **state) {
    (void)state;
    facts f;
    facts_make(&f);
    f.q.packed = false;
    f.q.n_prompt = f.q.n_batch = 128;
    f.q.cap[NIB_TIER_RAM] = 60 * MIB;
    f.q.need.max_page = MIB;
    f.q.need.n_slot = 64;      /* blocks of 60 MiB */
    f.q.rates.disk_file = 1e8; /* reading binds */
    plan one = facts_plan(&f.q);
    f.q.n_cell_streamed = 32;
    plan held = facts_plan(&f.q);
    assert_true(fabs(held.predicted.ttft_s - one.predicted.ttft_s) < 1e-9);
    f.q.need.n_slot = 8;
    plan four = facts_plan(&f.q);
    const double times = four.predicted.ttft_s / one.predicted.ttft_s;
    /* four layers of five blocks are read four times, but for four of some fifty pages */
    if (!(times > 3.1 && times < 3.3))
        fail_msg("%g times", times);
    f.q.need.n_slot = 64;
    f.q.order = by_rows; /* another order reads all layers for each visit, whatever the ring holds */
    plan other = facts_plan(&f.q);
    f.q.order = NULL;
    assert_true(fabs(other.predicted.ttft_s / one.predicted.ttft_s - 17.0 / 5) < 0.1);
    f.q.cap[NIB_TIER_RAM] = NIB_AUTO;
    f.q.n_batch = 16;
    plan before = facts_plan(&f.q);
    f.q.rates.op_s = 1e-3;
    f.blocks[FACTS_N - 1].n_op += 1000;
    plan after = facts_plan(&f.q);
    f.blocks[FACTS_N - 1].n_op -= 1000;
    plan same = facts_plan(&f.q);
    assert_true(fabs(after.predicted.ttft_s - same.predicted.ttft_s - 1) < 1e-6);
    assert_true(before.predicted.ttft_s < same.predicted.ttft_s);
    plan *const all[] = {&one, &held, &four, &other, &before, &after, &same};
    for (size_t i = 0; i < NUM_COUNT(all); i++)
        plan_clear(all[i]);
}

/* More RAM is never slower, and every byte of it is used while something is streamed. */
static void more_is_never_slower(void **state) {
    (void)state;
    for (int costs = 0; costs < 2; costs++) {
        facts f;
        double last = 0;
        facts_make(&f);
        if (costs) {
            facts_measured(&f);
            f.q.max_loss = 0.02;
            f.q.may_round = true;
        }
        for (uint64_t cap = 28 * MIB; cap < 380 * MIB; cap += 1700 * 1024) {
            f.q.cap[NIB_TIER_RAM] = cap;
            plan p = facts_plan(&f.q);
            facts_check(&f.q, &p);
            if (p.predicted.tok_s < last * (1 - 1e-9))
                fail_msg("%.6f tok/s with %llu bytes, %.6f before", p.predicted.tok_s,
                         (unsigned long long)cap, last);
            last = p.predicted.tok_s;
            if (facts_kept(&p, NIB_TIER_DISK) > 30 * MIB && !costs) {
                const uint64_t used =
                    plan_ram_beside(&f.q, &f.q.caches[0], true, true, 0) + facts_kept(&p, NIB_TIER_RAM);
                assert_true(cap - used < 6 * 4096);
                if (facts_kept(&p, NIB_TIER_DISK) > 100 * MIB)
                    assert_string_equal(p.binds, "disk read");
                assert_true(p.one_more_gb[NIB_TIER_RAM] > 0);
            }
            plan_clear(&p);
        }
    }
}

static void pages_stay_whole(void **state) {
    (void)state;
    enum { EACH = 15, N_PAGE = (FACTS_N - 1) * EACH + 1 };
    pager_page pages[N_PAGE];
    facts f;
    facts_make(&f);
    for (int i = 0; i < N_PAGE - 1; i++)
        pages[i] = (pager_page){.block = 1 + i / EACH, .bytes = 4 * MIB};
    pages[N_PAGE - 1] = (pager_page){.block = 0, .bytes = 30 * MIB, .table = true};
    f.q.pages = pages;
    f.q.n_page = N_PAGE;
    f.q.cap[NIB_TIER_RAM] = 150 * MIB;
    plan p = facts_plan(&f.q);
    facts_check(&f.q, &p);
    const uint64_t beside = plan_ram_beside(&f.q, &f.q.caches[0], true, true, 0);
    assert_int_equal(facts_kept(&p, NIB_TIER_RAM), (150 * MIB - beside) / (4 * MIB) * (4 * MIB));
    for (int b = 1; b < FACTS_N; b++) { /* spread evenly: no block has two pages more than another */
        assert_int_equal(p.blocks[b].slices[0].bytes % (4 * MIB), 0);
        assert_in_range(p.blocks[b].slices[0].bytes / (4 * MIB), 4, 6);
    }
    plan_clear(&p);
    facts_measured(&f); /* other formats have other pages */
    f.q.may_round = true;
    f.q.max_loss = 1;
    p = facts_plan(&f.q);
    facts_check(&f.q, &p);
    for (int b = 1; b < FACTS_N; b++) {
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

static void assert_same_decision(const plan *a, const plan *b) {
    assert_int_equal(a->packed, b->packed);
    for (int i = 0; i < FACTS_N; i++) {
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
    facts_make(&f);
    plan_choice *c = &f.blocks[1].choices[0];
    const double plain = plan_block_seconds(&f.q, 1, 0, 8);
    plan before = facts_plan(&f.q);
    c->more_op = 7;
    assert_true(fabs(plan_block_seconds(&f.q, 1, 0, 8) - plain - 7 * f.q.rates.op_s) < 1e-12);
    c->asym_bytes = 30 * MIB;
    const double more = plan_block_seconds(&f.q, 1, 0, 8);
    f.q.rates.asym = 1.5;
    const double minima = 0.5 * 30.0 * MIB / f.q.rates.one_row[4];
    assert_true(fabs(plan_block_seconds(&f.q, 1, 0, 8) - more - minima) < 1e-12);
    plan after = facts_plan(&f.q);
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
        facts_make(&f);
        facts_measured(&f);
        f.q.cap[NIB_TIER_RAM] = (uint64_t)(30 + 10 * i) * MIB;
        f.q.may_round = i % 2;
        f.q.max_loss = 0.02;
        f.q.speed = i % 5 == 4 ? 2 : 0;
        f.q.packed = i % 3;
        plan without = facts_plan(&f.q);
        learned_run runs[2] = {
            {.n_thread = 2, .kv = "f16", .formula_s = 1, .seconds = {3}, .n_seconds = 1},
            {.n_thread = 2, .kv = "f16", .formula_s = 1, .seconds = {0.3}, .n_seconds = 1}};
        runs[0].work.bytes[0][8] = runs[1].work.bytes[0][8] = runs[0].work.disk_bytes = 1e8;
        runs[0].work.cache_macs = runs[1].work.cache_macs = 192e3;
        const learned l = {runs, 2};
        f.q.learned = &l;
        plan with = facts_plan(&f.q);
        assert_same_decision(&with, &without);
        n_corrected += with.predicted.n_run > 0 && with.predicted.tok_s != without.predicted.tok_s;
        plan_clear(&with);
        plan_clear(&without);
    }
    assert_true(n_corrected > 10);
}

/* What 8 bits cost is a reason of its own: a plan without a request has them anyway. */
static void eight_bits_may_cost_too_much(void **state) {
    (void)state;
    facts f;
    plan p;
    nib_error err;
    facts_make(&f);
    for (int b = 0; b < FACTS_N; b++)
        f.blocks[b].kl_a8 = 0.001;
    f.q.cap[NIB_TIER_RAM] = 100 * MIB;
    f.q.activation = 8;
    f.q.max_loss = 0.001;
    assert_int_equal(plan_make(&f.q, &p, &err), NIB_E_NOFIT);
    assert_non_null(strstr(err.message, "8 bits"));
    f.q.max_loss = PLAN_ANY_LOSS;
    assert_int_equal(plan_make(&f.q, &p, &err), NIB_OK);
    assert_float_equal(p.predicted.quality, 0.006, 1e-9);
    plan_clear(&p);
    f.q.activation = 0;
    f.q.max_loss = 0.001;
    assert_int_equal(plan_make(&f.q, &p, &err), NIB_OK);
    assert_true(p.predicted.quality <= 0.001);
    plan_clear(&p);
}

static void refusals(void **state) {
    (void)state;
    facts f;
    plan p;
    nib_error err = {NIB_OK, ""};
    facts_make(&f);
    const uint64_t min = plan_ram_beside(&f.q, &f.q.caches[0], true, false, 0);
    f.q.cap[NIB_TIER_RAM] = min - 1;
    assert_int_equal(plan_make(&f.q, &p, &err), NIB_E_NOFIT);
    char size[32];
    assert_non_null(strstr(err.message, num_format_cap(min, size)));
    f.q.cap[NIB_TIER_RAM] = min;
    p = facts_plan(&f.q);
    facts_check(&f.q, &p);
    assert_false(p.packed); /* no room for its checksums */
    plan_clear(&p);
    f.q.stream = false;
    assert_int_equal(plan_make(&f.q, &p, &err), NIB_E_NOFIT);
    f.q.stream = true;
    f.q.mode = 'b';
    assert_int_equal(plan_make(&f.q, &p, &err), NIB_E_USAGE); /* not measured */
    for (int b = 1; b < FACTS_N - 1; b++)
        f.blocks[b].kl_left_out = 0.03 + 0.01 * b;
    assert_int_equal(plan_make(&f.q, &p, &err), NIB_E_NOFIT);
    assert_non_null(strstr(err.message, "0.04"));
}

/* A packed file beyond the disk's cap is not written: the original is streamed, at the price of packing. */
static void disk_cap(void **state) {
    (void)state;
    facts f;
    facts_make(&f);
    f.q.cap[NIB_TIER_RAM] = 100 * MIB;
    f.q.rates.pack = 5e8;
    plan with = facts_plan(&f.q);
    assert_true(with.packed && with.predicted.disk_peak == 331 * MIB);
    f.q.cap[NIB_TIER_DISK] = 300 * MIB;
    plan without = facts_plan(&f.q);
    assert_false(without.packed);
    assert_int_equal(without.predicted.disk_peak, 0);
    assert_string_equal(without.binds, "packing");
    assert_true(without.predicted.tok_s < with.predicted.tok_s);
    assert_true(without.one_more_gb[NIB_TIER_DISK] > 0);
    plan_clear(&with);
    plan_clear(&without);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stacks_are_written_by_slice),
        cmocka_unit_test(everything_stays),
        cmocka_unit_test(the_last_layer_is_short),
        cmocka_unit_test(the_first_token_follows_the_visits),
        cmocka_unit_test(more_is_never_slower),
        cmocka_unit_test(pages_stay_whole),
        cmocka_unit_test(stacks_and_minima_cost),
        cmocka_unit_test(runs_decide_nothing),
        cmocka_unit_test(eight_bits_may_cost_too_much),
        cmocka_unit_test(refusals),
        cmocka_unit_test(disk_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
