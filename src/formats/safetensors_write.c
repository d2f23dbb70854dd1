/* safetensors_write.c - see safetensors_write.h. */
#include "formats/safetensors_write.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "formats/tensors.h"

#include <inttypes.h>
#include <string.h>

struct safetensors_writer {
    file_writer *out;
    json_t *header;
    tensor_table tensors; /* for names and sizes; offsets count from the start of the data */
    uint64_t declared, written;
    bool started;
};

static void free_writer(safetensors_writer *w) {
    json_decref(w->header);
    tensor_table_deinit(&w->tensors);
    mem_free(w);
}

nib_status safetensors_writer_open(const char *path, safetensors_writer **out, nib_error *err) {
    safetensors_writer *w = mem_calloc(1, sizeof *w);
    if (!w)
        return nib_fail_nomem(err, sizeof *w, "a safetensors writer");
    tensor_table_init(&w->tensors);
    w->header = json_object();
    const nib_status status =
        w->header ? file_writer_open(path, &w->out, err) : nib_fail_nomem(err, 64, "a header");
    if (status != NIB_OK) {
        safetensors_writer_abort(w);
        return status;
    }
    *out = w;
    return NIB_OK;
}

void safetensors_writer_abort(safetensors_writer *w) {
    if (!w)
        return;
    file_writer_abort(w->out);
    free_writer(w);
}

static nib_status declare(safetensors_writer *w, const container_tensor *t, nib_error *err) {
    json_t *shape = json_array();
    int bad = !shape;
    for (int i = 0; i < t->n_dim && !bad; i++)
        bad = json_array_append_new(shape, json_integer(t->shape[i]));
    json_t *entry = NULL;
    if (!bad)
        entry = json_pack("{s:s, s:O, s:[I, I]}", "dtype", type_get(t->type)->st, "shape", shape,
                          "data_offsets", (json_int_t)t->offset, (json_int_t)(t->offset + t->bytes));
    json_decref(shape);
    if (!entry || json_object_set_new(w->header, t->name, entry))
        return nib_fail(err, NIB_E_NOMEM, "out of memory, or the tensor name '%s' is no UTF-8", t->name);
    return NIB_OK;
}

nib_status safetensors_writer_tensor(safetensors_writer *w, const char *name, type_id type, int n_dim,
                                     const int64_t *shape, nib_error *err) {
    const type_info *info = type_get(type);
    if (w->started || !info || !info->st || n_dim < 0 || n_dim > TENSOR_MAX_DIM)
        return nib_fail(err, NIB_E_USAGE, "tensor '%s': %s", name,
                        w->started ? "declared after the data began"
                                   : "its type or shape does not exist in safetensors");
    container_tensor t = {.type = type, .n_dim = n_dim, .offset = w->declared};
    memcpy(t.shape, shape, (size_t)n_dim * sizeof *shape);
    NIB_TRY(tensor_table_add(&w->tensors, name, strlen(name), &t, err));
    const container_tensor *added = &w->tensors.all[w->tensors.n - 1];
    uint64_t end;
    if (!num_add_u64(w->declared, added->bytes, &end) || end > INT64_MAX)
        return nib_fail(err, NIB_E_USAGE, "tensor '%s' would exceed the size that a file can have", name);
    w->declared = end;
    return declare(w, added, err);
}

/* The header is padded with spaces, so that the data begin at a multiple of 8. */
static nib_status start(safetensors_writer *w, nib_error *err) {
    w->started = true;
    char *text = jsonx_text(w->header, JSON_COMPACT);
    if (!text)
        return nib_fail_nomem(err, 64 * w->tensors.n, "a header");
    const size_t n = strlen(text), n_pad = (8 - n % 8) % 8;
    const uint64_t length = n + n_pad;
    nib_status status = file_writer_write(w->out, &length, sizeof length, err);
    if (status == NIB_OK)
        status = file_writer_write(w->out, text, n, err);
    if (status == NIB_OK)
        status = file_writer_write(w->out, "       ", n_pad, err);
    mem_free(text);
    return status;
}

nib_status safetensors_writer_data(safetensors_writer *w, const void *data, size_t n_byte, nib_error *err) {
    if (!w->started)
        NIB_TRY(start(w, err));
    if (n_byte > w->declared - w->written)
        return nib_fail(err, NIB_E_USAGE,
                        "expected at most the %" PRIu64 " bytes that are still declared, found %zu",
                        w->declared - w->written, n_byte);
    w->written += n_byte;
    return file_writer_write(w->out, data, n_byte, err);
}

void safetensors_writer_set_cancel(safetensors_writer *w, const canceller *cancel) {
    file_writer_set_cancel(w->out, cancel);
}

nib_status safetensors_writer_commit(safetensors_writer *w, nib_error *err) {
    nib_status status = safetensors_writer_data(w, "", 0, err);
    if (status == NIB_OK && w->written != w->declared)
        status = nib_fail(err, NIB_E_USAGE, "expected %" PRIu64 " bytes of data, got %" PRIu64, w->declared,
                          w->written);
    if (status != NIB_OK) {
        safetensors_writer_abort(w);
        return status;
    }
    status = file_writer_commit(w->out, err);
    free_writer(w);
    return status;
}
