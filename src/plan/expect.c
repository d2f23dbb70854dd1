/* expect.c - see expect.h. */
#include "plan/expect.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Fitted to the runs of a sweep in their order (docs/budget.md). The result depends little on them. */
#define WIDTH 0.2  /* of the bell curve of weights over learned_distance */
#define FADE  0.98 /* factor of a kind's weight for each later run */
/* Maximum factors by which a measured profile, and a guess, may be wrong. */
#define MAX_TIMES   4.0
#define MAX_GUESSED 32.0
/* The weight of the formula itself: less than that of a run of another model with the same threads, more than
 * that of one with other threads too. */
#define OF_FORMULA 1e-6
enum { ENOUGH = 3 }; /* runs of one kind that count; further ones add no information */

void plan_run_of(const plan_question *q, const plan_decision *d, learned_run *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->content, sizeof out->content, "%s", q->content ? q->content : "");
    snprintf(out->kv, sizeof out->kv, "%s", d->cache->layers[0] ? "mixed" : plan_kv_name(d->cache->kv));
    out->n_thread = q->rates.n_thread;
    plan_work_of(q, d, &out->work);
    out->packed = d->streamed && d->packed;
    out->device = d->streamed ? (d->packed ? q->device_packed : q->device_file) : 0;
    out->formula_s = plan_work_seconds(&q->rates, &out->work, out->packed);
}

/* The formula's time of a run. With the same number of threads it is recomputed with the current rates, so
 * that a new measurement of the machine does not change the ratio. */
static double formula_of(const learned_run *r, const plan_rates *rates) {
    return r->n_thread == rates->n_thread ? plan_work_seconds(rates, &r->work, r->packed) : r->formula_s;
}

double plan_correction(const learned *l, const plan_rates *rates, const learned_run *now, int *n_run) {
    double sum = 0, total = OF_FORMULA;
    int64_t latest = 0;
    *n_run = 0;
    for (int i = 0; i < l->n; i++)
        latest = NUM_MAX(latest, l->runs[i].at);
    for (int i = 0; i < l->n; i++) {
        const learned_run *r = &l->runs[i];
        const double far = learned_distance(r, now) / WIDTH;
        const double counts =
            exp(-far * far / 2) * pow(FADE, (double)(latest - r->at)) * NUM_MIN(r->n_seconds, (int)ENOUGH);
        const double seconds = learned_seconds(r), formula = formula_of(r, rates);
        if (!(seconds > 0) || !(formula > 0) || counts < OF_FORMULA)
            continue;
        sum += counts * log(seconds / formula);
        total += counts;
        *n_run += r->n_seconds;
    }
    const double max = rates->guessed ? MAX_GUESSED : MAX_TIMES;
    return NUM_MIN(NUM_MAX(exp(sum / total), 1 / max), max);
}

void plan_expect(const plan_question *q, const plan_decision *d, plan_prediction *p) {
    learned_run now;
    double times = 1;
    p->n_run = 0;
    if (q->split) /* times with a GPU are not learned */
        return;
    plan_run_of(q, d, &now);
    if (q->learned)
        times = plan_correction(q->learned, &q->rates, &now, &p->n_run);
    p->tok_s = 1 / (now.formula_s * times);
    if (p->disk_s > p->compute_s)
        p->ttft_s *= times;
}
