/* gguf_copy.c - see gguf_copy.h. Values go from the file's buffer to the writer's in pieces. */
#include "formats/gguf_copy.h"

#include "base/mem.h"
#include "base/num.h"
#include "formats/cursor.h"
#include "formats/meta.h"

#include <inttypes.h>

enum { MAX_KEY = 65535, PIECE = 4096, MAX_NESTING = 4 };

typedef struct copying {
    cursor at;
    gguf_writer *w; /* NULL: the value is skipped */
    const char *key;
} copying;

static nib_status copy_bytes(copying *c, uint64_t n_byte, nib_error *err) {
    uint8_t piece[PIECE];
    NIB_TRY(cursor_need(&c->at, n_byte, err));
    while (n_byte) {
        const size_t n = (size_t)NUM_MIN(n_byte, (uint64_t)PIECE);
        NIB_TRY(cursor_take(&c->at, piece, n, err));
        if (c->w)
            NIB_TRY(gguf_writer_raw(c->w, piece, n, err));
        n_byte -= n;
    }
    return NIB_OK;
}

static nib_status copy_count(copying *c, uint64_t *n, nib_error *err) {
    NIB_TRY(cursor_u64(&c->at, n, err));
    return c->w ? gguf_writer_raw(c->w, n, sizeof *n, err) : NIB_OK;
}

static nib_status copy_string(copying *c, nib_error *err) {
    uint64_t n;
    NIB_TRY(copy_count(c, &n, err));
    return copy_bytes(c, n, err);
}

static nib_status copy_value(copying *c, uint32_t type, int depth, nib_error *err);

/* Copies an array; its element type has been read. */
static nib_status copy_array(copying *c, uint32_t elem, int depth, nib_error *err) {
    uint64_t n, n_byte;
    if (c->w)
        NIB_TRY(gguf_writer_raw(c->w, &elem, sizeof elem, err));
    NIB_TRY(copy_count(c, &n, err));
    if (elem < GGUF_VALUE_COUNT && gguf_value_bytes[elem]) {
        if (!num_mul_u64(n, gguf_value_bytes[elem], &n_byte))
            return nib_fail(err, NIB_E_MODEL,
                            "metadata key '%s': expected an array that fits the file, found %" PRIu64
                            " elements",
                            c->key, n);
        return copy_bytes(c, n_byte, err);
    }
    for (uint64_t i = 0; i < n; i++) /* each element consumes bytes of the file, which bounds the loop */
        NIB_TRY(copy_value(c, elem, depth + 1, err));
    return NIB_OK;
}

static nib_status copy_value(copying *c, uint32_t type, int depth, nib_error *err) {
    uint32_t elem;
    if (type >= GGUF_VALUE_COUNT || depth > MAX_NESTING)
        return nib_fail(
            err, NIB_E_MODEL,
            "metadata key '%s': expected a known value type, arrays not too deep, found type %" PRIu32
            " at depth %d",
            c->key, type, depth);
    if (type == GGUF_STRING)
        return copy_string(c, err);
    if (type != GGUF_ARRAY)
        return copy_bytes(c, gguf_value_bytes[type], err);
    NIB_TRY(cursor_u32(&c->at, &elem, err));
    return copy_array(c, elem, depth, err);
}

static nib_status copy_key(copying *c, char *key, bool (*keep)(void *user, const char *key), void *user,
                           gguf_writer *w, nib_error *err) {
    uint64_t n;
    uint32_t type, elem = 0;
    NIB_TRY(cursor_u64(&c->at, &n, err));
    if (n > MAX_KEY)
        return nib_fail(err, NIB_E_MODEL, "expected a metadata key of at most %d bytes, found %" PRIu64,
                        MAX_KEY, n);
    NIB_TRY(cursor_take(&c->at, key, (size_t)n, err));
    key[n] = '\0';
    NIB_TRY(cursor_u32(&c->at, &type, err));
    if (type == GGUF_ARRAY)
        NIB_TRY(cursor_u32(&c->at, &elem, err));
    c->w = keep(user, key) && elem != GGUF_ARRAY ? w : NULL;
    c->key = key;
    if (c->w)
        NIB_TRY(gguf_writer_set_raw(w, key, (gguf_value)type, err));
    return type == GGUF_ARRAY ? copy_array(c, elem, 0, err) : copy_value(c, type, 0, err);
}

static nib_status copy_all(copying *c, char *key, bool (*keep)(void *user, const char *key), void *user,
                           gguf_writer *w, nib_error *err) {
    uint8_t magic[8];
    uint64_t n_tensor, n_key;
    c->at.what = "the metadata";
    NIB_TRY(cursor_take(&c->at, magic, sizeof magic, err));
    NIB_TRY(cursor_u64(&c->at, &n_tensor, err));
    NIB_TRY(cursor_u64(&c->at, &n_key, err));
    if (memcmp(magic, GGUF_MAGIC, 4) != 0 || n_key > META_MAX_KEYS)
        return nib_fail(err, NIB_E_MODEL, "expected a GGUF file with at most %d metadata keys",
                        META_MAX_KEYS);
    for (uint64_t i = 0; i < n_key; i++)
        NIB_TRY(copy_key(c, key, keep, user, w, err));
    return NIB_OK;
}

nib_status gguf_copy_keys(file *f, uint64_t max, bool (*keep)(void *user, const char *key), void *user,
                          gguf_writer *w, nib_error *err) {
    copying c = {.w = NULL};
    char *key = mem_alloc(MAX_KEY + 1);
    if (!key)
        return nib_fail_nomem(err, MAX_KEY + 1, "a key");
    nib_status status = cursor_open(&c.at, f, NUM_MIN(max, file_size(f)), err);
    if (status == NIB_OK) {
        status = copy_all(&c, key, keep, user, w, err);
        cursor_close(&c.at);
    }
    mem_free(key);
    return status == NIB_E_MODEL ? nib_fail_prefix(err, status, file_path(f)) : status;
}
