/* planfacts.c - see planfacts.h. */
#include "planfacts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

void facts_make(facts *f) {
    static const char *const names[FACTS_N] = {"embed", "layer.0", "layer.1", "layer.2", "layer.3", "head"};
    memset(f, 0, sizeof *f);
    for (int b = 0; b < FACTS_N; b++) {
        plan_block_facts *x = &f->blocks[b];
        snprintf(x->name, sizeof x->name, "%s", names[b]);
        x->is_layer = b > 0 && b < FACTS_N - 1;
        x->importance = x->kl_a8 = x->kl_a4 = x->kl_left_out = x->change = x->kl_fewer = -1;
        x->place = -1;
        x->macs = 50000000;
        x->cache_macs = 10000000;
        x->n_op = 10;
        x->choices[0] = (plan_choice){.format = "file", .bits = 8, .bytes = 60 * MIB, .file_bytes = 60 * MIB};
        x->n_choice = 1;
    }
    f->blocks[0].choices[0] = (plan_choice){.format = "file", .bits = 8, .table_bytes = 30 * MIB};
    f->q = (plan_question){
        .model = "literal",
        .content = "",
        .blocks = f->blocks,
        .n_block = FACTS_N,
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
        .caches = {{.kv = PLAN_KV_F16, .bytes = 8 * MIB, .touched = 2 * MIB, .position = 4096}},
        .n_cache = 1,
        .attention_macs = 1000,
        .rates = {.n_thread = 2,
                  .n_core = 2,
                  .at[PLACE_RAM].read = 5e9,
                  .at[PLACE_DISK].to[PLACE_RAM] = 1e9,
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
        .max_loss = 0.001};
    for (int i = 0; i < PLAN_BITS; i++) {
        f->q.rates.one_row[i] = 4e9 + 2e8 * i;
        f->q.rates.many_rows[i] = 5e10;
    }
}

void facts_add_choice(plan_block_facts *x, const char *format, int bits, uint64_t bytes, double kl) {
    plan_choice *c = &x->choices[x->n_choice++];
    *c = (plan_choice){.bits = bits, .bytes = bytes, .file_bytes = 60 * MIB, .kl = kl};
    snprintf(c->format, sizeof c->format, "%s", format);
}

void facts_measured(facts *f) {
    for (int b = 1; b < FACTS_N; b++) {
        facts_add_choice(&f->blocks[b], "u6g64", 6, 47 * MIB, 0.0006 * (1 + b % 3));
        facts_add_choice(&f->blocks[b], "u4g64", 4, 32 * MIB, 0.004 * (1 + b % 4));
        facts_add_choice(&f->blocks[b], "u3g32", 3, 26 * MIB, 0.03 * (1 + b % 2));
    }
}

plan facts_plan(const plan_question *q) {
    plan p;
    nib_error err = {NIB_OK, ""};
    if (plan_make(q, &p, &err))
        fail_msg("%s", err.message);
    return p;
}

uint64_t facts_kept(const plan *p, int tier) {
    uint64_t sum = 0;
    for (int b = 0; b < p->n_block; b++)
        for (int i = 0; i < p->blocks[b].n_slice; i++)
            if (p->blocks[b].slices[i].tier == tier)
                sum += p->blocks[b].slices[i].bytes;
    return sum;
}

void facts_check(const plan_question *q, const plan *p) {
    char *text;
    plan again;
    nib_error err = {NIB_OK, ""};
    const bool streamed = facts_kept(p, NIB_TIER_DISK) > 0;
    const uint64_t beside = plan_ram_beside(q, &q->caches[0], streamed, p->packed, 0);
    if (q->cap[NIB_TIER_RAM] != NIB_AUTO)
        assert_true(beside + facts_kept(p, NIB_TIER_RAM) <= q->cap[NIB_TIER_RAM]);
    assert_true(p->predicted.ram_peak <= q->cap[NIB_TIER_RAM]);
    assert_true(p->predicted.quality <= q->max_loss + 1e-12 || q->speed > 0);
    if (plan_print(p, &text, &err) || plan_parse(text, strlen(text), &again, &err))
        fail_msg("%s", err.message);
    nib_free(text);
    plan_clear(&again);
}
