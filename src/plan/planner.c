/* planner.c - answers a question by a plan, with the gain from more memory and alternatives, or refuses it.
 */
#include "plan/planner.h"

#include "base/mem.h"
#include "base/num.h"
#include "plan/expect.h"
#include "memory/ledger.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Bounds on the loss: mean KL divergence at the logits, in nats a token. An increase of cross entropy by d
 * nats multiplies the perplexity by e^d, so these bounds allow at most about 0.5, 2 and 10 % more perplexity.
 * "lossless" keeps the file's own weights; its bound is for 8-bit activations with measured costs, and is
 * within the noise of comparing two runs (0.1 %). */
static const struct {
    const char *name;
    double loss;
    bool round;
} qualities[] = {
    {"lossless", 0.001, false}, {"high", 0.005, true}, {"balanced", 0.02, true}, {"small", 0.1, true}};

bool plan_quality(const char *name, double *max_loss, bool *may_round) {
    for (size_t i = 0; i < NUM_COUNT(qualities); i++)
        if (!strcmp(name, qualities[i].name)) {
            *max_loss = qualities[i].loss;
            *may_round = qualities[i].round;
            return true;
        }
    return false;
}

/* ---- a decision's memory ---- */

static nib_status decision_open(plan_decision *d, int n_block, nib_error *err) {
    const size_t n = (size_t)n_block;
    *d = (plan_decision){.choice = mem_calloc(n, sizeof *d->choice),
                         .activation = mem_calloc(n, sizeof *d->activation),
                         .kept = mem_calloc(n, sizeof *d->kept)};
    return d->choice && d->activation && d->kept ? NIB_OK
                                                 : nib_fail_nomem(err, n * sizeof *d->kept, "planning");
}

static void decision_close(plan_decision *d) {
    mem_free(d->choice);
    mem_free(d->activation);
    mem_free(d->kept);
}

/* ---- refusals ---- */

static uint64_t cap_of(const plan_question *q, uint64_t ram) {
    return q->cap_of ? q->cap_of(q->cap_user, ram) : ram;
}

static nib_status refuse_caps(const plan_question *q, const plan_outcome *o, nib_error *err) {
    char cap[32], small[32], whole[32], streamed[32];
    num_format_size(cap_of(q, q->cap[NIB_TIER_RAM]), cap);
    const uint64_t spread = (uint64_t)q->rates.n_thread * LEDGER_THREAD_SPREAD;
    num_format_cap(cap_of(q, o->min_ram + spread), small);
    num_format_cap(cap_of(q, o->whole_ram + spread), whole);
    if (q->residuals && !q->stream)
        return nib_fail(
            err, NIB_E_NOFIT,
            "RAM: the cap of %s is too small; %s is the smallest that works with residuals beside "
            "all weights (--scratch DIR keeps them on disk)",
            cap, small);
    if (!q->stream && o->streamed_ram < o->min_ram)
        return nib_fail(err, NIB_E_NOFIT,
                        "RAM: the cap of %s is too small; %s is the smallest that works, or %s when weights "
                        "may be streamed",
                        cap, small, num_format_cap(cap_of(q, o->streamed_ram + spread), streamed));
    if (o->min_ram >= o->whole_ram || q->is_placed)
        return nib_fail(err, NIB_E_NOFIT, "RAM: the cap of %s is too small; %s is the smallest that works%s",
                        cap, small, q->is_placed ? " for this plan" : "");
    return nib_fail(
        err, NIB_E_NOFIT,
        "RAM: the cap of %s is too small; %s is the smallest that works, and %s holds the whole model", cap,
        small, whole);
}

nib_status plan_check_cap(const plan_question *q, nib_error *err) {
    plan_outcome o = {0};
    plan_needs(q, &o);
    return q->cap[NIB_TIER_RAM] < o.min_ram ? refuse_caps(q, &o, err) : NIB_OK;
}

