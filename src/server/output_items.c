/* output_items.c - shared by dialects whose answers are items, or one message with parts. */
#include "server/output_items.h"

#include "base/jsonx.h"
#include "base/mem.h"

#include <string.h>

void event_write(const char *name, json_t *value, buffer *out) {
    if (json_object_set_new(value, "type", json_string(name)))
        out->no_memory = true;
    buffer_text(out, "event: ");
    buffer_text(out, name);
    buffer_text(out, "\ndata: ");
    buffer_json(out, value);
    buffer_text(out, "\n\n");
}

int items_index(const emitter *t) {
    return (int)json_array_size(t->j->items);
}

void items_add(const emitter *t, json_t *value) {
    job *j = t->j;
    j->items = j->items ? j->items : json_array();
    j->said.no_memory = json_array_append_new(j->items, value) || j->said.no_memory;
}

json_t *arguments_raw(const answer_part *p) {
    json_t *value = NULL;
    const bool good = jsonx_parse(p->text, p->n_byte, &value, NULL) == NIB_OK && json_is_object(value);
    json_decref(value);
    if (good)
        return jsonx_string(p->text, p->n_byte);
    json_t *text = jsonx_string(p->text, p->n_byte), *quoted = NULL;
    char *json = text ? jsonx_text(text, JSON_ENCODE_ANY) : NULL;
    if (json)
        quoted = jsonx_string(json, strlen(json));
    mem_free(json);
    json_decref(text);
    return quoted;
}

/* Whether the answer has no items yet; it gets an empty one then. */
static bool is_silent(const job *j) {
    return j->open == NO_ITEM && json_array_size(j->items) == 0;
}

void items_emit(emitter *t, const item_calls *calls, const char *text, size_t n_byte, bool last) {
    buffer *lost = t->out ? t->out : &t->j->said;
    const answer_part nothing = {.kind = PART_TEXT, .text = ""};
    if (!answer_parser_feed(t->a->parser, text, n_byte, last, calls->part, t))
        lost->no_memory = true;
    if (last && is_silent(t->j))
        calls->part(t, &nothing);
    if (last)
        calls->close(t);
    lost->no_memory = lost->no_memory || t->j->said.no_memory;
}

/* ---- messages ---- */

static void add_part(void *user, const answer_part *p) {
    message_parts *m = user;
    if (p->kind != PART_CALL) {
        buffer_add(p->kind == PART_TEXT ? &m->said : &m->thought, p->text, p->n_byte);
        return;
    }
    m->calls = m->calls ? m->calls : json_array();
    m->said.no_memory = json_array_append_new(m->calls, m->call(m->a, p)) || m->said.no_memory;
}

bool message_parts_collect(message_parts *m) {
    const nib_result *r = &m->a->result;
    const char *text = r->text ? r->text : "";
    const answer_part all = {.kind = PART_TEXT, .text = text, .n_byte = r->n_byte};
    if (m->a->parser)
        return answer_parser_feed(m->a->parser, text, r->n_byte, true, add_part, m);
    add_part(m, &all);
    return true;
}

bool message_parts_add(message_parts *m, json_t *message, const char *thought) {
    bool good = !m->said.no_memory && !m->thought.no_memory;
    if (m->thought.n)
        good = !json_object_set_new(message, thought, jsonx_string(m->thought.data, m->thought.n)) && good;
    if (m->calls)
        good = !json_object_set(message, "tool_calls", m->calls) && good;
    json_decref(m->calls);
    buffer_clear(&m->said);
    buffer_clear(&m->thought);
    return good;
}
