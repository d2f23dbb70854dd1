/* imatrix.c - see imatrix.h. */
#include "quantize/imatrix_file.h"

#include "base/mem.h"
#include "base/num.h"
#include "formats/cursor.h"
#include "formats/gguf_write.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 4096, MAX_ENTRIES = 1 << 20, CHUNK = 512 /* tokens of a chunk in llama-imatrix */ };
static const char sums_end[] = ".in_sum2", counts_end[] = ".counts";

/* ---- for both kinds of files ---- */

typedef struct reading {
    const gguf_tensors *c;
    const logger *log;
    stats *out;
    const container_tensor **names; /* [n_tensor], sorted by name; each is the `as` of a tensor */
    size_t *first;                  /* [n_tensor]: index of each tensor's first mean in out->own */
    int n_known, n_other;
} reading;

static int64_t width_of(const container_tensor *t) {
    return t->n_dim >= 2 ? t->shape[t->n_dim - 1] : 0;
}

static int64_t count_of(const gguf_tensor *t) {
    return width_of(&t->as) * stats_experts(t);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const container_tensor *const *)a)->name, (*(const container_tensor *const *)b)->name);
}

static nib_status open_reading(reading *r, const gguf_tensors *c, const logger *log, stats *out,
                               nib_error *err) {
    const size_t n = c->n;
    size_t all = 0;
    memset(out, 0, sizeof *out);
    *r = (reading){.c = c,
                   .log = log,
                   .out = out,
                   .names = mem_array(n + 1, sizeof *r->names),
                   .first = mem_array(n + 1, sizeof *r->first)};
    for (size_t i = 0; r->first && r->names && i < n; i++) {
        r->first[i] = all;
        all += (size_t)count_of(&c->all[i]);
        r->names[i] = &c->all[i].as;
    }
    if (r->names)
        qsort(r->names, n, sizeof *r->names, by_name);
    out->of = mem_calloc(n + 1, sizeof *out->of);
    out->own = mem_array(all + 1, sizeof *out->own);
    if (r->first && r->names && out->of && out->own)
        return NIB_OK;
    return nib_fail_nomem(err, all * sizeof *out->own, "an importance matrix");
}

/* Finds the destination of a named tensor's means; *means NULL: unknown name. n: the file's number of values.
 */
static nib_status place(reading *r, const char *name, uint64_t n, float **means, nib_error *err) {
    const container_tensor key = {.name = name}, *wanted = &key;
    const container_tensor *const *found = bsearch(&wanted, r->names, r->c->n, sizeof *r->names, by_name);
    const container_tensor *t = found ? *found : NULL;
    *means = NULL;
    if (!t) {
        if (r->n_other++ == 0)
            log_line(r->log, "the importance of '%s' is ignored: the model has no such tensor", name);
        return NIB_OK;
    }
    size_t i = 0;
    while (&r->c->all[i].as != t)
        i++;
    if (n != (uint64_t)count_of(&r->c->all[i]))
        return nib_fail(err, NIB_E_MODEL, "'%s': expected importance of %" PRId64 " columns, found %" PRIu64,
                        name, count_of(&r->c->all[i]), n);
    *means = r->out->own + r->first[i];
    r->out->of[i] = *means;
    r->n_known++;
    return NIB_OK;
}

static nib_status check_means(const char *name, const float *means, uint64_t n, nib_error *err) {
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(means[i]) || means[i] < 0)
            return nib_fail(err, NIB_E_MODEL, "'%s': expected finite importance of 0 or more", name);
    return NIB_OK;
}

/* ---- the older file ---- */

