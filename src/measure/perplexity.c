/* perplexity.c - perplexity and KL divergence of a text; see nib_tools.h. */
#include "nib_tools.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "measure/kld_file.h"
#include "session/session.h"

#include <math.h>
#include <string.h>

typedef struct scoring {
    const nib_perplexity_options *how;
    nib_perplexity *out;
    int64_t n_vocab;
    int32_t *chunk;    /* [n_ctx]: the current chunk */
    double nll, nll2;  /* sums of -log p and of its square */
    kld_file *kld;     /* NULL: none */
    nib_status status; /* of kld_row */
    nib_error err;
} scoring;

static void score_row(void *user, int64_t position, const float *logits) {
    scoring *s = user;
    if (position + 1 >= s->how->n_ctx || s->status)
        return;
    const int32_t target = s->chunk[position + 1];
    const double nll = log_sum_exp(logits, s->n_vocab) - (double)logits[target];
    s->nll += nll;
    s->nll2 += nll * nll;
    s->out->n_scored++;
    if (s->kld)
        s->status = kld_row(s->kld, logits, target, &s->err);
}

/* Computes perplexity and its standard error, which follows from the standard error of the mean. */
static void summarise(scoring *s) {
    const double n = (double)s->out->n_scored, mean = s->nll / n, variance = s->nll2 / n - mean * mean;
    s->out->ppl = n > 0 ? exp(mean) : NAN;
    s->out->stderr_ppl = n <= 0 ? NAN : n > 1 && variance > 0 ? sqrt(variance / (n - 1)) * exp(mean) : 0;
}

static nib_status score_chunk(scoring *s, nib_session *session, const int32_t *tokens, nib_error *err) {
    const nib_model_info *info = nib_engine_info(session->engine);
    const int64_t n_ctx = s->how->n_ctx;
    memcpy(s->chunk, tokens, (size_t)n_ctx * sizeof *tokens);
    if (info->add_bos)
        s->chunk[0] = info->bos;
    const nib_status status =
        nib_session_forward(session, s->chunk, (size_t)n_ctx, n_ctx / 2, score_row, s, err);
    if (!status && s->status && err)
        *err = s->err;
    return status ? status : s->status;
}

static nib_status score_chunks(scoring *s, nib_session *session, const int32_t *tokens, nib_error *err) {
    const double start = time_now();
    nib_status status = NIB_OK;
    for (int64_t c = 0; c < s->out->n_chunk && !status; c++) {
        status = score_chunk(s, session, tokens + c * s->how->n_ctx, err);
        s->out->n_done += !status;
        s->out->seconds = time_now() - start;
        summarise(s);
        if (!status && s->how->on_chunk && !s->how->on_chunk(s->how->user, s->out))
            status = nib_fail(err, NIB_E_CANCELLED, "cancelled after %lld of %lld chunks",
                              (long long)s->out->n_done, (long long)s->out->n_chunk);
    }
    return status;
}

static nib_status finish(scoring *s, bool saving, nib_error *err) {
    kld_stats stats = {0};
    NIB_TRY(kld_close(s->kld, &stats, err));
    s->out->saved = saving;
    s->out->compared = !saving;
    s->out->kld = stats.mean;
    s->out->stderr_kld = stats.stderr_mean;
    s->out->max_kld = stats.max;
    s->out->same_top = stats.same_top;
    s->out->base_ppl = stats.base_ppl;
    return NIB_OK;
}

nib_status nib_session_perplexity(nib_session *session, const int32_t *tokens, size_t n_token,
                                  const nib_perplexity_options *how, nib_perplexity *out, nib_error *err) {
    *out = (nib_perplexity){.ppl = NAN, .stderr_ppl = NAN};
    if (how->n_ctx < 4 || (int64_t)n_token < how->n_ctx)
        return nib_fail(err, NIB_E_USAGE,
                        "expected chunks of at least 4 tokens and a text of at least one chunk, found chunks "
                        "of %lld and %zu tokens",
                        (long long)how->n_ctx, n_token);
    out->n_chunk = (int64_t)n_token / how->n_ctx;
    if (how->max_chunk > 0)
        out->n_chunk = NUM_MIN(out->n_chunk, how->max_chunk);
    scoring s = {.how = how, .out = out, .n_vocab = nib_engine_info(session->engine)->n_vocab};
    bool saving = false;
    s.chunk = mem_array((size_t)how->n_ctx, sizeof *s.chunk);
    if (!s.chunk)
        return nib_fail_nomem(err, (size_t)how->n_ctx * sizeof *s.chunk, "a chunk of tokens");
    nib_status status = NIB_OK;
    if (how->kld_base)
        status = kld_open(how->kld_base, tokens, out->n_chunk * how->n_ctx, how->n_ctx, s.n_vocab, &saving,
                          &s.kld, err);
    if (!status)
        status = score_chunks(&s, session, tokens, err);
    if (!status && s.kld)
        status = finish(&s, saving, err);
    else if (s.kld)
        kld_abort(s.kld);
    mem_free(s.chunk);
    return status;
}
