/* logprobs.c - writes the text and the log-probability of each token. */
#include "server/parts.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

/* A text may lose its leading space, so the token is decoded twice in a row: the text of the second one is
 * complete. */
bool token_text(const nib_engine *e, int32_t token, char **text, size_t *n_byte) {
    const int32_t twice[] = {token, token};
    char *once_text = NULL, *both_text = NULL;
    size_t n_once = 0, n_both = 0;
    const nib_status once = nib_detokenize(e, twice, 1, &once_text, &n_once, NULL);
    const nib_status both = once ? once : nib_detokenize(e, twice, 2, &both_text, &n_both, NULL);
    *n_byte = both == NIB_OK ? n_both - NUM_MIN(n_once, n_both) : 0;
    *text = both == NIB_OK        ? mem_strndup(both_text + n_both - *n_byte, *n_byte)
            : both == NIB_E_USAGE ? mem_strdup("") /* an id without a token */
                                  : NULL;
    nib_free(once_text);
    nib_free(both_text);
    if (!*text)
        jsonx_lose();
    return *text != NULL;
}

/* JSON has no infinity; OpenAI uses this number instead. */
static json_t *logprob_json(float x) {
    return json_real(isinf(x) ? -9999.0 : (double)x);
}

static json_t *bytes_json(const char *text, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer((unsigned char)text[i]));
    return list;
}

/* {"token", "logprob", "bytes"} */
static json_t *candidate_json(const nib_engine *e, nib_candidate c) {
    char *text;
    size_t n;
    if (!token_text(e, c.token, &text, &n))
        return NULL;
    json_t *value = json_pack("{s:o, s:o, s:o}", "token", jsonx_string(text, n), "logprob",
                              logprob_json(c.logprob), "bytes", bytes_json(text, n));
    mem_free(text);
    return value;
}

static const nib_candidate *row(const answer *a, size_t i) {
    return a->likely + i * (1 + (size_t)a->of->call.n_top);
}

static json_t *chat_logprobs(const answer *a, size_t from) {
    const nib_engine *e = a->of->model->engine;
    json_t *list = json_array();
    for (size_t i = from; i < a->n_likely; i++) {
        json_t *value = candidate_json(e, row(a, i)[0]), *top = json_array();
        for (int32_t k = 0; k < a->of->call.n_top; k++)
            json_array_append_new(top, candidate_json(e, row(a, i)[1 + k]));
        if (json_object_set_new(value, "top_logprobs", top) || json_array_append(list, value)) {
            json_decref(list);
            list = NULL;
        }
        json_decref(value);
    }
    return json_pack("{s:o}", "content", list);
}

static json_t *token_string(const nib_engine *e, int32_t token, size_t *n) {
    char *text;
    if (!token_text(e, token, &text, n))
        return NULL;
    json_t *value = jsonx_string(text, *n);
    mem_free(text);
    return value;
}

static json_t *top_json(const answer *a, size_t i) {
    const nib_engine *e = a->of->model->engine;
    json_t *top = json_object();
    size_t n;
    for (int32_t k = 0; k < a->of->call.n_top; k++) {
        json_t *name = token_string(e, row(a, i)[1 + k].token, &n);
        const char *key = json_string_value(name);
        if (key && !json_object_get(top, key)) /* of tokens with the same text the likeliest one */
            json_object_set_new(top, key, logprob_json(row(a, i)[1 + k].logprob));
        json_decref(name);
    }
    return top;
}

json_t *tokens_logprobs(const answer *a, size_t from) {
    const call *c = &a->of->call;
    if (!c->logprobs)
        return json_null();
    if (c->kind == CALL_CHAT)
        return chat_logprobs(a, from);
    json_t *tokens = json_array(), *logprobs = json_array(), *tops = json_array(), *offsets = json_array();
    size_t at = 0, n = 0;
    for (size_t i = 0; i < a->n_likely; i++, at += n) {
        json_t *text = token_string(a->of->model->engine, row(a, i)[0].token, &n);
        if (i < from) {
            json_decref(text);
            continue;
        }
        json_array_append_new(tokens, text);
        json_array_append_new(logprobs, logprob_json(row(a, i)[0].logprob));
        json_array_append_new(tops, c->n_top ? top_json(a, i) : json_null());
        json_array_append_new(offsets, json_integer((json_int_t)at));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", logprobs, "top_logprobs",
                     tops, "text_offset", offsets);
}