static nib_status read_entry(reading *r, cursor *at, char *name, nib_error *err) {
    uint32_t n_name, n_call, n;
    float *means;
    NIB_TRY(cursor_u32(at, &n_name, err));
    if (n_name > MAX_NAME)
        return nib_fail(err, NIB_E_MODEL, "expected a name of at most %d bytes, found %" PRIu32, MAX_NAME,
                        n_name);
    NIB_TRY(cursor_take(at, name, n_name, err));
    name[n_name] = '\0';
    NIB_TRY(cursor_u32(at, &n_call, err));
    NIB_TRY(cursor_u32(at, &n, err));
    NIB_TRY(cursor_need(at, (uint64_t)n * sizeof *means, err));
    NIB_TRY(place(r, name, n, &means, err));
    for (uint32_t i = 0; i < n; i++) {
        float sum;
        NIB_TRY(cursor_take(at, &sum, sizeof sum, err));
        if (means)
            means[i] = n_call ? sum / (float)n_call : sum;
    }
    return means ? check_means(name, means, n, err) : NIB_OK;
}

static nib_status read_old(reading *r, file *f, nib_error *err) {
    char name[MAX_NAME + 1];
    cursor at;
    uint32_t n = 0;
    NIB_TRY(cursor_open(&at, f, file_size(f), err));
    at.what = "an importance matrix";
    nib_status status = cursor_u32(&at, &n, err);
    if (status == NIB_OK && (n == 0 || n > MAX_ENTRIES))
        status = nib_fail(err, NIB_E_MODEL, "expected 1 to %d entries, found %" PRIu32, MAX_ENTRIES, n);
    for (uint32_t i = 0; i < n && status == NIB_OK; i++)
        status = read_entry(r, &at, name, err);
    cursor_close(&at);
    return status;
}

/* ---- the GGUF file ---- */

static nib_status read_floats(const container *c, const container_tensor *t, float *out, nib_error *err) {
    return file_read_at(container_file(c, t->file), out, t->offset, t->bytes, err);
}

/* Divides the sums by their counts, of which a stack has one for each expert. */
static nib_status divide(const container *from, const container_tensor *counts, float *sums, int64_t k,
                         int64_t n, nib_error *err) {
    float *count = mem_array((size_t)n, sizeof *count);
    int64_t *n_row = mem_array((size_t)n, sizeof *n_row);
    nib_status status = count && n_row ? read_floats(from, counts, count, err)
                                       : nib_fail_nomem(err, (size_t)n * sizeof *n_row, "counts");
    for (int64_t i = 0; i < n && status == NIB_OK; i++) {
        if (!(count[i] >= 0 && count[i] < 0x1p53f))
            status = nib_fail(err, NIB_E_MODEL, "'%s': expected counts of 0 or more", counts->name);
        else
            n_row[i] = (int64_t)count[i];
    }
    if (status == NIB_OK)
        imatrix_experts_mean(sums, k, n_row, n);
    mem_free(count);
    mem_free(n_row);
    return status;
}

static nib_status read_sums(reading *r, const container *from, const container_tensor *t, nib_error *err) {
    char name[MAX_NAME + 1];
    const container_tensor *counts;
    float *means;
    const size_t n = strlen(t->name) - strlen(sums_end);
    if (strlen(t->name) > MAX_NAME - sizeof counts_end)
        return NIB_OK;
    snprintf(name, sizeof name, "%.*s%s", (int)n, t->name, counts_end);
    counts = container_find(from, name);
    name[n] = '\0';
    const uint64_t n_mean = t->bytes / sizeof *means, n_count = counts ? counts->bytes / sizeof *means : 0;
    if (t->type != TYPE_F32 || !counts || counts->type != TYPE_F32 || n_count == 0 || n_mean % n_count)
        return nib_fail(err, NIB_E_MODEL, "'%s': expected sums and their counts in f32", name);
    NIB_TRY(place(r, name, n_mean, &means, err));
    if (!means)
        return NIB_OK;
    NIB_TRY(read_floats(from, t, means, err));
    NIB_TRY(divide(from, counts, means, (int64_t)(n_mean / n_count), (int64_t)n_count, err));
    return check_means(name, means, n_mean, err);
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n > m && !strcmp(text + n - m, end);
}

