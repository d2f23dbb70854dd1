/* residual_tuning.c - tunes residuals for a requested slowdown: runs the tuner (plan/tune.h) on tokens that
 * the engine itself generates, so the measured slowdown is that of a run. */
#include "nib_tools.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/num.h"
#include "engine/engine.h"
#include "measure/residual_gain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PREFIX = 16,   /* positions in the cache before the first timed step */
    MIN_STEP = 5,  /* minimum number of steps (or pairs of steps) of a measurement */
    MAX_STEP = 24, /* maximum number */
    POSITIONS = PREFIX + 2 * MAX_STEP + 8,
    KEPT_STEPS = 64,
    SCORED_STEPS = 12 /* number of these, evenly spaced, whose perplexity is measured */
};
#define ENOUGH_S 0.06 /* total seconds of steps from which on MIN_STEP suffices */

/* A choice, its slowdown and its perplexity. */
typedef struct kept_step {
    tune_choice choice;
    double slowdown, ppl; /* NAN: not measured */
} kept_step;

typedef struct tuning {
    nib_engine *e;
    nib_session *session;
    int32_t tokens[POSITIONS];
    const residual_kinds *kinds;
    kept_step steps[KEPT_STEPS]; /* the latest ones */
    int n_step;
    double base_s; /* seconds of a token without residuals, on the processor; 0: not measured */
    double max_s, without,
        with; /* time limit; perplexities without residuals and with the choice, NAN: not measured */
    residual_gain gain;
} tuning;

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prepares timing. The first passes warm up: a GPU records the second pass of a kind as a graph. */
static nib_status begin_steps(tuning *t, const tune_choice *choice, nib_error *err) {
    engine_residuals_choose(t->e, choice);
    NIB_TRY(nib_session_sync(t->session, t->tokens, PREFIX, err));
    NIB_TRY(nib_session_sync(t->session, t->tokens, PREFIX + 1, err));
    return nib_session_sync(t->session, t->tokens, PREFIX + 2, err);
}

/* Times the i-th step after begin_steps. */
static nib_status time_step(tuning *t, int i, double *seconds, nib_error *err) {
    const double start = time_now();
    NIB_TRY(nib_session_sync(t->session, t->tokens, (size_t)(PREFIX + 3 + i), err));
    *seconds = time_now() - start;
    return NIB_OK;
}

/* Measures the seconds of one generated token: the lower quartile of several, because other processes disturb
 * some. */
static nib_status time_alone(tuning *t, const tune_choice *choice, double *seconds, nib_error *err) {
    double took[MAX_STEP], sum = 0;
    int n = 0;
    NIB_TRY(begin_steps(t, choice, err));
    for (; n < MAX_STEP && (n < MIN_STEP || sum < ENOUGH_S); sum += took[n++])
        NIB_TRY(time_step(t, n, &took[n], err));
    qsort(took, (size_t)n, sizeof *took, by_value);
    *seconds = took[n / 4];
    return NIB_OK;
}

static bool is_nothing(const tuning *t, const tune_choice *c) {
    for (int i = 0; i < t->kinds->n; i++)
        if (c->k_chunk[i] > 0)
            return false;
    return true;
}

/* A processor's speed drifts by more than the slowdowns in question. So a choice and no residuals alternate
 * token by token, and the result is the median of the ratios of pairs. */
static nib_status time_in_turns(tuning *t, const tune_choice *choice, double *seconds, nib_error *err) {
    const tune_choice none = {{0}, {0}};
    double ratio[MAX_STEP], sum = 0;
    int n = 0;
    if (t->base_s == 0)
        NIB_TRY(time_alone(t, &none, &t->base_s, err));
    *seconds = t->base_s;
    if (is_nothing(t, choice))
        return NIB_OK;
    NIB_TRY(begin_steps(t, choice, err));
    for (; n < MAX_STEP && (n < MIN_STEP || sum < 2 * ENOUGH_S); n++) {
        double took[2]; /* without, with */
        for (int i = 0; i < 2; i++) {
            const int with = (n + i) % 2;
            engine_residuals_choose(t->e, with ? choice : &none);
            NIB_TRY(time_step(t, 2 * n + i, &took[with], err));
        }
        ratio[n] = took[1] / took[0];
        sum += took[0] + took[1];
    }
    qsort(ratio, (size_t)n, sizeof *ratio, by_value);
    *seconds *= ratio[n / 2];
    return NIB_OK;
}

/* A GPU must record its launches again for another choice, so it is not timed in turns. */
static nib_status time_steps(void *user, const tune_choice *choice, double *seconds, nib_error *err) {
    tuning *t = user;
    return engine_fetch_blocks(t->e) > 1 ? time_alone(t, choice, seconds, err)
                                         : time_in_turns(t, choice, seconds, err);
}

static json_t *kinds_json(const tuning *t, const tune_choice *c) {
    json_t *kinds = json_array();
    bool ok = true;
    for (int i = 0; i < t->kinds->n; i++) {
        json_t *one = json_object();
        const bool whole = jsonx_put(one, "products", json_string(t->kinds->names[i])) &&
                           jsonx_put(one, "k_chunk", json_integer(c->k_chunk[i])) &&
                           jsonx_put(one, "n_tb", json_integer(c->k_chunk[i] ? c->n_tb[i] : 0));
        ok = jsonx_add(kinds, jsonx_whole(one, whole)) && ok;
    }
    return jsonx_whole(kinds, ok);
}

