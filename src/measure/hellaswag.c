/* hellaswag.c - HellaSwag accuracy; see nib_tools.h. */
#include "nib_tools.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "measure/kld_file.h"
#include "session/session.h"

#include <string.h>

enum { ENDINGS = 4, LINES = 6 };

typedef struct line {
    const char *at;
    size_t n;
} line;

typedef struct swag {
    nib_session *session;
    int64_t n_vocab;
    int32_t *tokens[ENDINGS]; /* context and ending */
    size_t n[ENDINGS];
    int ending;      /* index of the ending that is being scored */
    double log_prob; /* sum over its tokens so far */
} swag;

static void score_row(void *user, int64_t position, const float *logits) {
    swag *s = user;
    const int32_t *tokens = s->tokens[s->ending];
    if ((size_t)position + 1 < s->n[s->ending])
        s->log_prob += (double)logits[tokens[position + 1]] - log_sum_exp(logits, s->n_vocab);
}

static size_t common_prefix(const swag *s) {
    for (size_t i = 0;; i++)
        for (int e = 0; e < ENDINGS; e++)
            if (i >= s->n[e] || s->tokens[e][i] != s->tokens[0][i])
                return i;
}

static nib_status score_endings(swag *s, nib_hellaswag *out, int *best, nib_error *err) {
    const size_t prefix = common_prefix(s);
    double best_mean = 0;
    for (int e = 0; e < ENDINGS; e++) {
        if (prefix == 0 || prefix >= s->n[e])
            return nib_fail(err, NIB_E_USAGE, "task %lld: expected ending %d to add a token to its context",
                            (long long)out->n_done + 1, e);
        s->ending = e;
        s->log_prob = 0;
        out->n_token += (int64_t)s->n[e];
        NIB_TRY(
            nib_session_forward(s->session, s->tokens[e], s->n[e], (int64_t)prefix - 1, score_row, s, err));
        const double mean = s->log_prob / (double)(s->n[e] - prefix);
        if (e == 0 || mean > best_mean) {
            best_mean = mean;
            *best = e;
        }
    }
    return NIB_OK;
}

/* Tokenizes "CONTEXT ENDING". */
static nib_status tokenize(swag *s, int e, const line *context, const line *ending, nib_error *err) {
    const size_t n = context->n + 1 + ending->n;
    char *text = mem_alloc(n);
    if (!text)
        return nib_fail_nomem(err, n, "a HellaSwag task");
    memcpy(text, context->at, context->n);
    text[context->n] = ' ';
    memcpy(text + context->n + 1, ending->at, ending->n);
    const nib_status status =
        nib_tokenize(s->session->engine, text, n, NIB_TOKENIZE_BOS, &s->tokens[e], &s->n[e], err);
    mem_free(text);
    return status;
}

static nib_status one_task(swag *s, const line *task, nib_hellaswag *out, int *best, nib_error *err) {
    nib_status status = NIB_OK;
    memset(s->tokens, 0, sizeof s->tokens);
    for (int e = 0; e < ENDINGS && !status; e++)
        status = tokenize(s, e, &task[0], &task[2 + e], err);
    if (!status)
        status = score_endings(s, out, best, err);
    for (int e = 0; e < ENDINGS; e++)
        nib_free(s->tokens[e]);
    return status;
}

/* Finds the next line that is not empty; false: none. */
static bool next_line(const char **at, const char *end, line *out) {
    const char *p = *at;
    while (p < end && (*p == '\n' || *p == '\r'))
        p++;
    out->at = p;
    while (p < end && *p != '\n' && *p != '\r')
        p++;
    out->n = (size_t)(p - out->at);
    *at = p;
    return out->n > 0;
}

static nib_status check_form(const char *text, size_t n_byte, int64_t max_task, nib_hellaswag *out,
                             nib_error *err) {
    int64_t n = 0;
    line l;
    for (const char *at = text; next_line(&at, text + n_byte, &l); n++)
        if (n % LINES == 1 && (l.n != 1 || *l.at < '0' || *l.at >= '0' + ENDINGS))
            return nib_fail(err, NIB_E_USAGE,
                            "line %lld: expected the index of an ending (0 to 3), found '%.*s'",
                            (long long)n + 1, (int)NUM_MIN(l.n, 40), l.at);
    if (!n || n % LINES)
        return nib_fail(err, NIB_E_USAGE, "expected a multiple of %d lines, found %lld", LINES, (long long)n);
    out->n_task = max_task > 0 ? NUM_MIN(n / LINES, max_task) : n / LINES;
    return NIB_OK;
}

nib_status nib_session_hellaswag(nib_session *session, const char *text, size_t n_byte,
                                 const nib_hellaswag_options *how, nib_hellaswag *out, nib_error *err) {
    swag s = {.session = session, .n_vocab = nib_engine_info(session->engine)->n_vocab};
    const double start = time_now();
    *out = (nib_hellaswag){0};
    NIB_TRY(check_form(text, n_byte, how->max_task, out, err));
    for (const char *at = text; out->n_done < out->n_task;) {
        line task[LINES];
        int best = 0;
        for (int i = 0; i < LINES; i++)
            next_line(&at, text + n_byte, &task[i]);
        const nib_status status = one_task(&s, task, out, &best, err);
        out->seconds = time_now() - start;
        if (status)
            return status;
        out->n_right += best == *task[1].at - '0';
        out->n_done++;
        if (how->on_task && !how->on_task(how->user, out))
            return nib_fail(err, NIB_E_CANCELLED, "cancelled after %lld of %lld tasks",
                            (long long)out->n_done, (long long)out->n_task);
    }
    return NIB_OK;
}
