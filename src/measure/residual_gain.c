/* residual_gain.c - see residual_gain.h. */
#include "measure/residual_gain.h"

#include "base/num.h"
#include "measure/kld_file.h"

#include <math.h>
#include <string.h>

nib_status residual_gain_open(residual_gain *g, nib_engine *e, nib_error *err) {
    const calibration_source from = {.path = engine_path(e),
                                     .container = engine_container(e),
                                     .tokenizer = engine_tokenizer(e),
                                     .n_vocab = nib_engine_info(e)->n_vocab};
    memset(g, 0, sizeof *g);
    if (!from.tokenizer)
        return nib_fail(err, NIB_E_USAGE,
                        "expected an engine with a tokenizer for measuring residuals, found none");
    g->e = e;
    g->n_vocab = from.n_vocab;
    return calibrate(&from, NULL, &g->prompts, err);
}

void residual_gain_close(residual_gain *g) {
    calibration_clear(&g->prompts);
}

int64_t residual_gain_positions(const residual_gain *g) {
    return NUM_MIN(calibration_longest(&g->prompts), nib_engine_info(g->e)->n_ctx);
}

static void score_row(void *user, int64_t position, const float *logits) {
    residual_gain *g = user;
    if (position + 1 >= g->n_token)
        return;
    g->nll += log_sum_exp(logits, g->n_vocab) - (double)logits[g->tokens[position + 1]];
    g->n_scored++;
}

nib_status residual_gain_perplexity(residual_gain *g, double *out, nib_error *err) {
    const calibration *c = &g->prompts;
    g->nll = 0;
    g->n_scored = 0;
    for (int i = 0; i < c->n_prompt; i++) {
        g->tokens = c->tokens + c->begin[i];
        g->n_token = NUM_MIN(c->begin[i + 1] - c->begin[i], residual_gain_positions(g));
        NIB_TRY(nib_session_forward(g->session, g->tokens, (size_t)g->n_token, 0, score_row, g, err));
    }
    *out = g->n_scored > 0 && isfinite(g->nll) ? exp(g->nll / (double)g->n_scored) : NAN;
    return NIB_OK;
}
