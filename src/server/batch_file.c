/* batch_file.c - see batch_file.h. */
#include "server/batch_file.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ID = 1024 /* bytes of a custom_id */ };

/* ---- one line ---- */

static void request_clear(batch_request *q) {
    json_decref(q->line);
    mem_free(q->tag);
    mem_free(q->body);
    *q = (batch_request){0};
}

enum { TAG_HASH = 16 }; /* digits before the custom_id */

/* NULL: out of memory. */
static char *make_tag(uint64_t hash, const json_t *id) {
    char *text = jsonx_text(id, JSON_COMPACT | JSON_ENCODE_ANY);
    const size_t n = text ? strlen(text) + 1 : 0;
    char *tag = text ? mem_alloc(TAG_HASH + n) : NULL;
    if (tag) {
        char digits[TAG_HASH + 1];
        snprintf(digits, sizeof digits, "%016llx", (unsigned long long)hash);
        memcpy(tag, digits, TAG_HASH);
        memcpy(tag + TAG_HASH, text, n);
    }
    mem_free(text);
    return tag;
}

/* text [n]: the line. */
static nib_status read_members(batch_request *q, const char *endpoint, const char *text, size_t n,
                               nib_error *err) {
    const json_t *id = json_object_get(q->line, "custom_id"), *method = json_object_get(q->line, "method");
    const json_t *url = json_object_get(q->line, "url");
    const json_t *body = json_object_get(q->line, "body");
    q->custom_id = json_string_value(id);
    q->n_custom_id = json_string_length(id);
    q->method = method ? json_string_value(method) : "POST";
    q->url = json_string_value(url);
    if (!json_is_object(q->line))
        return nib_fail(err, NIB_E_USAGE, "expected an object");
    if (!q->custom_id || q->n_custom_id == 0 || q->n_custom_id > MAX_ID)
        return nib_fail(err, NIB_E_USAGE, "custom_id: expected a string of 1 to 1024 bytes");
    if (!q->method)
        return nib_fail(err, NIB_E_USAGE, "method: expected a string");
    if (!q->url)
        return nib_fail(err, NIB_E_USAGE, "url: expected a string");
    if (endpoint && strcmp(q->url, endpoint) != 0)
        return nib_fail(err, NIB_E_USAGE, "url: expected the batch's endpoint %s, found %.80s", endpoint,
                        q->url);
    if (!json_is_object(body))
        return nib_fail(err, NIB_E_USAGE, "body: expected an object");
    size_t n_body = 0;
    const char *source = jsonx_source(text, n, q->line, body, &n_body);
    q->body = source ? mem_strndup(source, n_body) : NULL;
    q->hash = q->body ? batch_output_hash(q->method, q->url, q->body, n_body) : 0;
    q->tag = q->body ? make_tag(q->hash, id) : NULL;
    return q->tag ? NIB_OK : nib_fail_nomem(err, 0, "a request");
}

/* False: *code and err describe what is wrong with the line. NIB_E_NOMEM says nothing about it. */
static bool parse_line(const batch_file *b, const char *text, size_t n, batch_request *q, const char **code,
                       nib_error *err) {
    mem_bound bound;
    mem_bound_set(&bound, b->values);
    *code = "invalid_json_line";
    nib_status status = jsonx_parse(text, n, &q->line, err);
    if (status == NIB_OK) {
        *code = "invalid_request";
        status = read_members(q, b->endpoint, text, n, err);
    }
    mem_bound_end(&bound);
    if (bound.refused)
        nib_fail(err, NIB_E_USAGE, "expected fewer JSON values: they would need too much memory");
    return status == NIB_OK;
}

/* Stops reading lines. Requests that are already running are answered before the run ends with this error. */
static nib_status stop_reading(batch_file *b) {
    b->ended = true;
    return NIB_OK;
}

static nib_status stop_without_keys(batch_file *b) {
    if (b->keys.fixed && b->n_line == 0)
        nib_fail(&b->unread, NIB_E_NOFIT,
                 "under --ram at most %lld lines are read from a pipe, since their ids are kept: give a file "
                 "with -i",
                 (long long)b->max_line);
    else
        nib_fail_nomem(&b->unread, key_set_bytes(b->keys.n), "the ids of lines");
    return stop_reading(b);
}

/* A line [n] that is no request. An error that the output has for the same text is not written again. */
static nib_status refuse_line(batch_file *b, const char *text, size_t n, const char *code, const char *why,
                              nib_error *err) {
    const batch_request *q = &b->next;
    const uint64_t hash = batch_output_hash(NULL, NULL, text, n);
    char number[24];
    bool seen;
    char *id = NULL;
    snprintf(number, sizeof number, "%lld", (long long)b->in.number);
    const uint64_t before = key_set_value(&b->keys, KEY_LINE, number, strlen(number), &seen);
    b->n_retried += before != 0;
    if (before == hash) {
        b->n_invalid++;
        return NIB_OK;
    }
    if (q->custom_id && q->n_custom_id <= MAX_ID &&
        !(id = jsonx_text(json_object_get(q->line, "custom_id"), JSON_COMPACT | JSON_ENCODE_ANY)))
        return nib_fail_nomem(err, q->n_custom_id, "a line of the output");
    const nib_status status = batch_output_error(&b->out, hash, id, b->in.number, code, why, err);
    mem_free(id);
    b->n_invalid += status == NIB_OK;
    return status;
}

