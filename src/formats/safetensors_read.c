/* safetensors_read.c - reads one safetensors file: 8 bytes of length, a JSON object of that length (name ->
 * dtype, shape, data_offsets), then the data, from whose start the offsets count. */
#include "formats/container_impl.h"

#include "base/mem.h"
#include "base/num.h"

#include <inttypes.h>
#include <string.h>

static nib_status read_extent(const char *name, const json_t *entry, uint64_t *begin, uint64_t *end,
                              nib_error *err) {
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *a = json_array_get(offsets, 0), *b = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(a) || !json_is_integer(b) ||
        json_integer_value(a) < 0 || json_integer_value(b) < json_integer_value(a))
        return nib_fail(err, NIB_E_MODEL,
                        "tensor '%s': expected data_offsets [begin, end] with 0 <= begin <= end", name);
    *begin = (uint64_t)json_integer_value(a);
    *end = (uint64_t)json_integer_value(b);
    return NIB_OK;
}

static nib_status read_shape(const char *name, const json_t *entry, container_tensor *t, nib_error *err) {
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > TENSOR_MAX_DIM)
        return nib_fail(err, NIB_E_MODEL, "tensor '%s': expected a shape of at most %d dimensions", name,
                        TENSOR_MAX_DIM);
    t->n_dim = (int)json_array_size(shape);
    for (int i = 0; i < t->n_dim; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return nib_fail(err, NIB_E_MODEL, "tensor '%s': dimension %d: expected an integer of at least 0",
                            name, i);
        t->shape[i] = json_integer_value(size);
    }
    return NIB_OK;
}

static nib_status read_tensor(container *c, int file_index, const char *name, const json_t *entry,
                              nib_error *err) {
    container_tensor t = {.file = file_index};
    uint64_t begin = 0, end = 0;
    if (!json_is_object(entry))
        return nib_fail(err, NIB_E_MODEL,
                        "tensor '%s': expected an object with dtype, shape and data_offsets", name);
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype || !type_from_safetensors(dtype, &t.type))
        return nib_fail(err, NIB_E_MODEL, "tensor '%s' has dtype '%s', which is not supported", name,
                        dtype ? dtype : "(none)");
    NIB_TRY(read_shape(name, entry, &t, err));
    NIB_TRY(read_extent(name, entry, &begin, &end, err));
    t.offset = begin;
    NIB_TRY(tensor_table_add(&c->tensors, name, strlen(name), &t, err));
    const container_tensor *added = &c->tensors.all[c->tensors.n - 1];
    char shape[200];
    if (added->bytes != end - begin)
        return nib_fail(err, NIB_E_MODEL,
                        "tensor '%s': %s %s needs %" PRIu64 " bytes, its data_offsets span %" PRIu64, name,
                        dtype, tensor_shape_text(added, shape), added->bytes, end - begin);
    return NIB_OK;
}

static nib_status read_object(container *c, int file_index, const json_t *header, uint64_t data_begin,
                              nib_error *err) {
    const size_t first = c->tensors.n;
    if (!json_is_object(header))
        return nib_fail(err, NIB_E_MODEL, "expected a JSON object as header, found another value");
    for (void *i = json_object_iter(jsonx_counted(header)); i;
         i = json_object_iter_next(jsonx_counted(header), i)) {
        const char *name = json_object_iter_key(i);
        if (strcmp(name, "__metadata__"))
            NIB_TRY(read_tensor(c, file_index, name, json_object_iter_value(i), err));
    }
    return tensor_table_place(&c->tensors, first, data_begin, file_size(c->files[file_index]), err);
}

static nib_status read_header(container *c, int file_index, file *f, nib_error *err) {
    uint64_t n;
    if (file_size(f) < sizeof n)
        return nib_fail(err, NIB_E_MODEL, "expected a safetensors header, the file has %" PRIu64 " bytes",
                        file_size(f));
    NIB_TRY(file_read_at(f, &n, 0, sizeof n, err));
    if (!memcmp(&n, "version ", sizeof n))
        return nib_fail(err, NIB_E_MODEL,
                        "expected a safetensors file, found what looks like a Git LFS pointer to one");
    const uint64_t max = NUM_MIN((uint64_t)JSONX_MAX_TEXT, file_size(f) - sizeof n);
    if (n > max)
        return nib_fail(err, NIB_E_MODEL, "says a header of %" PRIu64 " bytes, expected at most %" PRIu64, n,
                        max);
    if (n > CONTAINER_MAX_HEADER - c->header_bytes)
        return nib_fail(err, NIB_E_MODEL,
                        "expected headers of at most %" PRIu64 " bytes in all files together",
                        (uint64_t)CONTAINER_MAX_HEADER);
    c->header_bytes += n;
    char *text = mem_alloc((size_t)n);
    if (!text)
        return nib_fail_nomem(err, (size_t)n, "a safetensors header");
    json_t *header = NULL;
    nib_status status = file_read_at(f, text, sizeof n, n, err);
    if (status == NIB_OK)
        status = jsonx_parse(text, (size_t)n, &header, err);
    mem_free(text);
    if (status == NIB_OK)
        status = read_object(c, file_index, header, sizeof n + n, err);
    json_decref(header);
    return status;
}

nib_status safetensors_read(container *c, int file_index, nib_error *err) {
    file *f = c->files[file_index];
    const nib_status status = read_header(c, file_index, f, err);
    return status == NIB_E_MODEL ? nib_fail_prefix(err, status, file_path(f)) : status;
}