static nib_status refuse_modes(const plan_question *q, const plan_outcome *o, nib_error *err) {
    char cap[32];
    if (o->min_loss < 0 && q->max_loss >= PLAN_ANY_LOSS && plan_has_scores(q))
        return nib_fail(
            err, NIB_E_NOFIT,
            "mode %c: without measured costs it leaves out at most half of the layers, and the "
            "others do not fit in %s of RAM; mode a streams them, and 'nibble profile MODEL --costs' "
            "measures what fewer layers cost",
            q->mode, num_format_size(q->cap[NIB_TIER_RAM], cap));
    if (o->min_loss < 0)
        return nib_fail(err, NIB_E_USAGE,
                        "mode %c leaves layers out, and their cost is not measured: 'nibble profile MODEL "
                        "--costs' measures it",
                        q->mode);
    return nib_fail(err, NIB_E_NOFIT,
                    "mode %c: leaving out the least important layer costs %s nats a token (perplexity times "
                    "%s), and %s are allowed (--quality small allows 0.1)",
                    q->mode, num_text(o->min_loss, 3), num_text(exp(o->min_loss), 3),
                    num_text(q->max_loss, 3));
}

static nib_status refuse(const plan_question *q, const plan_outcome *o, plan_decision *d, nib_error *err) {
    if (q->cap[NIB_TIER_RAM] < o->min_ram)
        return refuse_caps(q, o, err);
    if (q->speed > 0) {
        plan_question any = *q;
        plan_outcome fastest;
        any.speed = 0;
        NIB_TRY(plan_decide(&any, d, &fastest, err));
        if (fastest.found)
            return nib_fail(err, NIB_E_NOFIT,
                            "no plan makes %s tokens a second within these caps and a loss of %s nats a "
                            "token; the fastest plan with measured costs makes %s",
                            num_text(q->speed, 3), num_text(q->max_loss, 3),
                            num_text(fastest.predicted.tok_s, 3));
    }
    if (q->mode != 'a')
        return refuse_modes(q, o, err);
    plan_question dear = *q;
    plan_outcome any;
    dear.speed = 0;
    dear.max_loss = PLAN_ANY_LOSS;
    dear.may_round = dear.may_leave_out = false; /* what the activations cost alone */
    if (!q->activation)
        return refuse_caps(q, o, err);
    NIB_TRY(plan_decide(&dear, d, &any, err));
    if (any.found)
        return nib_fail(err, NIB_E_NOFIT,
                        "activations of %d bits cost this model %s nats a token (perplexity times %s), and "
                        "%s are allowed (--quality)",
                        q->activation, num_text(any.predicted.quality, 3),
                        num_text(exp(any.predicted.quality), 5), num_text(q->max_loss, 3));
    return refuse_caps(q, o, err);
}

/* ---- more memory, and other answers ---- */

/* Divides the GPU's memory again, with more of it. */
static nib_status try_more_vram(const plan_question *q, uint64_t gb, plan_decision *d, plan *out,
                                nib_error *err) {
    plan_question more = *q;
    homes_question larger = *q->device;
    homes_split split;
    plan_outcome o = {0};
    if (larger.capacity > UINT64_MAX - gb)
        return NIB_OK;
    larger.capacity += gb;
    larger.given = NULL;
    more.device = &larger;
    more.split = &split;
    nib_status status = homes_split_make(&larger, &q->rates, &split, err);
    if (status == NIB_OK)
        status = plan_decide(&more, d, &o, err);
    if (status == NIB_OK && o.found)
        out->one_more_gb[NIB_TIER_VRAM] = NUM_MAX(o.predicted.tok_s - out->predicted.tok_s, 0);
    homes_split_clear(&split);
    return status;
}

static nib_status look_at_more(const plan_question *q, plan_decision *d, plan *out, nib_error *err) {
    static const uint64_t gb = 1000000000;
    for (int t = 0; t < NIB_N_TIER; t++) {
        plan_question more = *q;
        plan_outcome o;
        if (t == NIB_TIER_VRAM || q->cap[t] > UINT64_MAX - gb)
            continue;
        more.cap[t] += gb;
        NIB_TRY(plan_decide(&more, d, &o, err));
        if (o.found)
            plan_expect(&more, d, &o.predicted);
        if (o.found)
            out->one_more_gb[t] = NUM_MAX(o.predicted.tok_s - out->predicted.tok_s, 0);
    }
    return q->split ? try_more_vram(q, gb, d, out, err) : NIB_OK;
}

