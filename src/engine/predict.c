/* predict.c - predictions for an open engine, by the cost model of plan/cost.c and the times of earlier runs.
 * Known facts (resident pages, charges) are used directly. */
#include "engine/predict.h"

#include "base/mem.h"
#include "base/num.h"
#include "plan/expect.h"
#include "engine/learn.h"
#include "engine/planning/planning.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Probability that a token's row is not among the first `kept` (a share) of n_row resident rows. Tokenizers
 * number tokens by frequency, which follows Zipf's law approximately (docs/shortlist.md). */
static double asked_share(int64_t n_row, double kept) {
    return 1 - log1p(kept * (double)n_row) / log1p((double)n_row);
}

/* The pager's residency as a decision. */
static void decide(const engine_core *e, const pager *weights, planning *f, plan_decision *d) {
    pager_stats stats;
    uint64_t looked_up = 0; /* bytes on disk that are not part of a pass */
    pager_get_stats(weights, &stats);
    const weight *head = NULL;
    if (e->resolved.n_best)
        layout_head(e->layout, &head);
    d->packed = stats.packed;
    d->cache = &f->q.caches[0];
    for (int b = 0; b < f->q.n_block; b++) {
        const block *of = layout_block(e->layout, b);
        uint64_t kept = 0, all = 0;
        for (int i = 0; i < of->n_weight; i++) {
            if (of->weights[i].vector)
                continue;
            const pager_bytes at = pager_where(weights, b, i, NULL);
            kept += at.kept;
            all += at.kept + at.on_disk;
            looked_up += at.on_disk;
            if (&of->weights[i] == head)
                f->q.best_waits *= asked_share(
                    head->n, (double)at.kept / (double)NUM_MAX(at.kept + at.on_disk, UINT64_C(1)));
        }
        const plan_choice *c = &f->blocks[b].choices[0];
        const double share = all ? (double)kept / (double)all : 1;
        d->choice[b] = 0;
        d->activation[b] = e->resolved.act_bits[b];
        d->kept[b] = plan_is_resident_on_gpu(&f->q, b) ? c->bytes : (uint64_t)(share * (double)c->bytes);
    }
    d->streamed = stats.pass_bytes > 0 || looked_up > 0;
}

/* The process's expected peak. Weights, the pager's tables and its ring are charged already; sessions and
 * their caches may be. */
static uint64_t expected_peak(const engine_core *e, const planning *f) {
    nib_memory now;
    ledger_report(e->ledger, &now);
    const uint64_t fixed[] = {now.owner[NIB_OWNER_WEIGHTS], now.owner[NIB_OWNER_TABLES],
                              now.owner[NIB_OWNER_STAGING], f->q.touched[NIB_OWNER_RUNTIME],
                              f->workspace_touched,         f->q.session,
                              f->q.caches[0].touched};
    uint64_t sum = 0;
    for (size_t i = 0; i < NUM_COUNT(fixed); i++)
        sum += fixed[i];
    return NUM_MAX(sum, now.rss_peak);
}

static nib_status open_decision(plan_decision *d, int n_block, nib_error *err) {
    const size_t n = (size_t)NUM_MAX(n_block, 1);
    *d = (plan_decision){.choice = mem_calloc(n, sizeof *d->choice),
                         .activation = mem_calloc(n, sizeof *d->activation),
                         .kept = mem_calloc(n, sizeof *d->kept)};
    return d->choice && d->activation && d->kept ? NIB_OK
                                                 : nib_fail_nomem(err, n * sizeof *d->kept, "the prediction");
}

static void close_decision(plan_decision *d) {
    mem_free(d->choice);
    mem_free(d->activation);
    mem_free(d->kept);
}

static void fill(const engine_core *e, planning *f, const plan_decision *d, nib_prediction *out) {
    plan_prediction p;
    const char *binds;
    plan_predict(&f->q, d, &p, &binds);
    plan_expect(&f->q, d, &p);
    *out = (nib_prediction){.ttft_s = p.ttft_s,
                            .tok_s = p.tok_s,
                            .ram_peak = expected_peak(e, f),
                            .ram_bytes = p.ram_bytes,
                            .disk_bytes = p.disk_bytes,
                            .disk_s = p.disk_s,
                            .compute_s = p.compute_s,
                            .vram_bytes = p.vram_bytes,
                            .link_bytes = p.link_bytes,
                            .gpu_s = p.gpu_s,
                            .link_s = p.link_s,
                            .vram_peak = p.vram_peak,
                            .guessed = p.guessed,
                            .n_run = p.n_run};
    snprintf(out->binds, sizeof out->binds, "%s", binds);
}

/* The common part of predict and predict_run; fills out or run. */
static nib_status predict_from(const engine_core *e, const pager *weights, const planning_of *of,
                               nib_prediction *out, learned_run *run, nib_error *err) {
    planning f;
    plan_decision d = {0};
    nib_status status = planning_gather(&f, e, of, err);
    if (status == NIB_OK)
        status = open_decision(&d, f.q.n_block, err);
    if (status == NIB_OK) {
        decide(e, weights, &f, &d);
        if (out) {
            learn_load(e, &f.q, &f.learned);
            fill(e, &f, &d, out);
        }
        if (run)
            plan_run_of(&f.q, &d, run);
    }
    close_decision(&d);
    planning_close(&f);
    return status;
}

nib_status predict(const engine_core *e, const pager *weights, const backend *by, int64_t n_prompt,
                   int64_t n_gen, nib_prediction *out, nib_error *err) {
    const planning_of of = {.open = by, .n_prompt = n_prompt, .n_gen = n_gen};
    return predict_from(e, weights, &of, out, NULL, err);
}

nib_status predict_run(const engine_core *e, const pager *weights, const backend *by, int64_t n_position,
                       learned_run *out, nib_error *err) {
    const planning_of of = {.open = by, .n_prompt = NUM_MAX(n_position, 1), .n_gen = 1};
    return predict_from(e, weights, &of, NULL, out, err);
}
