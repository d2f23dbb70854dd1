/* gguf_write.c - see gguf_write.h. The two sections of the header grow in memory; data are written at once.
 */
#include "formats/gguf_write.h"

#include "base/buffer.h"
#include "base/mem.h"
#include "base/num.h"
#include "formats/meta.h"
#include "formats/tensors.h"

#include <inttypes.h>
#include <string.h>

#include <xxhash.h>

struct gguf_writer {
    file_writer *out;
    buffer keys, rows;    /* metadata; tensor rows */
    meta_table seen;      /* keys, without values */
    tensor_table tensors; /* offsets count from the start of the data */
    uint64_t declared;    /* bytes of data so far, each tensor rounded up to the alignment */
    bool started;
    size_t current;   /* the tensor whose bytes are written next */
    uint64_t written; /* bytes of it so far */
};

typedef nib_status opener(const char *path, file_writer **out, nib_error *err);

static nib_status open_with(opener *open, const char *path, gguf_writer **out, nib_error *err) {
    gguf_writer *w = mem_calloc(1, sizeof *w);
    if (!w)
        return nib_fail_nomem(err, sizeof *w, "a GGUF writer");
    tensor_table_init(&w->tensors);
    meta_table_init(&w->seen);
    const nib_status status = open(path, &w->out, err);
    if (status != NIB_OK) {
        gguf_writer_abort(w);
        return status;
    }
    *out = w;
    return NIB_OK;
}

nib_status gguf_writer_open(const char *path, gguf_writer **out, nib_error *err) {
    return open_with(file_writer_open, path, out, err);
}

nib_status gguf_writer_open_part(const char *path, gguf_writer **out, nib_error *err) {
    return open_with(file_writer_open_part, path, out, err);
}

static void free_writer(gguf_writer *w) {
    mem_free(w->keys.data);
    mem_free(w->rows.data);
    tensor_table_deinit(&w->tensors);
    meta_table_deinit(&w->seen);
    mem_free(w);
}

void gguf_writer_abort(gguf_writer *w) {
    if (!w)
        return;
    file_writer_abort(w->out);
    free_writer(w);
}

void gguf_writer_discard(gguf_writer *w) {
    if (!w)
        return;
    file_writer_discard(w->out);
    free_writer(w);
}

static nib_status put(buffer *b, const void *data, size_t n_byte, nib_error *err) {
    buffer_add(b, data, n_byte);
    return b->no_memory ? nib_fail_nomem(err, n_byte, "a header") : NIB_OK;
}

static nib_status put_u32(buffer *b, uint32_t v, nib_error *err) {
    return put(b, &v, sizeof v, err);
}

static nib_status put_u64(buffer *b, uint64_t v, nib_error *err) {
    return put(b, &v, sizeof v, err);
}

static nib_status put_text(buffer *b, const char *text, size_t n, nib_error *err) {
    NIB_TRY(put_u64(b, n, err));
    return put(b, text, n, err);
}

static nib_status begin_key(gguf_writer *w, const char *key, gguf_value type, nib_error *err) {
    if (w->started)
        return nib_fail(err, NIB_E_USAGE, "metadata key '%s' after the data began", key);
    if (meta_table_find(&w->seen, key))
        return nib_fail(err, NIB_E_USAGE, "metadata key '%s' was set before", key);
    const meta_value none = {.type = META_BOOL};
    NIB_TRY(meta_table_add(&w->seen, key, strlen(key), &none, false, err));
    NIB_TRY(put_text(&w->keys, key, strlen(key), err));
    return put_u32(&w->keys, type, err);
}

static nib_status begin_array(gguf_writer *w, const char *key, gguf_value elem, size_t n, nib_error *err) {
    NIB_TRY(begin_key(w, key, GGUF_ARRAY, err));
    NIB_TRY(put_u32(&w->keys, elem, err));
    return put_u64(&w->keys, n, err);
}

static bool fits(gguf_value type, int64_t v) {
    switch (type) {
    case GGUF_BOOL: return v == 0 || v == 1;
    case GGUF_U8: return v >= 0 && v <= UINT8_MAX;
    case GGUF_I8: return v >= INT8_MIN && v <= INT8_MAX;
    case GGUF_U16: return v >= 0 && v <= UINT16_MAX;
    case GGUF_I16: return v >= INT16_MIN && v <= INT16_MAX;
    case GGUF_U32: return v >= 0 && v <= UINT32_MAX;
    case GGUF_I32: return v >= INT32_MIN && v <= INT32_MAX;
    case GGUF_U64: return v >= 0;
    case GGUF_I64: return true;
    default: return false;
    }
}

