/* prompts.c - from a checked call to the tokens of its prompts. */
#include "server/prompts.h"

#include "base/mem.h"
#include "server/call_parts.h"

#include <string.h>

bool prompt_tokenize(const nib_engine *e, const char *text, const uint8_t *marks, size_t n_byte,
                     unsigned flags, call_tokens *out, fault *why) {
    nib_error err;
    const nib_status status = nib_tokenize_marked(e, text, marks, n_byte, flags, &out->tokens, &out->n, &err);
    if (status == NIB_E_MODEL) /* the text needs more than the tokenizer's bound; the model is checked */
        return fault_set(why, 400, NULL, "the text cannot be tokenized: %s", err.message);
    return status == NIB_OK || fault_engine(why, &err);
}

/* marks: as of nib_tokenize_marked. */
static bool tokenize(const nib_engine *e, const char *text, const uint8_t *marks, size_t n_byte,
                     call_tokens *out, fault *why) {
    return prompt_tokenize(e, text, marks, n_byte, NIB_TOKENIZE_BOS | NIB_TOKENIZE_SPECIAL, out, why);
}

/* Marks the end of the message that is continued, to find it in the rendered text. The space shows whether
 * the template removes white space from messages. */
#define CONTINUED "nibble-continues-this-message "

/* The messages, with the mark in the last one if it is continued; a new reference. NULL: out of memory. */
static json_t *marked_messages(const call *c) {
    const size_t n = json_array_size(c->messages);
    if (!c->continues || n == 0)
        return json_incref(c->messages);
    json_t *all = json_copy(c->messages), *last = json_copy(json_array_get(c->messages, n - 1));
    buffer text = {0};
    const json_t *content = json_object_get(last, "content");
    buffer_add(&text, json_string_value(content), json_string_length(content));
    buffer_text(&text, CONTINUED);
    const bool failed =
        text.no_memory || json_object_set_new(last, "content", json_stringn(text.data, text.n));
    buffer_clear(&text);
    if (!failed && json_array_set(all, n - 1, last) == 0) {
        json_decref(last);
        return all;
    }
    json_decref(last);
    json_decref(all);
    return NULL;
}

/* Cuts the text after the continued message. */
static bool cut_at_mark(char *text, fault *why) {
    const size_t n_mark = strlen(CONTINUED) - 1;
    char *at = NULL;
    for (char *next = text; (next = memmem(next, strlen(next), CONTINUED, n_mark)); next++)
        at = next;
    if (!at)
        return fault_field(why, "messages",
                           "the last message cannot be continued: the model's template does not write it");
    if (strncmp(at, CONTINUED, n_mark + 1) != 0) /* the template removes white space */
        while (at > text && strchr(" \t\r\n", at[-1]))
            at--;
    *at = '\0';
    return true;
}

bool prompt_render(const served *m, const call *c, char **text, uint8_t **marks, fault *why) {
    const nib_engine *e = m->engine;
    nib_error err;
    buffer messages = {0}, tools = {0}, variables = {0};
    if (!nib_engine_info(e)->has_chat_template)
        return fault_set(why, 400, NULL, "the model has no chat template: use /v1/completions");
    buffer_json(&messages, marked_messages(c));
    if (c->tools)
        buffer_json(&tools, json_incref(c->tools));
    if (c->variables)
        buffer_json(&variables, json_incref(c->variables));
    if (messages.no_memory || tools.no_memory || variables.no_memory)
        fault_set(why, 503, NULL, "out of memory");
    else if (nib_chat_render_marked(e, messages.data, tools.data, variables.data, !c->no_new_turn, text,
                                    marks, &err))
        fault_engine(why, &err);
    else if (c->continues)
        cut_at_mark(*text, why);
    buffer_clear(&messages);
    buffer_clear(&tools);
    buffer_clear(&variables);
    return !why->status;
}

static bool ends_with_tag(const char *text, size_t n, const char *tag) {
    while (n && strchr(" \t\r\n", text[n - 1]))
        n--;
    return n >= strlen(tag) && memcmp(text + n - strlen(tag), tag, strlen(tag)) == 0;
}

/* Whether the answer begins inside a thought, which the template or the continued message has begun. */
static bool begins_in_thought(const call *c, const char *text) {
    const json_t *last = json_array_get(c->messages, json_array_size(c->messages) - 1);
    const char *content = c->continues ? json_string_value(json_object_get(last, "content")) : NULL;
    const char *begun = content ? strstr(content, "<think>") : NULL;
    return ends_with_tag(text, strlen(text), "<think>") || (begun && !strstr(begun, "</think>"));
}

