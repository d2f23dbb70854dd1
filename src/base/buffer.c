/* buffer.c - see buffer.h. */
#include "base/buffer.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"

#include <string.h>

void buffer_clear(buffer *b) {
    mem_free(b->data);
    *b = (buffer){0};
}

void buffer_add(buffer *b, const void *data, size_t n) {
    b->no_memory = b->no_memory || mem_grow((void **)&b->data, &b->cap, b->n + n + 1, 1);
    if (b->no_memory)
        return;
    if (n)
        memcpy(b->data + b->n, data, n);
    b->n += n;
    b->data[b->n] = '\0';
}

void buffer_text(buffer *b, const char *text) {
    buffer_add(b, text, strlen(text));
}

void buffer_json(buffer *b, json_t *value) {
    buffer_json_as(b, value, JSON_COMPACT | JSON_ENCODE_ANY);
}

void buffer_json_as(buffer *b, json_t *value, size_t flags) {
    char *text = value ? jsonx_text(value, flags) : NULL;
    if (text)
        buffer_text(b, text);
    else
        b->no_memory = true;
    mem_free(text);
    json_decref(value);
}

/* From the last one on, since those before it stay where they are. */
void buffer_json_raw(buffer *b, json_t *value, json_t *const *raw, size_t n) {
    buffer text = {0};
    buffer_json(&text, json_incref(value));
    while (n-- > 0 && !text.no_memory) {
        size_t n_byte = 0;
        const char *at = jsonx_source(text.data, text.n, value, raw[n], &n_byte);
        const size_t before = at ? (size_t)(at - text.data) : text.n;
        buffer joined = {0};
        buffer_add(&joined, text.data, before);
        buffer_add(&joined, json_string_value(raw[n]), at ? json_string_length(raw[n]) : 0);
        buffer_add(&joined, text.data + before + n_byte, text.n - before - n_byte);
        buffer_clear(&text);
        text = joined;
    }
    if (text.no_memory)
        b->no_memory = true;
    else
        buffer_add(b, text.data, text.n);
    buffer_clear(&text);
    json_decref(value);
}

void buffer_trim(buffer *b) {
    buffer left = {.no_memory = b->no_memory};
    if (buffer_left(b) > b->cap / 2)
        return;
    if (buffer_left(b))
        buffer_add(&left, b->data + b->taken, buffer_left(b));
    mem_free(b->data);
    *b = left;
}

size_t buffer_left(const buffer *b) {
    return b->n - b->taken;
}

size_t buffer_take(buffer *b, char *out, size_t n) {
    n = NUM_MIN(n, buffer_left(b));
    if (n)
        memcpy(out, b->data + b->taken, n);
    b->taken += n;
    if (b->taken == b->n)
        b->taken = b->n = 0;
    return n;
}
