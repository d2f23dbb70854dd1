/* conversation.c - messages and their tokens, see conversation.h. */
#include "cli/chat/conversation.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/status.h"
#include "cli/cli.h"

#include <string.h>

static nib_status no_memory(nib_error *err) {
    return nib_fail(err, NIB_E_NOMEM, "out of memory for the conversation");
}

nib_status conversation_init(conversation *c, const nib_engine *engine, bool special, nib_error *err) {
    *c = (conversation){engine, special, json_array()};
    return c->messages ? NIB_OK : no_memory(err);
}

void conversation_deinit(conversation *c) {
    json_decref(c->messages);
    c->messages = NULL;
}

nib_status conversation_copy(const conversation *from, conversation *to, nib_error *err) {
    *to = (conversation){from->engine, from->special, json_copy(from->messages)};
    return to->messages ? NIB_OK : no_memory(err);
}

void conversation_replace(conversation *c, conversation *by) {
    conversation_deinit(c);
    *c = *by;
    by->messages = NULL;
}

static const char *role_of(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

/* Number of messages before the first question: 1 with a system message, else 0. */
static size_t n_before(const conversation *c) {
    return !strcmp(role_of(json_array_get(c->messages, 0)), "system");
}

/* Makes a JSON string without NULs, since templates get NUL-terminated strings. */
static json_t *content_json(const char *text, size_t n_byte) {
    static const char replacement[] = "\xEF\xBF\xBD";
    if (!memchr(text, 0, n_byte))
        return jsonx_string(text, n_byte);
    char *clean = mem_array(n_byte, sizeof replacement - 1);
    size_t n = 0;
    for (size_t i = 0; clean && i < n_byte; i++) {
        const size_t wide = text[i] ? 1 : sizeof replacement - 1;
        memcpy(clean + n, text[i] ? text + i : replacement, wide);
        n += wide;
    }
    json_t *json = clean ? jsonx_string(clean, n) : NULL;
    mem_free(clean);
    return json;
}

nib_status conversation_add(conversation *c, const char *role, const char *text, size_t n_byte,
                            nib_error *err) {
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", content_json(text, n_byte));
    return json_array_append_new(c->messages, message) ? no_memory(err) : NIB_OK;
}

nib_status conversation_begin(conversation *c, const char *system, nib_error *err) {
    json_array_clear(c->messages);
    return system && *system ? conversation_add(c, "system", system, strlen(system), err) : NIB_OK;
}

void conversation_forget(conversation *c) {
    for (const size_t keep = n_before(c); json_array_size(c->messages) > keep;)
        conversation_remove_last(c);
}

const char *conversation_last(const conversation *c, const char *role) {
    const size_t n = json_array_size(c->messages);
    const json_t *last = n ? json_array_get(c->messages, n - 1) : NULL;
    return strcmp(role_of(last), role) ? NULL : json_string_value(json_object_get(last, "content"));
}

void conversation_remove_last(conversation *c) {
    const size_t n = json_array_size(c->messages);
    if (n)
        json_array_remove(c->messages, n - 1);
}

static nib_status render(const conversation *c, char **text, uint8_t **marks, nib_error *err) {
    char *json = jsonx_text(c->messages, JSON_COMPACT);
    if (!json)
        return no_memory(err);
    const nib_status status = nib_chat_render_marked(c->engine, json, NULL, NULL, true, text, marks, err);
    mem_free(json);
    return status;
}

nib_status conversation_check(const conversation *c, nib_error *err) {
    conversation trial;
    char *text = NULL;
    uint8_t *marks = NULL;
    nib_status status = conversation_copy(c, &trial, err);
    if (status == NIB_OK && !conversation_last(&trial, "user"))
        status = conversation_add(&trial, "user", "Hi", 2, err);
    if (status == NIB_OK)
        status = render(&trial, &text, &marks, err);
    nib_free(text);
    nib_free(marks);
    conversation_deinit(&trial);
    return status;
}

/* Appends a text of a message to a rendered conversation. */
static nib_status append_marked(char **text, uint8_t **marks, const char *more, nib_error *err) {
    const size_t n = strlen(*text), n_more = strlen(more);
    size_t cap_text = n + 1, cap_marks = n;
    if (mem_grow((void **)text, &cap_text, n + n_more + 1, 1) ||
        mem_grow((void **)marks, &cap_marks, n + n_more, 1))
        return no_memory(err);
    memcpy(*text + n, more, n_more + 1);
    memset(*marks + n, 1, n_more);
    return NIB_OK;
}

nib_status conversation_tokens(const conversation *c, const char *begun, int32_t **tokens, size_t *n_token,
                               nib_error *err) {
    char *text = NULL;
    uint8_t *marks = NULL;
    nib_status status = render(c, &text, &marks, err);
    if (status == NIB_OK && begun)
        status = append_marked(&text, &marks, begun, err);
    if (status == NIB_OK)
        status = nib_tokenize_marked(c->engine, text, c->special ? NULL : marks, strlen(text),
                                     NIB_TOKENIZE_BOS | NIB_TOKENIZE_SPECIAL, tokens, n_token, err);
    nib_free(text);
    nib_free(marks);
    return status;
}

/* Approximate size of a message in bytes of text, with the template's markers. */
static double size_of(const json_t *message) {
    enum { AROUND = 16 };
    return (double)json_string_length(json_object_get(message, "content")) + AROUND;
}

/* Removes the oldest question with its answer and returns their size; 0: only the newest question is left. */
static double drop_oldest(conversation *c) {
    const size_t n = json_array_size(c->messages), first = n_before(c);
    size_t next = first + 1;
    double size = 0;
    while (next < n && strcmp(role_of(json_array_get(c->messages, next)), "user"))
        next++;
    for (size_t i = first; next < n && i < next; i++) {
        size += size_of(json_array_get(c->messages, first));
        json_array_remove(c->messages, first);
    }
    return size;
}

/* Removes the oldest questions, at least one and about `share` of the whole, and returns their number. */
static int drop_share(conversation *c, double share) {
    double all = 0, dropped = 0, size;
    int n = 0;
    for (size_t i = 0; i < json_array_size(c->messages); i++)
        all += size_of(json_array_get(c->messages, i));
    while ((n == 0 || dropped < share * all) && (size = drop_oldest(c)) > 0) {
        dropped += size;
        n++;
    }
    return n;
}

/* Removing the oldest turns changes the beginning, so the session computes everything again. Enough is
 * removed at once that the next turns also fit. The newest question alone may use some of the answer's
 * positions. */
nib_status conversation_fit(conversation *c, const char *begun, int64_t n_ctx, int64_t n_answer,
                            int32_t **tokens, size_t *n_token, int *n_dropped, nib_error *err) {
    const int64_t n_max = n_ctx - NUM_MIN(n_answer, n_ctx / 4), less = n_max * 3 / 4;
    *tokens = NULL;
    *n_dropped = 0;
    for (;;) {
        NIB_TRY(conversation_tokens(c, begun, tokens, n_token, err));
        const int64_t n = (int64_t)*n_token;
        if (n <= (*n_dropped ? less : n_max))
            return NIB_OK;
        const int dropped = drop_share(c, (double)(n - less) / (double)n);
        if (dropped == 0 && n < n_ctx)
            return NIB_OK;
        nib_free(*tokens);
        *tokens = NULL;
        if (dropped == 0)
            return nib_fail(err, NIB_E_USAGE,
                            "the message needs %lld tokens, the context holds %lld (-c makes it longer)",
                            (long long)n, (long long)n_ctx);
        *n_dropped += dropped;
    }
}
