/* gguf_read.c - reads GGUF headers, version 2 and 3, of one file or of several.
 * Layout: magic, version, number of tensors, number of keys; the keys with typed values; the tensors' names,
 * shapes (innermost dimension first), types and offsets; then, at the next multiple of the alignment, the
 * data, from whose start the offsets count. Memory for a count is allocated only if the rest of the file
 * could hold so many items. */
#include "formats/container_impl.h"

#include "base/mem.h"
#include "base/num.h"
#include "formats/cursor.h"
#include "formats/gguf_value.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MIN_KEY_BYTES = 8 + 4 + 1, MIN_TENSOR_BYTES = 8 + 4 + 4 + 8 };

typedef struct header {
    cursor at;
    uint32_t version;
    uint64_t n_tensor, n_key;
    meta_table *meta;
} header;

static nib_status read_magic(header *h, nib_error *err) {
    uint8_t magic[4];
    h->at.what = "the magic";
    NIB_TRY(cursor_take(&h->at, magic, sizeof magic, err));
    if (!memcmp(magic, "vers", sizeof magic))
        return nib_fail(err, NIB_E_MODEL,
                        "expected a GGUF file, found what looks like a Git LFS pointer to one");
    if (memcmp(magic, GGUF_MAGIC, sizeof magic))
        return nib_fail(err, NIB_E_MODEL,
                        "not a GGUF file: expected 'GGUF' at its start, found bytes %02x %02x %02x %02x",
                        magic[0], magic[1], magic[2], magic[3]);
    h->at.what = "the version";
    NIB_TRY(cursor_u32(&h->at, &h->version, err));
    if (h->version == 2 || h->version == 3)
        return NIB_OK;
    if (h->version && !(h->version & 0xffffff))
        return nib_fail(err, NIB_E_MODEL,
                        "expected a little-endian file, found GGUF version %" PRIu32 " in big-endian order",
                        h->version >> 24);
    return nib_fail(err, NIB_E_MODEL, "expected GGUF version 2 or 3, found %" PRIu32, h->version);
}

static nib_status read_counts(header *h, nib_error *err) {
    h->at.what = "the counts";
    NIB_TRY(cursor_u64(&h->at, &h->n_tensor, err));
    NIB_TRY(cursor_u64(&h->at, &h->n_key, err));
    const uint64_t left = cursor_left(&h->at);
    if (h->n_key > left / MIN_KEY_BYTES || h->n_key > META_MAX_KEYS)
        return nib_fail(err, NIB_E_MODEL,
                        "says %" PRIu64 " metadata keys, more than %d or than the %" PRIu64
                        " bytes that follow can hold (cut off?)",
                        h->n_key, META_MAX_KEYS, left);
    if (h->n_tensor > left / MIN_TENSOR_BYTES || h->n_tensor > MAX_TENSORS)
        return nib_fail(err, NIB_E_MODEL,
                        "says %" PRIu64 " tensors, more than %d or than the %" PRIu64
                        " bytes that follow can hold (cut off?)",
                        h->n_tensor, MAX_TENSORS, left);
    return NIB_OK;
}

/* Reads the length and the bytes of a key or a tensor name (at most `max`) to out. */
static nib_status read_name(cursor *at, size_t max, char *out, size_t *n_byte, nib_error *err) {
    uint64_t n;
    NIB_TRY(cursor_u64(at, &n, err));
    if (n > max)
        return nib_fail(err, NIB_E_MODEL,
                        "%s at offset %" PRIu64
                        ": expected at most %zu bytes of name, found a length of %" PRIu64,
                        at->what, cursor_at(at), max, n);
    NIB_TRY(cursor_take(at, out, (size_t)n, err));
    *n_byte = (size_t)n;
    return NIB_OK;
}

static nib_status read_keys(header *h, const logger *log, nib_error *err) {
    enum { MAX_KEY = 65535 }; /* the format's limit, in bytes */
    char *key = mem_alloc(MAX_KEY + 1);
    if (!key)
        return nib_fail_nomem(err, MAX_KEY + 1, "a key");
    nib_status status = NIB_OK;
    uint64_t n_left_out = 0;
    for (uint64_t i = 0; i < h->n_key && status == NIB_OK; i++) {
        size_t n_key = 0;
        h->at.what = "a metadata key";
        status = read_name(&h->at, MAX_KEY, key, &n_key, err);
        if (status != NIB_OK)
            break;
        key[n_key] = 0;
        meta_value value;
        bool large = false, keep = false;
        status = gguf_value_read(&h->at, key, h->meta, &value, &large, &keep, err);
        if (status == NIB_OK && keep)
            status = meta_table_add(h->meta, key, n_key, &value, large, err);
        else if (status == NIB_OK && !keep && value.elem == META_ARRAY && n_left_out++ == 0)
            log_line(log, "metadata key '%s' is an array of arrays and was left out", key);
    }
    if (n_left_out > 1)
        log_line(log, "%" PRIu64 " more arrays of arrays were left out", n_left_out - 1);
    mem_free(key);
    return status;
}