/* The low bytes of a little-endian integer are the value in a narrower type. */
static nib_status put_int(gguf_writer *w, const char *key, gguf_value type, int64_t v, nib_error *err) {
    if (!fits(type, v))
        return nib_fail(err, NIB_E_USAGE, "metadata key '%s': %" PRId64 " does not fit value type %d", key, v,
                        (int)type);
    return put(&w->keys, &v, gguf_value_bytes[type], err);
}

static nib_status put_float(gguf_writer *w, const char *key, gguf_value type, double v, nib_error *err) {
    const float narrow = (float)v;
    if (type == GGUF_F32)
        return put(&w->keys, &narrow, sizeof narrow, err);
    if (type == GGUF_F64)
        return put(&w->keys, &v, sizeof v, err);
    return nib_fail(err, NIB_E_USAGE, "metadata key '%s': expected a float type, found value type %d", key,
                    (int)type);
}

nib_status gguf_writer_set_int(gguf_writer *w, const char *key, gguf_value type, int64_t value,
                               nib_error *err) {
    NIB_TRY(begin_key(w, key, type, err));
    return put_int(w, key, type, value, err);
}

nib_status gguf_writer_set_float(gguf_writer *w, const char *key, gguf_value type, double value,
                                 nib_error *err) {
    NIB_TRY(begin_key(w, key, type, err));
    return put_float(w, key, type, value, err);
}

nib_status gguf_writer_set_string(gguf_writer *w, const char *key, const char *text, size_t n_byte,
                                  nib_error *err) {
    NIB_TRY(begin_key(w, key, GGUF_STRING, err));
    return put_text(&w->keys, text, n_byte, err);
}

nib_status gguf_writer_set_ints(gguf_writer *w, const char *key, gguf_value type, const int64_t *values,
                                size_t n, nib_error *err) {
    NIB_TRY(begin_array(w, key, type, n, err));
    for (size_t i = 0; i < n; i++)
        NIB_TRY(put_int(w, key, type, values[i], err));
    return NIB_OK;
}

nib_status gguf_writer_set_floats(gguf_writer *w, const char *key, gguf_value type, const double *values,
                                  size_t n, nib_error *err) {
    NIB_TRY(begin_array(w, key, type, n, err));
    for (size_t i = 0; i < n; i++)
        NIB_TRY(put_float(w, key, type, values[i], err));
    return NIB_OK;
}

nib_status gguf_writer_set_strings(gguf_writer *w, const char *key, const meta_string *values, size_t n,
                                   nib_error *err) {
    NIB_TRY(begin_array(w, key, GGUF_STRING, n, err));
    for (size_t i = 0; i < n; i++)
        NIB_TRY(put_text(&w->keys, values[i].data, values[i].n_byte, err));
    return NIB_OK;
}

nib_status gguf_writer_set_raw(gguf_writer *w, const char *key, gguf_value type, nib_error *err) {
    return begin_key(w, key, type, err);
}

nib_status gguf_writer_raw(gguf_writer *w, const void *value, size_t n_byte, nib_error *err) {
    return put(&w->keys, value, n_byte, err);
}

