/* predict.c - what an open engine is expected to do, by the cost model of plan/cost.c. Where everything is
 * already known it is taken as it is: what is kept, what is charged. */
#include "run/planning.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

/* What the pager did, as a decision. */
static void decide(const nib_engine *e, planning *f, plan_decision *d) {
    pager_stats stats;
    pager_get_stats(e->pager, &stats);
    d->packed = stats.packed;
    d->streamed = stats.pass_bytes > 0;
    d->cache = &f->q.caches[0];
    for (int b = 0; b < f->q.n_block; b++) {
        const block *of = model_block(e->m, b);
        uint64_t kept = 0, all = 0, here, on_disk;
        for (int i = 0; i < of->n_weight; i++) {
            if (of->weights[i].vector)
                continue;
            pager_where(e->pager, b, i, &here, &on_disk);
            kept += here;
            all += here + on_disk;
        }
        const plan_choice *c = &f->blocks[b].choices[0];
        const double share = all ? (double)kept / (double)all : 1;
        d->choice[b] = 0;
        d->activation[b] = e->act_bits[b];
        d->kept[b] = (uint64_t)(share * (double)c->bytes);
    }
}

/* Weights, the pager's tables and its ring are charged by now; sessions and their cache may be or not. */
static uint64_t expected_peak(const nib_engine *e, const planning *f) {
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

static void fill(const nib_engine *e, planning *f, plan_decision *d, nib_prediction *out) {
    plan_prediction p;
    const char *binds;
    decide(e, f, d);
    plan_predict(&f->q, d, &p, &binds);
    if (d->streamed)
        f->workspace_touched += f->q.more_touched;
    *out = (nib_prediction){.ttft_s = p.ttft_s,
                            .tok_s = p.tok_s,
                            .ram_peak = expected_peak(e, f),
                            .ram_bytes = p.ram_bytes,
                            .disk_bytes = p.disk_bytes,
                            .disk_s = p.disk_s,
                            .compute_s = p.compute_s,
                            .guessed = f->q.rates.guessed};
    snprintf(out->binds, sizeof out->binds, "%s", binds);
}

nib_status nib_engine_predict(const nib_engine *e, int64_t n_prompt, int64_t n_gen, nib_prediction *out,
                              nib_error *err) {
    planning f;
    if (!e->pager)
        return nib_fail(err, NIB_E_USAGE,
                        "the engine was opened for its vocabulary only: it computes nothing");
    nib_status status = planning_gather(&f, e, n_prompt, n_gen, err);
    const size_t n = (size_t)NUM_MAX(f.q.n_block, 1);
    plan_decision d = {.choice = mem_calloc(n, sizeof *d.choice),
                       .activation = mem_calloc(n, sizeof *d.activation),
                       .kept = mem_calloc(n, sizeof *d.kept)};
    if (status == NIB_OK && (!d.choice || !d.activation || !d.kept))
        status = nib_fail_nomem(err, n * sizeof *d.kept, "the prediction");
    if (status == NIB_OK)
        fill(e, &f, &d, out);
    mem_free(d.choice);
    mem_free(d.activation);
    mem_free(d.kept);
    planning_close(&f);
    return status;
}