static nib_status look_at(const plan_question *q, const char *what, plan_decision *d, plan *out,
                          nib_error *err) {
    plan_outcome o;
    if (out->n_alternative == PLAN_MAX_ALTERNATIVE)
        return NIB_OK;
    NIB_TRY(plan_decide(q, d, &o, err));
    if (!o.found && q->cap[NIB_TIER_RAM] >= o.min_ram)
        return NIB_OK; /* the gain does not come from memory */
    if (o.found)
        plan_expect(q, d, &o.predicted);
    plan_alternative *a = &out->alternatives[out->n_alternative++];
    snprintf(a->what, sizeof a->what, "%s", what);
    a->fits = o.found;
    a->tok_s = o.found ? o.predicted.tok_s : 0;
    a->quality = o.found ? plan_stated_loss(q, d, o.predicted.quality) : -1;
    a->ram_peak = o.found ? o.predicted.ram_peak : o.min_ram;
    return NIB_OK;
}

static nib_status look_at_others(const plan_question *q, const plan_outcome *now, plan_decision *d, plan *out,
                                 nib_error *err) {
    const bool streamed = now->predicted.disk_bytes > 0;
    plan_question other = *q;
    char what[PLAN_NAME];
    if (streamed) {
        other.cap[NIB_TIER_RAM] = NIB_AUTO;
        NIB_TRY(look_at(&other, "no cap on RAM", d, out, err));
    }
    other = *q;
    if (streamed && !q->packed) {
        other.packed = true;
        NIB_TRY(look_at(&other, "a packed file (--scratch)", d, out, err));
    }
    /* another cache or other formats would change the split of the GPU's memory, which is not recomputed here
     */
    for (int i = 1; i < q->n_cache && !q->split; i++) {
        other = *q;
        other.caches[0] = q->caches[i];
        snprintf(what, sizeof what, "--kv %s", plan_kv_name(q->caches[i].kv));
        NIB_TRY(look_at(&other, what, d, out, err));
    }
    for (size_t i = 0; i < NUM_COUNT(qualities); i++) {
        other = *q;
        if (q->split || q->speed > 0 || q->mode == 'b' || q->blocks[0].n_choice < 2 ||
            qualities[i].loss == q->max_loss)
            continue;
        other.may_leave_out = q->mode == 'a' && qualities[i].round;
        other.max_loss = qualities[i].loss;
        other.may_round = qualities[i].round;
        if (q->usual_activation)
            other.activation = 0;
        snprintf(what, sizeof what, "--quality %s", qualities[i].name);
        NIB_TRY(look_at(&other, what, d, out, err));
    }
    return NIB_OK;
}

nib_status plan_make(const plan_question *q, plan *out, nib_error *err) {
    plan_decision d, other;
    plan_outcome o;
    plan p;
    memset(&p, 0, sizeof p);
    memset(&other, 0, sizeof other);
    nib_status status = decision_open(&d, q->n_block, err);
    if (status == NIB_OK)
        status = decision_open(&other, q->n_block, err);
    if (status == NIB_OK)
        status = plan_decide(q, &d, &o, err);
    if (status == NIB_OK && !o.found)
        status = refuse(q, &o, &other, err);
    if (status == NIB_OK)
        status = plan_write_down(q, &d, &o, &p, err);
    if (status == NIB_OK)
        status = look_at_more(q, &other, &p, err);
    if (status == NIB_OK)
        status = look_at_others(q, &o, &other, &p, err);
    if (status == NIB_OK)
        plan_write_notes(q, &d, &o, &p);
    decision_close(&d);
    decision_close(&other);
    if (status == NIB_OK)
        *out = p;
    else
        plan_clear(&p);
    return status;
}
