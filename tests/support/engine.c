/* engine.c - see engine.h. */
#include "engine.h"

#include "support/faults.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <string.h>

#include <cmocka.h>

nib_engine_options engine_usual(void) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    o.n_thread = 2;
    o.n_batch = 16;
    o.packed = NIB_PACKED_OFF;
    return o;
}

nib_engine *engine_must_open(const char *path, const nib_engine_options *o, const plan *p) {
    nib_engine *e = NULL;
    nib_error err = {0};
    if (engine_open(path, o, &(engine_internal){.plan = p}, &e, &err))
        fail_msg("%s: %s", path, err.message);
    return e;
}

nib_session *session_must_open(nib_engine *e) {
    nib_session *s = NULL;
    nib_error err = {0};
    if (nib_session_open(e, NULL, &s, &err))
        fail_msg("%s", err.message);
    return s;
}

int64_t session_must_compute(nib_session *s, const int32_t *tokens, int n) {
    nib_generate_options o;
    nib_error err = {0};
    nib_result r;
    nib_generate_options_init(&o);
    o.prompt = tokens;
    o.n_prompt = (size_t)n;
    o.n_predict = 0;
    if (nib_generate(s, &o, &r, &err))
        fail_msg("%s", err.message);
    const int64_t n_computed = r.prompt_n;
    nib_result_clear(&r);
    return n_computed;
}

nib_batch *batch_must_open(nib_engine *e, const nib_batch_options *o) {
    nib_batch *b = NULL;
    nib_error err = {0};
    if (nib_batch_open(e, o, &b, &err))
        fail_msg("%s", err.message);
    return b;
}

/* It differs if any weight is wrong; with a shortlist it is the one logit that always exists. */
static void made_highest(const nib_session *s, int64_t n_vocab) {
    const float *logits = nib_session_logits(s);
    if (!logits) /* the back end returned the best logits only */
        return;
    float highest = logits[0];
    for (int64_t i = 1; i < n_vocab; i++)
        highest = fmaxf(highest, logits[i]);
    fault_made(&highest, sizeof highest);
}

nib_status engine_life(const char *path, const nib_engine_options *o, const nib_sampling *how, int64_t n,
                       nib_result *result, nib_error *err) {
    static const int32_t prompt[] = {1, 2, 3, 4, 5};
    nib_engine *e = NULL;
    nib_session *s = NULL;
    memset(result, 0, sizeof *result);
    nib_status status = nib_engine_open(path, o, &e, err);
    if (status == NIB_OK)
        status = nib_session_open(e, NULL, &s, err);
    if (status == NIB_OK) {
        nib_generate_options g;
        nib_generate_options_init(&g);
        g.prompt = prompt;
        g.n_prompt = 5;
        g.n_predict = n;
        g.ignore_eos = true;
        if (how)
            g.sampling = *how;
        status = nib_generate(s, &g, result, err);
    }
    if (status == NIB_OK) {
        fault_made(result->tokens, result->n_token * sizeof *result->tokens);
        made_highest(s, nib_engine_info(e)->n_vocab);
    }
    nib_session_close(s);
    nib_engine_close(e);
    return status;
}
