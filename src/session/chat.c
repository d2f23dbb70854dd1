/* chat.c - renders a conversation as text with the checkpoint's own template. */
#include "engine/engine.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "jinja/template.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_TEMPLATE = 4 << 20 };

/* Finds the template's text. *owned: NULL, or memory that the caller frees with mem_free. */
static nib_status find_template(const nib_engine *e, const char **source, char **owned, size_t *n_byte,
                                nib_error *err) {
    const container *c = engine_container(e);
    *owned = NULL;
    *source = container_meta_str(c, "tokenizer.chat_template");
    if (!*source)
        *source = container_meta_str(c, "tokenizer_config.chat_template");
    if (*source) {
        *n_byte = strlen(*source);
        return NIB_OK;
    }
    const char *folder = engine_path(e);
    char *path = path_is_dir(folder) ? path_join(folder, "chat_template.jinja") : NULL;
    nib_status status = NIB_OK;
    if (path && path_exists(path)) {
        status = file_read_all(path, MAX_TEMPLATE, owned, n_byte, err);
        *source = *owned;
    } else {
        status = nib_fail(err, NIB_E_NOTFOUND, "%s: the model has no chat template", folder);
    }
    mem_free(path);
    return status;
}

static json_t *piece_json(const nib_engine *e, int32_t token) {
    size_t n = 0;
    const char *piece = nib_token_piece(e, token, &n);
    json_t *text = piece ? json_stringn(piece, n) : NULL;
    return text ? text : json_string("");
}

/* Parses a text of the caller, which must have this type; text NULL: null. */
static nib_status parse(const char *what, const char *text, json_type type, json_t **out, nib_error *err) {
    *out = json_null();
    if (!text)
        return NIB_OK;
    nib_status status = jsonx_parse(text, strlen(text), out, err);
    if (status == NIB_OK && json_typeof(*out) != type) {
        json_decref(*out);
        *out = json_null();
        status = nib_fail(err, NIB_E_USAGE, "%s: expected a JSON %s, found another value", what,
                          type == JSON_ARRAY ? "array" : "object");
    } else if (status == NIB_E_MODEL) { /* the text comes from the caller, not from the model */
        status = NIB_E_USAGE;
        if (err)
            err->status = status;
        status = nib_fail_prefix(err, status, what);
    }
    return status;
}

/* Templates read the reasoning of a message under one of two names, so a message with one of them gets the
 * other too. */
static nib_status name_thoughts(json_t *messages, nib_error *err) {
    static const char *const names[2] = {"reasoning_content", "thinking"};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        for (int n = 0; n < 2; n++) {
            json_t *thought = json_object_get(message, names[n]);
            if (json_is_string(thought) && !json_object_get(message, names[1 - n]) &&
                json_object_set(message, names[1 - n], thought))
                return nib_fail_nomem(err, json_string_length(thought), "the conversation");
        }
    }
    return NIB_OK;
}

static nib_status render(const char *source, size_t n_byte, const json_t *own, const json_t *variables,
                         template_text *out, nib_error *err) {
    template *t = NULL;
    NIB_TRY(template_parse(source, n_byte, &t, err));
    nib_status status = template_render(t, own, variables, (int64_t)time(NULL), out, err);
    template_free(t);
    if (status == NIB_OK && memchr(out->text, 0, out->n_byte)) {
        template_text_clear(out);
        status = nib_fail(err, NIB_E_USAGE, "messages: expected texts without NUL, found one");
    }
    return status;
}

/* Adds the caller's variables, a JSON object; NULL: none. */
static nib_status add_variables(json_t *all, const json_t *own, const char *text, nib_error *err) {
    json_t *more = NULL, *value;
    const char *name;
    nib_status status = parse("variables", text, JSON_OBJECT, &more, err);
    json_object_foreach(more, name, value) {
        if (status == NIB_OK && (json_object_get(all, name) || json_object_get(own, name)))
            status = nib_fail(err, NIB_E_USAGE,
                              "variables: expected other names than the template's own, found '%.60s'", name);
        else if (status == NIB_OK && json_object_set(all, name, value))
            status = nib_fail_nomem(err, strlen(text), "the template's variables");
    }
    json_decref(more);
    return status;
}

nib_status nib_chat_template(const nib_engine *e, char **out, nib_error *err) {
    const char *source;
    char *owned;
    size_t n_byte;
    NIB_TRY(find_template(e, &source, &owned, &n_byte, err));
    *out = mem_strndup(source, n_byte);
    mem_free(owned);
    return *out ? NIB_OK : nib_fail_nomem(err, n_byte, "the chat template");
}

nib_status nib_chat_render(const nib_engine *e, const char *messages, const char *tools,
                           bool add_generation_prompt, char **text, nib_error *err) {
    uint8_t *marks = NULL;
    nib_status status =
        nib_chat_render_marked(e, messages, tools, NULL, add_generation_prompt, text, &marks, err);
    mem_free(marks);
    return status;
}

nib_status nib_chat_render_marked(const nib_engine *e, const char *messages, const char *tools,
                                  const char *variables, bool add_generation_prompt, char **text,
                                  uint8_t **marks, nib_error *err) {
    const char *source;
    char *owned;
    size_t n_byte;
    json_t *m = NULL, *t = NULL;
    template_text out = {0};
    NIB_TRY(find_template(e, &source, &owned, &n_byte, err));
    nib_status status = parse("messages", messages, JSON_ARRAY, &m, err);
    if (status == NIB_OK)
        status = name_thoughts(m, err);
    if (status == NIB_OK)
        status = parse("tools", tools, JSON_ARRAY, &t, err);
    if (status == NIB_OK) {
        json_t *own = json_pack("{s:o, s:o}", "bos_token", piece_json(e, nib_engine_info(e)->bos),
                                "eos_token", piece_json(e, nib_engine_info(e)->eos));
        json_t *all = json_pack("{s:O, s:O, s:n, s:b}", "messages", m, "tools", t, "documents",
                                "add_generation_prompt", add_generation_prompt);
        status = own && all ? add_variables(all, own, variables, err)
                            : nib_fail_nomem(err, n_byte, "the conversation");
        if (status == NIB_OK)
            status = render(source, n_byte, own, all, &out, err);
        json_decref(own);
        json_decref(all);
    }
    json_decref(m);
    json_decref(t);
    mem_free(owned);
    if (status == NIB_OK) {
        *text = out.text;
        *marks = out.mark;
    }
    return status;
}