/* Makes the line the next request, keeps its answer, or writes an error for it. */
static nib_status take_line(batch_file *b, const char *text, size_t n, bool cut, nib_error *err) {
    batch_request *q = &b->next;
    const char *code = "line_too_long";
    nib_error why;
    bool seen = false;
    size_t blank = 0;
    while (blank < n && strchr(" \t\r", text[blank]) && text[blank])
        blank++;
    if (blank == n)
        return NIB_OK;
    nib_fail(&why, NIB_E_USAGE, "expected a line of at most %zu bytes (--max-body)", b->in.max);
    const bool good = !cut && parse_line(b, text, n, q, &code, &why);
    const uint64_t before = good ? key_set_value(&b->keys, KEY_ID, q->custom_id, q->n_custom_id, &seen) : 0;
    nib_status status = NIB_OK;
    if (!good && why.status == NIB_E_NOMEM) {
        b->unread = why;
        status = stop_reading(b);
    } else if (!good) {
        status = refuse_line(b, text, n, code, why.message, err);
    } else if (seen) {
        status = refuse_line(b, text, n, "duplicate_custom_id", "an earlier line has this custom_id", err);
    } else if (!key_set_see(&b->keys, KEY_ID, q->custom_id, q->n_custom_id)) {
        status = stop_without_keys(b);
    } else if (before != batch_output_state(q->hash, 200)) {
        b->n_retried += before != 0;
        return NIB_OK;
    } else {
        b->n_kept++;
    }
    request_clear(q);
    return status;
}

static nib_status read_line(batch_file *b, nib_error *err) {
    const char *text;
    size_t n;
    const line_result got = line_next(&b->in, &text, &n);
    b->waits = got == LINE_WAIT;
    b->ended = got == LINE_END;
    if (got == LINE_FAILED)
        nib_fail_errno(&b->unread, "cannot read", b->name, errno);
    if (got == LINE_NO_MEMORY)
        nib_fail_nomem(&b->unread, b->in.max, "a line");
    if (b->unread.status)
        return stop_reading(b);
    return got == LINE_WHOLE || got == LINE_CUT ? take_line(b, text, n, got == LINE_CUT, err) : NIB_OK;
}

/* A request that failed for a passing reason has no line in the output. Many in a row end the reading: the
 * others would fail, too. */
static void note_failure(batch_file *b, const server_reply *r) {
    nib_fail(&b->failed, NIB_E_FAILED, "%s", r->lost ? r->why : "out of memory");
    b->n_failed++;
    if (++b->n_in_row >= b->max_in_row)
        b->ended = true;
}

/* A refusal that the output has for the same request is not written again. */
static nib_status write_reply(batch_file *b, const server_reply *r, nib_error *err) {
    char digits[TAG_HASH + 1] = "";
    const char *id = r->tag + TAG_HASH;
    json_t *text = NULL;
    bool seen;
    memcpy(digits, r->tag, TAG_HASH);
    const uint64_t hash = strtoull(digits, NULL, 16), state = batch_output_state(hash, r->status);
    size_t n_read;
    NIB_TRY(jsonx_parse_first(id, strlen(id), &text, &n_read, err));
    const bool same =
        state == key_set_value(&b->keys, KEY_ID, json_string_value(text), json_string_length(text), &seen);
    json_decref(text);
    if (!same)
        NIB_TRY(batch_output_answer(&b->out, hash, id, r->status, r->body, r->n_byte, err));
    b->n_in_row = 0;
    b->n_answered += r->status == 200;
    b->n_refused += r->status != 200;
    b->n_prompt += r->n_prompt;
    b->n_predicted += r->n_predicted;
    return NIB_OK;
}

nib_status batch_file_write(batch_file *b, server *s, nib_error *err) {
    server_reply r;
    nib_status status = NIB_OK;
    while (status == NIB_OK && server_take(s, b->in_order, &r)) {
        b->n_asked--;
        if (r.lost || !r.body)
            note_failure(b, &r);
        else
            status = write_reply(b, &r, err);
        server_reply_clear(&r);
    }
    return status;
}

nib_status batch_file_ask(batch_file *b, server *s, size_t n_most, nib_error *err) {
    b->waits = false;
    while (!b->ended && !b->waits && b->n_asked < n_most && !(b->stops && b->stops())) {
        const batch_request *q = &b->next;
        if (!q->body) {
            NIB_TRY(read_line(b, err));
        } else if (server_ask(s, q->method, q->url, q->body, strlen(q->body), q->tag)) {
            request_clear(&b->next);
            b->n_asked++;
            NIB_TRY(batch_file_write(b, s, err)); /* refused requests have a reply already */
        } else {
            return server_n_answer(s) ? NIB_OK : nib_fail_nomem(err, strlen(q->body), "a request");
        }
    }
    return NIB_OK;
}

void batch_file_clear(batch_file *b) {
    request_clear(&b->next);
    line_reader_clear(&b->in);
}

int64_t batch_file_done(const batch_file *b) {
    return b->n_answered + b->n_refused + b->n_invalid + b->n_failed + b->n_kept;
}