/* With what the answer is to begin with. Some templates end with the tag that begins a thought: an answer
 * that is held to a form has none. */
static bool chat_prompt(const served *m, const call *c, call_tokens *out, fault *why) {
    char *text = NULL;
    uint8_t *marks = NULL;
    buffer whole = {0}, origins = {0};
    if (prompt_render(m, c, &text, &marks, why)) {
        buffer_text(&whole, text);
        buffer_add(&origins, marks, whole.n);
        out->thinks = begins_in_thought(c, text);
        if (out->thinks && c->grammar)
            buffer_text(&whole, "\n</think>\n\n");
        out->thinks = out->thinks && !c->grammar;
        buffer_text(&whole, c->prefill ? c->prefill : "");
        while (origins.n < whole.n && !origins.no_memory) /* what the server added */
            buffer_add(&origins, "", 1);
        if (whole.no_memory || origins.no_memory)
            fault_set(why, 503, NULL, "out of memory");
        else
            tokenize(m->engine, whole.data,
                     m->s->options.special_in_messages ? NULL : (const uint8_t *)origins.data, whole.n, out,
                     why);
    }
    buffer_clear(&whole);
    buffer_clear(&origins);
    nib_free(text);
    nib_free(marks);
    return !why->status;
}

bool prompt_count(const served *m, const call *c, size_t *n, fault *why) {
    call_tokens p = {0};
    const bool good = chat_prompt(m, c, &p, why);
    *n = p.n;
    nib_free(p.tokens);
    return good;
}

static bool ids_prompt(const json_t *ids, call_tokens *out, fault *why) {
    size_t i;
    const json_t *id;
    out->n = json_array_size(ids);
    out->tokens = mem_array(out->n, sizeof *out->tokens);
    if (!out->tokens)
        return fault_set(why, 503, NULL, "out of memory");
    json_array_foreach(ids, i, id) {
        out->tokens[i] = json_id(id);
    }
    return true;
}

bool prompt_ids_text(const nib_engine *e, const json_t *ids, buffer *out) {
    call_tokens p = {0};
    char *text = NULL;
    size_t n = 0;
    fault why = {0};
    const nib_status status =
        ids_prompt(ids, &p, &why) ? nib_detokenize(e, p.tokens, p.n, &text, &n, NULL) : NIB_E_NOMEM;
    if (status == NIB_OK)
        buffer_add(out, text, n);
    nib_free(text);
    mem_free(p.tokens);
    return status != NIB_E_NOMEM;
}

static bool check_length(const nib_engine *e, const char *field, const call_tokens *p, fault *why) {
    const long long n_ctx = (long long)nib_engine_info(e)->n_ctx;
    if (p->n == 0)
        return fault_field(why, field, "has no tokens");
    if (p->n <= (size_t)n_ctx)
        return true;
    fault_field(why, field, "the context has %lld tokens, and the prompt has %zu", n_ctx, p->n);
    why->code = "context_length_exceeded";
    return false;
}

size_t prompts_count(const call *c) {
    return c->kind == CALL_CHAT ? 1 : json_array_size(c->prompts);
}

bool prompt_one(const nib_engine *e, const json_t *given, const char *field, call_tokens *out, fault *why) {
    *out = (call_tokens){0};
    if (!json_is_ids(given) && (!json_is_string(given) || json_string_length(given) == 0))
        return fault_field(why, field, "expected a text that is not empty, or token ids, found %s",
                           json_is_string(given) ? "an empty one" : json_type_name(given));
    const bool made = json_is_array(given)
                          ? ids_prompt(given, out, why)
                          : tokenize(e, json_string_value(given), NULL, json_string_length(given), out, why);
    return made && check_length(e, field, out, why);
}

bool prompt_make(const served *m, const call *c, size_t index, call_tokens *out, fault *why) {
    const nib_engine *e = m->engine;
    const json_t *given = json_array_get(c->prompts, index);
    *out = (call_tokens){0};
    const bool made = c->kind == CALL_CHAT ? chat_prompt(m, c, out, why)
                      : json_is_array(given)
                          ? ids_prompt(given, out, why)
                          : tokenize(e, json_string_value(given), NULL, json_string_length(given), out, why);
    return made && check_length(e, c->kind == CALL_CHAT ? "messages" : "prompt", out, why);
}