static nib_status read_alignment(const header *h, uint64_t *alignment, nib_error *err) {
    const meta_entry *e = meta_table_find(h->meta, "general.alignment");
    *alignment = GGUF_ALIGNMENT;
    if (!e)
        return NIB_OK;
    if (e->value.type != META_INT)
        return nib_fail(err, NIB_E_MODEL, "general.alignment: expected an integer, found another type");
    const int64_t a = e->value.v.i;
    if (a <= 0 || a & (a - 1) || a > GGUF_MAX_ALIGNMENT)
        return nib_fail(err, NIB_E_MODEL,
                        "general.alignment is %" PRId64 ", expected a power of two up to %u", a,
                        GGUF_MAX_ALIGNMENT);
    *alignment = (uint64_t)a;
    return NIB_OK;
}

/* Names, for messages, of types that exist in GGUF files but not in the type table. */
static const char *foreign_type(uint32_t number) {
    static const char *const names[] = {
        [4] = "q4_2",    [5] = "q4_3",     [9] = "q8_1",   [15] = "q8_k",  [16] = "iq2_xxs",
        [17] = "iq2_xs", [18] = "iq3_xxs", [19] = "iq1_s", [21] = "iq3_s", [22] = "iq2_s",
        [29] = "iq1_m",  [34] = "tq1_0",   [35] = "tq2_0", [40] = "nvfp4",
    };
    return number < NUM_COUNT(names) && names[number] ? names[number] : "unknown";
}

/* Removes dimensions of one that follow the first in the file, that is, the outermost ones: GGUF tensors have
 * four dimensions in memory, and some writers store all of them. */
static void drop_trailing_ones(container_tensor *t) {
    int n = 0;
    while (n < t->n_dim - 1 && t->shape[n] == 1)
        n++;
    t->n_dim -= n;
    memmove(t->shape, t->shape + n, (size_t)t->n_dim * sizeof *t->shape);
}

/* Reads one tensor's row; its offset is relative to the data section. */
static nib_status read_tensor(cursor *at, container_tensor *t, char *name, size_t *n_name, nib_error *err) {
    uint32_t n_dim, type;
    at->what = "a tensor's row";
    NIB_TRY(read_name(at, TENSOR_MAX_NAME, name, n_name, err));
    name[*n_name] = 0;
    NIB_TRY(cursor_u32(at, &n_dim, err));
    if (n_dim > TENSOR_MAX_DIM)
        return nib_fail(err, NIB_E_MODEL, "tensor '%s' says %" PRIu32 " dimensions, expected at most %d",
                        name, n_dim, TENSOR_MAX_DIM);
    t->n_dim = (int)n_dim;
    for (uint32_t i = 0; i < n_dim; i++) {
        uint64_t size;
        NIB_TRY(cursor_u64(at, &size, err));
        if (size > INT64_MAX)
            return nib_fail(err, NIB_E_MODEL, "tensor '%s' says dimension %" PRIu32 " is %" PRIu64, name, i,
                            size);
        t->shape[n_dim - 1 - i] = (int64_t)size;
    }
    drop_trailing_ones(t);
    NIB_TRY(cursor_u32(at, &type, err));
    if (!type_from_gguf(type, &t->type))
        return nib_fail(err, NIB_E_MODEL,
                        "tensor '%s' has type number %" PRIu32 " (%s), which is not supported", name, type,
                        foreign_type(type));
    return cursor_u64(at, &t->offset, err);
}

static nib_status read_tensors(container *c, header *h, int file_index, nib_error *err) {
    char *name = mem_alloc(TENSOR_MAX_NAME + 1);
    if (!name)
        return nib_fail_nomem(err, TENSOR_MAX_NAME + 1, "a tensor's name");
    nib_status status = NIB_OK;
    for (uint64_t i = 0; i < h->n_tensor && status == NIB_OK; i++) {
        container_tensor t = {.file = file_index};
        size_t n_name = 0;
        status = read_tensor(&h->at, &t, name, &n_name, err);
        if (status == NIB_OK)
            status = tensor_table_add(&c->tensors, name, n_name, &t, err);
    }
    mem_free(name);
    return status;
}

/* Turns the relative offsets of the tensors from `first` on into offsets in the file. */
static nib_status place_tensors(container *c, const header *h, size_t first, uint64_t file_bytes,
                                nib_error *err) {
    uint64_t alignment;
    NIB_TRY(read_alignment(h, &alignment, err));
    for (size_t i = first; i < c->tensors.n; i++) {
        const container_tensor *t = &c->tensors.all[i];
        if (t->offset % alignment)
            return nib_fail(err, NIB_E_MODEL,
                            "tensor '%s' is at offset %" PRIu64 ", expected a multiple of %" PRIu64, t->name,
                            t->offset, alignment);
    }
    const uint64_t begin = (cursor_at(&h->at) + alignment - 1) / alignment * alignment;
    return tensor_table_place(&c->tensors, first, begin, file_bytes, err);
}