nib_status gguf_writer_tensor(gguf_writer *w, const char *name, type_id type, int n_dim, const int64_t *shape,
                              nib_error *err) {
    const type_info *info = type_get(type);
    if (w->started || !info || info->gguf < 0 || n_dim < 0 || n_dim > TENSOR_MAX_DIM)
        return nib_fail(err, NIB_E_USAGE, "tensor '%s': %s", name,
                        w->started ? "declared after the data began"
                                   : "its type or shape does not exist in GGUF");
    container_tensor t = {.type = type, .n_dim = n_dim, .offset = w->declared};
    memcpy(t.shape, shape, (size_t)n_dim * sizeof *shape);
    NIB_TRY(tensor_table_add(&w->tensors, name, strlen(name), &t, err));
    const uint64_t bytes = w->tensors.all[w->tensors.n - 1].bytes;
    uint64_t end;
    if (!num_add_u64(w->declared, bytes, &end) || end > INT64_MAX)
        return nib_fail(err, NIB_E_USAGE, "tensor '%s' would exceed the size that a file can have", name);
    w->declared = (end + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;

    NIB_TRY(put_text(&w->rows, name, strlen(name), err));
    NIB_TRY(put_u32(&w->rows, (uint32_t)n_dim, err));
    for (int i = n_dim; i-- > 0;)
        NIB_TRY(put_u64(&w->rows, (uint64_t)shape[i], err));
    NIB_TRY(put_u32(&w->rows, (uint32_t)info->gguf, err));
    return put_u64(&w->rows, t.offset, err);
}

uint64_t gguf_writer_offset(const gguf_writer *w, size_t i) {
    const uint64_t head = 24 + (uint64_t)w->keys.n + w->rows.n;
    return (head + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT + w->tensors.all[i].offset;
}

uint64_t gguf_writer_hash(const gguf_writer *w) {
    return XXH3_64bits_withSeed(w->rows.data, w->rows.n, XXH3_64bits(w->keys.data, w->keys.n));
}

static nib_status pad(gguf_writer *w, uint64_t written, nib_error *err) {
    static const uint8_t zeros[GGUF_ALIGNMENT];
    const uint64_t over = written % GGUF_ALIGNMENT;
    return over ? file_writer_write(w->out, zeros, (size_t)(GGUF_ALIGNMENT - over), err) : NIB_OK;
}

/* Writes the header and moves on to the first tensor that has bytes. */
static nib_status start(gguf_writer *w, nib_error *err) {
    buffer head = {0};
    w->started = true;
    nib_status status = put(&head, GGUF_MAGIC, 4, err);
    if (status == NIB_OK)
        status = put_u32(&head, GGUF_VERSION, err);
    if (status == NIB_OK)
        status = put_u64(&head, w->tensors.n, err);
    if (status == NIB_OK)
        status = put_u64(&head, w->seen.n, err);
    if (status == NIB_OK)
        status = file_writer_write(w->out, head.data, head.n, err);
    mem_free(head.data);
    NIB_TRY(status);
    NIB_TRY(file_writer_write(w->out, w->keys.data, w->keys.n, err));
    NIB_TRY(file_writer_write(w->out, w->rows.data, w->rows.n, err));
    return pad(w, 24 + w->keys.n + w->rows.n, err);
}

/* Skips tensors that are complete. */
static nib_status next_tensor(gguf_writer *w, nib_error *err) {
    while (w->current < w->tensors.n && w->written == w->tensors.all[w->current].bytes) {
        NIB_TRY(pad(w, w->written, err));
        w->current++;
        w->written = 0;
    }
    return NIB_OK;
}

/* p NULL: the bytes are in the file already. */
static nib_status put_data(gguf_writer *w, const uint8_t *p, uint64_t n_byte, nib_error *err) {
    if (!w->started)
        NIB_TRY(start(w, err));
    NIB_TRY(next_tensor(w, err));
    while (n_byte) {
        if (w->current == w->tensors.n)
            return nib_fail(err, NIB_E_USAGE,
                            "expected no more data than was declared, found %" PRIu64 " more bytes", n_byte);
        const uint64_t left = w->tensors.all[w->current].bytes - w->written, n = NUM_MIN(n_byte, left);
        NIB_TRY(p ? file_writer_write(w->out, p, (size_t)n, err) : file_writer_skip(w->out, n, err));
        p = p ? p + n : NULL;
        n_byte -= n;
        w->written += n;
        NIB_TRY(next_tensor(w, err));
    }
    return NIB_OK;
}

nib_status gguf_writer_data(gguf_writer *w, const void *data, size_t n_byte, nib_error *err) {
    return put_data(w, data, n_byte, err);
}

nib_status gguf_writer_skip(gguf_writer *w, uint64_t n_byte, nib_error *err) {
    return put_data(w, NULL, n_byte, err);
}

nib_status gguf_writer_sync(gguf_writer *w, nib_error *err) {
    return file_writer_skip(w->out, 0, err);
}

nib_status gguf_writer_hollow(gguf_writer *w, nib_error *err) {
    NIB_TRY(gguf_writer_data(w, "", 0, err));
    if (w->written)
        return nib_fail(err, NIB_E_USAGE,
                        "expected a hole to begin at a tensor's beginning, found an unfinished tensor");
    if (w->current < w->tensors.n)
        NIB_TRY(file_writer_hole(w->out, w->declared - w->tensors.all[w->current].offset, err));
    w->current = w->tensors.n;
    return NIB_OK;
}

void gguf_writer_set_cancel(gguf_writer *w, const canceller *cancel) {
    file_writer_set_cancel(w->out, cancel);
}

nib_status gguf_writer_commit(gguf_writer *w, nib_error *err) {
    nib_status status = gguf_writer_data(w, "", 0, err);
    if (status == NIB_OK && w->current < w->tensors.n)
        status = nib_fail(err, NIB_E_USAGE, "tensor '%s': expected %" PRIu64 " bytes of data, got %" PRIu64,
                          w->tensors.all[w->current].name, w->tensors.all[w->current].bytes, w->written);
    if (status != NIB_OK) {
        gguf_writer_abort(w);
        return status;
    }
    status = file_writer_commit(w->out, err);
    free_writer(w);
    return status;
}