static nib_status read_new(reading *r, const char *path, nib_error *err) {
    container *from;
    NIB_TRY(container_open(path, r->log, &from, err));
    nib_status status = NIB_OK;
    for (size_t i = 0; i < container_n_tensor(from) && status == NIB_OK; i++) {
        const container_tensor *t = container_tensor_at(from, i);
        if (ends_with(t->name, sums_end))
            status = read_sums(r, from, t, err);
    }
    container_close(from);
    return status;
}

nib_status imatrix_file_read(const char *path, const gguf_tensors *c, const logger *log, stats *out,
                             nib_error *err) {
    reading r;
    file *f;
    char magic[4] = "";
    memset(out, 0, sizeof *out);
    NIB_TRY(file_open(path, 0, &f, err));
    nib_status status = open_reading(&r, c, log, out, err);
    if (status == NIB_OK && file_size(f) >= sizeof magic)
        status = file_read_at(f, magic, 0, sizeof magic, err);
    if (status == NIB_OK)
        status = memcmp(magic, GGUF_MAGIC, sizeof magic) ? read_old(&r, f, err) : read_new(&r, path, err);
    if (status == NIB_OK && r.n_known == 0)
        status = nib_fail(err, NIB_E_MODEL, "expected importance of the model's tensors, found none");
    mem_free(r.names);
    mem_free(r.first);
    file_close(f);
    return status == NIB_E_MODEL ? nib_fail_prefix(err, status, path) : status;
}

/* ---- writing ---- */

static nib_status declare(gguf_writer *w, const gguf_tensors *c, const stats *s, nib_error *err) {
    char name[MAX_NAME + 16];
    for (size_t i = 0; i < c->n; i++) {
        const container_tensor *t = &c->all[i].as;
        const int64_t n = stats_experts(&c->all[i]), sums[] = {n, width_of(t)}, counts[] = {n, 1};
        if (!s->of[i])
            continue;
        snprintf(name, sizeof name, "%s%s", t->name, sums_end);
        NIB_TRY(gguf_writer_tensor(w, name, TYPE_F32, 2, sums, err));
        snprintf(name, sizeof name, "%s%s", t->name, counts_end);
        NIB_TRY(gguf_writer_tensor(w, name, TYPE_F32, 2, counts, err));
    }
    return NIB_OK;
}

/* Writes means as sums with a count of 1; llama.cpp divides the sum by the count. */
static nib_status write_all(gguf_writer *w, const gguf_tensors *c, const stats *s, const char *dataset,
                            nib_error *err) {
    const meta_string from = {dataset, strlen(dataset)};
    const float one = 1;
    NIB_TRY(gguf_writer_set_string(w, "general.type", "imatrix", 7, err));
    NIB_TRY(gguf_writer_set_strings(w, "imatrix.datasets", &from, 1, err));
    NIB_TRY(gguf_writer_set_int(w, "imatrix.chunk_count", GGUF_U32, num_div_up(NUM_MAX(s->n_token, 1), CHUNK),
                                err));
    NIB_TRY(gguf_writer_set_int(w, "imatrix.chunk_size", GGUF_U32, CHUNK, err));
    NIB_TRY(declare(w, c, s, err));
    for (size_t i = 0; i < c->n; i++)
        if (s->of[i]) {
            const size_t n = (size_t)count_of(&c->all[i]);
            NIB_TRY(gguf_writer_data(w, s->of[i], n * sizeof *s->of[i], err));
            for (int64_t e = 0; e < stats_experts(&c->all[i]); e++)
                NIB_TRY(gguf_writer_data(w, &one, sizeof one, err));
        }
    return NIB_OK;
}

nib_status imatrix_file_write(const char *path, const gguf_tensors *c, const stats *s, const char *dataset,
                              nib_error *err) {
    gguf_writer *w;
    NIB_TRY(gguf_writer_open(path, &w, err));
    const nib_status status = write_all(w, c, s, dataset, err);
    if (status == NIB_OK)
        return gguf_writer_commit(w, err);
    gguf_writer_abort(w);
    return status;
}