static nib_status read_header(container *c, header *h, int file_index, nib_error *err) {
    const size_t first = c->tensors.n;
    NIB_TRY(read_magic(h, err));
    NIB_TRY(read_counts(h, err));
    NIB_TRY(read_keys(h, c->log, err));
    NIB_TRY(read_tensors(c, h, file_index, err));
    return place_tensors(c, h, first, file_size(h->at.f), err);
}

/* Reads one file's keys into meta and its tensors into the container; errors name the file. */
static nib_status read_file(container *c, int file_index, meta_table *meta, nib_error *err) {
    header h = {.meta = meta};
    NIB_TRY(cursor_open(&h.at, c->files[file_index], CONTAINER_MAX_HEADER - c->header_bytes, err));
    const nib_status status = read_header(c, &h, file_index, err);
    c->header_bytes += cursor_at(&h.at);
    cursor_close(&h.at);
    return status == NIB_E_MODEL ? nib_fail_prefix(err, status, file_path(c->files[file_index])) : status;
}

static int64_t meta_int(const meta_table *meta, const char *key, int64_t otherwise) {
    const meta_entry *e = meta_table_find(meta, key);
    return e && e->value.type == META_INT ? e->value.v.i : otherwise;
}

/* "-00001-of-00003.gguf" at the end of the first file's name. */
enum { SPLIT_TAIL = 20 };

static bool split_name_ok(const char *path, int64_t n_split) {
    char expected[SPLIT_TAIL + 16];
    const size_t n = strlen(path);
    snprintf(expected, sizeof expected, "-00001-of-%05" PRId64 ".gguf", n_split);
    return strlen(expected) == SPLIT_TAIL && n > SPLIT_TAIL && !strcmp(path + n - SPLIT_TAIL, expected);
}

static nib_status read_shard(container *c, const char *path, int64_t number, int64_t n_split,
                             nib_error *err) {
    int index;
    if (!path_exists(path))
        return nib_fail(err, NIB_E_MODEL,
                        "%s: not found; expected part %" PRId64 " of %" PRId64 " of a split model", path,
                        number + 1, n_split);
    NIB_TRY(container_add_file(c, path, &index, err));
    meta_table meta;
    meta_table_init(&meta);
    nib_status status = read_file(c, index, &meta, err);
    const int64_t no = meta_int(&meta, "split.no", -1), count = meta_int(&meta, "split.count", -1);
    if (status == NIB_OK && (no != number || count != n_split))
        status = nib_fail(err, NIB_E_MODEL,
                          "%s: expected part number %" PRId64 " of %" PRId64
                          " (split.no, split.count), found %" PRId64 " of %" PRId64,
                          path, number, n_split, no, count);
    meta_table_deinit(&meta);
    return status;
}

static nib_status read_shards(container *c, int64_t n_split, nib_error *err) {
    const size_t n_path = strlen(c->path);
    char *path = mem_strdup(c->path);
    if (!path)
        return nib_fail_nomem(err, n_path + 1, "a shard's name");
    nib_status status = NIB_OK;
    for (int64_t i = 1; i < n_split && status == NIB_OK; i++) {
        char number[24];
        snprintf(number, sizeof number, "%05" PRId64, i + 1);
        memcpy(path + n_path - SPLIT_TAIL + 1, number, 5);
        status = read_shard(c, path, i, n_split, err);
    }
    mem_free(path);
    return status;
}

nib_status gguf_read(container *c, nib_error *err) {
    c->kind = CONTAINER_GGUF;
    NIB_TRY(read_file(c, 0, &c->meta, err));
    const int64_t n_split = meta_int(&c->meta, "split.count", 0);
    if (n_split <= 1)
        return NIB_OK;
    const int64_t no = meta_int(&c->meta, "split.no", 0);
    if (no != 0)
        return nib_fail(err, NIB_E_MODEL,
                        "%s: is part %" PRId64 " of %" PRId64 " of a split model; give the first part",
                        c->path, no + 1, n_split);
    if (!split_name_ok(c->path, n_split))
        return nib_fail(err, NIB_E_MODEL,
                        "%s: says it is the first of %" PRId64
                        " parts, expected a name that ends in -00001-of-%05" PRId64 ".gguf",
                        c->path, n_split, n_split);
    NIB_TRY(read_shards(c, n_split, err));
    const int64_t n_tensor = meta_int(&c->meta, "split.tensors.count", (int64_t)c->tensors.n);
    if (n_tensor != (int64_t)c->tensors.n)
        return nib_fail(err, NIB_E_MODEL,
                        "%s: expected %" PRId64 " tensors in its %" PRId64 " parts, found %zu", c->path,
                        n_tensor, n_split, c->tensors.n);
    return NIB_OK;
}
