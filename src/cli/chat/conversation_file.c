/* conversation_file.c - conversations in JSON files, see conversation.h. */
#include "cli/chat/conversation.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"

#include <string.h>

nib_status conversation_save(const conversation *c, const char *path, nib_error *err) {
    json_t *document = json_pack("{s:O}", "messages", c->messages);
    char *text = document ? jsonx_text(document, JSON_INDENT(2)) : NULL;
    json_decref(document);
    if (!text)
        return nib_fail(err, NIB_E_NOMEM, "out of memory for the conversation");
    file_writer *w;
    nib_status status = file_writer_open_private(path, &w, err);
    if (status == NIB_OK)
        status = file_writer_end(w, file_writer_write(w, text, strlen(text), err), err);
    mem_free(text);
    return status;
}

enum { MAX_MESSAGES = 10000 };

static nib_status check_message(const json_t *message, size_t at, nib_error *err) {
    static const char *const roles[] = {"user", "assistant", "system"};
    const size_t n_role = at == 0 ? 3 : 2;
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!json_is_object(message) || !role)
        return nib_fail(err, NIB_E_USAGE, "message %zu: expected an object with a role", at + 1);
    if (!json_is_string(json_object_get(message, "content")))
        return nib_fail(err, NIB_E_USAGE, "message %zu: expected a content that is a string", at + 1);
    for (size_t i = 0; i < n_role; i++)
        if (!strcmp(role, roles[i]))
            return NIB_OK;
    return nib_fail(err, NIB_E_USAGE, "message %zu: expected the role user or assistant%s, found '%.32s'",
                    at + 1, at ? "" : ", or system", role);
}

static nib_status check_messages(const json_t *messages, nib_error *err) {
    if (!json_is_array(messages))
        return nib_fail(err, NIB_E_USAGE, "expected an array of messages, or an object with \"messages\"");
    if (json_array_size(messages) > MAX_MESSAGES)
        return nib_fail(err, NIB_E_USAGE, "expected at most %d messages, found %zu", MAX_MESSAGES,
                        json_array_size(messages));
    for (size_t i = 0; i < json_array_size(messages); i++)
        NIB_TRY(check_message(json_array_get(messages, i), i, err));
    return NIB_OK;
}

/* Makes an error of the file a usage error, since the model is not damaged. */
static nib_status as_usage(nib_status status, nib_error *err) {
    if (status == NIB_E_MODEL || status == NIB_E_NOTFOUND)
        err->status = status = NIB_E_USAGE;
    return status;
}

nib_status conversation_load(conversation *c, const char *path, nib_error *err) {
    json_t *document;
    nib_status status = jsonx_load(path, JSONX_MAX_TEXT, &document, err);
    if (status)
        return as_usage(status, err);
    json_t *messages = json_is_object(document) ? json_object_get(document, "messages") : document;
    conversation loaded = {c->engine, c->special, json_incref(messages)};
    json_decref(document);
    status = check_messages(loaded.messages, err);
    if (status == NIB_OK)
        status = conversation_check(&loaded, err);
    if (status == NIB_OK)
        conversation_replace(c, &loaded);
    else
        status = nib_fail_prefix(err, as_usage(status, err), path);
    conversation_deinit(&loaded);
    return status;
}