static void keep_step(void *user, const tune_choice *c, double seconds, double base) {
    tuning *t = user;
    if (t->n_step == KEPT_STEPS)
        memmove(t->steps, t->steps + 1, (size_t)--t->n_step * sizeof *t->steps);
    t->steps[t->n_step++] = (kept_step){*c, seconds / base - 1, NAN};
}

/* ---- the gain in quality ---- */

static nib_status score(tuning *t, const tune_choice *c, double *ppl, nib_error *err) {
    engine_residuals_choose(t->e, c);
    return residual_gain_perplexity(&t->gain, ppl, err);
}

/* Measures the perplexity without residuals, with the choice, then of some steps, while time is left. */
static nib_status score_all(tuning *t, const tune_choice *chosen, nib_error *err) {
    const tune_choice none = {{0}, {0}};
    const double start = time_now();
    const int n = NUM_MIN(t->n_step, (int)SCORED_STEPS);
    NIB_TRY(score(t, &none, &t->without, err));
    NIB_TRY(score(t, chosen, &t->with, err));
    for (int i = 0; i < n && time_now() - start < t->max_s; i++) {
        kept_step *s = &t->steps[n > 1 ? i * (t->n_step - 1) / (n - 1) : 0];
        NIB_TRY(score(t, &s->choice, &s->ppl, err));
    }
    return NIB_OK;
}

/* ---- the document ---- */

static bool put_bytes(json_t *to, const char *name, uint64_t bytes) {
    return jsonx_put(to, name, json_integer((json_int_t)bytes));
}

static bool put_perplexity(json_t *to, const char *name, double ppl) {
    return isnan(ppl) || jsonx_put(to, name, json_real(ppl));
}

static json_t *steps_json(const tuning *t) {
    json_t *steps = json_array();
    bool ok = true;
    for (int i = 0; i < t->n_step; i++) {
        const kept_step *s = &t->steps[i];
        json_t *one = json_object();
        const bool whole = jsonx_put(one, "slowdown", json_real(s->slowdown)) &&
                           put_perplexity(one, "perplexity", s->ppl) &&
                           put_bytes(one, "read", engine_residual_read(t->e, &s->choice)) &&
                           jsonx_put(one, "kinds", kinds_json(t, &s->choice));
        ok = jsonx_add(steps, jsonx_whole(one, whole)) && ok;
    }
    return jsonx_whole(steps, ok);
}

static nib_status answer(const tuning *t, const tuned *found, char **json, nib_error *err) {
    json_t *of = json_object();
    const bool whole = jsonx_put(of, "slowdown", json_real(found->seconds / found->base - 1)) &&
                       jsonx_put(of, "kinds", kinds_json(t, &found->choice)) &&
                       jsonx_put(of, "token_s", json_real(found->base)) &&
                       put_bytes(of, "ram", engine_residual_bytes(t->e)) &&
                       put_bytes(of, "read", engine_residual_read(t->e, &found->choice)) &&
                       put_perplexity(of, "perplexity", t->with) &&
                       put_perplexity(of, "perplexity_without", t->without) &&
                       jsonx_put(of, "steps", steps_json(t));
    of = jsonx_whole(of, whole);
    *json = of ? jsonx_text(of, JSON_REAL_PRECISION(7)) : NULL;
    json_decref(of);
    return *json ? NIB_OK : nib_fail_nomem(err, 64, "what residuals were tuned to");
}

static nib_status run(tuning *t, double slowdown, char **json, nib_error *err) {
    nib_session_options how = {.n_ctx = POSITIONS};
    tuned found;
    if (t->max_s > 0) {
        NIB_TRY(residual_gain_open(&t->gain, t->e, err));
        how.n_ctx = NUM_MAX(how.n_ctx, residual_gain_positions(&t->gain));
    }
    NIB_TRY(nib_session_open(t->e, &how, &t->session, err));
    t->gain.session = t->session;
    const tune_problem problem = {.kinds = t->kinds->kinds,
                                  .n_kind = t->kinds->n,
                                  .max_blocks = engine_fetch_blocks(t->e),
                                  .max_k = engine_max_channels(t->e),
                                  .target = slowdown,
                                  .time = time_steps,
                                  .step = keep_step,
                                  .user = t};
    NIB_TRY(tune(&problem, &found, err));
    if (t->max_s > 0)
        NIB_TRY(score_all(t, &found.choice, err));
    engine_residuals_settle(t->e, &found.choice);
    return answer(t, &found, json, err);
}

nib_status nib_residuals_tune(nib_engine *e, double slowdown, double max_s, char **json, nib_error *err) {
    *json = NULL;
    const residual_kinds *kinds = engine_has_weights(e) ? engine_residual_kinds(e) : NULL;
    if (!kinds || kinds->n == 0)
        return nib_fail(err, NIB_E_USAGE,
                        "expected an engine with residuals, found none: name their original");
    if (engine_has_planned_residuals(e))
        return nib_fail(err, NIB_E_USAGE,
                        "the plan has chosen the channels of residuals: expected an engine without it");
    tuning *t = mem_calloc(1, sizeof *t);
    if (!t)
        return nib_fail_nomem(err, sizeof *t, "the tuner");
    *t = (tuning){
        .e = e, .kinds = kinds, .without = NAN, .with = NAN, .max_s = engine_tokenizer(e) ? max_s : 0};
    const int64_t n_vocab = nib_engine_info(e)->n_vocab;
    for (int i = 0; i < POSITIONS; i++)
        t->tokens[i] = (int32_t)((1 + 7919 * (int64_t)i) % n_vocab);
    const nib_status status = run(t, slowdown, json, err);
    nib_session_close(t->session);
    residual_gain_close(&t->gain);
    mem_free(t);
    return status;
}
