/* logprobs.c - writes the text and the log-probability of each token. */
#include "server/logprobs.h"

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

/* JSON has no infinity; OpenAI uses this number instead. The first token of a prompt has no probability. */
static json_t *logprob_json(float x) {
    return isnan(x) ? json_null() : json_real(isinf(x) ? -9999.0 : (double)x);
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

static json_t *token_string(const nib_engine *e, int32_t token) {
    char *text;
    size_t n;
    if (!token_text(e, token, &text, &n))
        return NULL;
    json_t *value = jsonx_string(text, n);
    mem_free(text);
    return value;
}

/* ---- where tokens begin in the text, in characters ---- */

/* Tokens that are decoded together: the first ones of a prompt, because at the beginning of a text some
 * tokenizers drop the space that they have added, and those that share a character. */
typedef struct place {
    const nib_engine *e;
    bool begins; /* nothing of a prompt's text is known yet */
    size_t at;   /* characters before the group */
    size_t n_in; /* characters of the group */
    int32_t group[8];
    size_t n_group;
} place;

static bool ends_in_a_character(const char *text, size_t n) {
    static const char replaced[] = "\xef\xbf\xbd"; /* U+FFFD, which stands for a part of a character */
    return n >= 3 && !memcmp(text + n - 3, replaced, 3);
}

static size_t count_chars(const char *text, size_t n) {
    size_t n_char = 0;
    for (size_t i = 0; i < n; i++)
        n_char += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n_char;
}

/* The text of the next token, and *at, where it begins. NULL: out of memory. */
static json_t *place_token(place *p, int32_t token, size_t *at) {
    char *own = NULL, *all = NULL;
    size_t n_own = 0, n_all = 0;
    *at = p->at + p->n_in;
    p->group[p->n_group++] = token;
    if (!token_text(p->e, token, &own, &n_own))
        return NULL;
    const bool grouped = p->begins || p->n_group > 1;
    const nib_status status =
        grouped ? nib_detokenize(p->e, p->group, p->n_group, &all, &n_all, NULL) : NIB_OK;
    const char *text = all ? all : own;
    const size_t n = all ? n_all : n_own;
    if (status == NIB_E_NOMEM)
        jsonx_lose();
    json_t *value = status == NIB_E_NOMEM       ? NULL
                    : p->begins && p->n_in == 0 ? jsonx_string(text, n)
                                                : jsonx_string(own, n_own);
    p->begins = p->begins && n == 0;
    p->n_in = count_chars(text, n);
    if (p->n_group == NUM_COUNT(p->group) || (!p->begins && !ends_in_a_character(text, n))) {
        p->at += p->n_in;
        p->n_in = p->n_group = 0;
        p->begins = false;
    }
    nib_free(all);
    mem_free(own);
    return value;
}

static json_t *top_json(const answer *a, size_t i) {
    const nib_engine *e = a->of->model->engine;
    json_t *top = json_object();
    for (int32_t k = 0; k < a->of->call.n_top; k++) {
        json_t *name = token_string(e, row(a, i)[1 + k].token);
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
    place p = {.e = a->of->model->engine, .begins = c->echo};
    size_t at;
    for (size_t i = 0; i < a->n_likely; i++) {
        json_t *text = place_token(&p, row(a, i)[0].token, &at);
        if (i < from) {
            json_decref(text);
            continue;
        }
        json_array_append_new(tokens, text);
        json_array_append_new(logprobs, logprob_json(row(a, i)[0].logprob));
        json_array_append_new(tops, c->n_top && !isnan(row(a, i)[0].logprob) ? top_json(a, i) : json_null());
        json_array_append_new(offsets, json_integer((json_int_t)at));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", logprobs, "top_logprobs",
                     tops, "text_offset", offsets);
}
