/* imatrix.c - see imatrix.h. */
#include "profile/imatrix.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "profile/profile_file.h"

#include <math.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define ENDING "-imatrix.nibimx"
#define MAGIC  "nibimx\0\1" /* the last byte is the version */
enum { MAX_SITE = 1 << 20, SUM_BYTES = 8 };

typedef struct head {
    char magic[8];
    char content[40], prompts[40];
    uint64_t n_site;
} head;

bool imatrix_bytes(const int64_t *k, int n_site, uint64_t *bytes) {
    *bytes = ((uint64_t)n_site + 1) * sizeof(uint64_t);
    for (int i = 0; i < n_site; i++)
        if (k[i] < 0 || k[i] > INT64_C(1) << 40 ||
            !num_add_u64(*bytes, (uint64_t)k[i] * sizeof(float), bytes))
            return false;
    return *bytes < SIZE_MAX / 2;
}

nib_status imatrix_begin(model_imatrix *c, const int64_t *k, int n_site, nib_error *err) {
    memset(c, 0, sizeof *c);
    if (n_site < 0 || n_site > MAX_SITE || !imatrix_bytes(k, n_site, &c->n_byte))
        return nib_fail(err, NIB_E_MODEL, "the channels of %d inputs overflow the profile's bounds", n_site);
    c->n_site = n_site;
    c->first = mem_calloc((size_t)n_site + 1, sizeof *c->first);
    for (int i = 0; c->first && i < n_site; i++)
        c->first[i + 1] = c->first[i] + (uint64_t)k[i];
    c->mean = c->first ? mem_calloc((size_t)c->first[n_site] + 1, sizeof *c->mean) : NULL;
    if (c->mean)
        return NIB_OK;
    const uint64_t bytes = c->n_byte;
    imatrix_clear(c);
    return nib_fail_nomem(err, (size_t)bytes, "what is known of channels");
}

void imatrix_experts_mean(float *sum, int64_t k, const int64_t *n_row, int64_t n_expert) {
    for (int64_t i = 0; i < k; i++) {
        double all = 0, n = 0;
        for (int64_t e = 0; e < n_expert; e++) {
            all += (double)sum[e * k + i];
            n += (double)n_row[e];
        }
        for (int64_t e = 0; e < n_expert; e++) {
            float *mean = &sum[e * k + i];
            *mean = n_row[e] > 0 ? *mean / (float)n_row[e] : n > 0 ? (float)(all / n) : 0;
        }
    }
}

void imatrix_clear(model_imatrix *c) {
    mem_free(c->first);
    mem_free(c->mean);
    memset(c, 0, sizeof *c);
}

char *imatrix_path(const char *content, const char *prompts) {
    return profile_path(content, prompts, ENDING);
}

char *imatrix_find(const char *content) {
    return profile_find(content, ENDING);
}

/* ---- the file ---- */

static bool is_key(const char key[40]) {
    const size_t n = strnlen(key, 40);
    return n > 0 && n < 40 && strspn(key, "0123456789abcdef") == n;
}

static nib_status check(const model_imatrix *expected, const char *text, size_t n_byte, const char *content,
                        nib_error *err) {
    const size_t widths = (size_t)expected->n_site * sizeof(uint64_t);
    const size_t means = (size_t)expected->first[expected->n_site] * sizeof(float);
    head h;
    XXH64_hash_t sum;
    if (n_byte < sizeof h + SUM_BYTES)
        return nib_fail(err, NIB_E_MODEL, "expected at least %zu bytes, found %zu", sizeof h + SUM_BYTES,
                        n_byte);
    memcpy(&h, text, sizeof h);
    memcpy(&sum, text + n_byte - SUM_BYTES, SUM_BYTES);
    if (memcmp(h.magic, MAGIC, sizeof h.magic) != 0)
        return nib_fail(err, NIB_E_MODEL,
                        "expected nibble's channel statistics, version %d, found another "
                        "file",
                        MAGIC[7]);
    if (XXH3_64bits(text, n_byte - SUM_BYTES) != sum || !is_key(h.content) || !is_key(h.prompts))
        return nib_fail(err, NIB_E_MODEL,
                        "expected a checksum that matches the file's bytes, found a damaged file");
    NIB_TRY(profile_check_content(content, h.content, err));
    bool same = h.n_site == (uint64_t)expected->n_site && n_byte == sizeof h + widths + means + SUM_BYTES;
    for (int i = 0; i < expected->n_site && same; i++) {
        uint64_t k;
        memcpy(&k, text + sizeof h + (size_t)i * sizeof k, sizeof k);
        same = k == expected->first[i + 1] - expected->first[i];
    }
    if (same)
        return NIB_OK;
    return nib_fail(
        err, NIB_E_MODEL, "expected %d inputs in %zu bytes, found %llu in %zu, or of other widths",
        expected->n_site, sizeof h + widths + means + SUM_BYTES, (unsigned long long)h.n_site, n_byte);
}

static nib_status read_means(model_imatrix *c, const char *text, nib_error *err) {
    const size_t n = (size_t)c->first[c->n_site];
    memcpy(c->content, text + offsetof(head, content), sizeof c->content);
    memcpy(c->prompts, text + offsetof(head, prompts), sizeof c->prompts);
    memcpy(c->mean, text + sizeof(head) + (size_t)c->n_site * sizeof(uint64_t), n * sizeof *c->mean);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(c->mean[i]) || c->mean[i] < 0)
            return nib_fail(err, NIB_E_MODEL, "expected mean squares of 0 or more, found %s at place %zu",
                            num_text(c->mean[i], 6), i);
    return NIB_OK;
}

nib_status imatrix_load(const char *path, const char *content, const int64_t *k, int n_site,
                        model_imatrix *out, nib_error *err) {
    model_imatrix c;
    char *text = NULL;
    size_t n_byte = 0;
    if (!path_exists(path))
        return nib_fail(err, NIB_E_NOTFOUND, "%s: no such profile", path);
    NIB_TRY(imatrix_begin(&c, k, n_site, err));
    const uint64_t max = c.n_byte + sizeof(head) + SUM_BYTES;
    nib_status status = file_read_all(path, max, &text, &n_byte, err);
    if (status == NIB_OK) {
        status = check(&c, text, n_byte, content, err);
        if (status == NIB_OK)
            status = read_means(&c, text, err);
        if (status != NIB_OK)
            nib_fail_prefix(err, status, path);
    }
    mem_free(text);
    if (status == NIB_OK)
        *out = c;
    else
        imatrix_clear(&c);
    return status;
}

static nib_status write_all(file_writer *w, const model_imatrix *c, nib_error *err) {
    const size_t widths = (size_t)c->n_site * sizeof(uint64_t);
    const size_t means = (size_t)c->first[c->n_site] * sizeof *c->mean;
    const size_t n_byte = sizeof(head) + widths + means;
    head h = {.n_site = (uint64_t)c->n_site};
    char *text = mem_alloc(n_byte);
    if (!text)
        return nib_fail_nomem(err, n_byte, "what is known of channels");
    memcpy(h.magic, MAGIC, sizeof h.magic);
    memcpy(h.content, c->content, sizeof h.content);
    memcpy(h.prompts, c->prompts, sizeof h.prompts);
    memcpy(text, &h, sizeof h);
    for (int i = 0; i < c->n_site; i++) {
        const uint64_t k = c->first[i + 1] - c->first[i];
        memcpy(text + sizeof h + (size_t)i * sizeof k, &k, sizeof k);
    }
    memcpy(text + sizeof h + widths, c->mean, means);
    const XXH64_hash_t sum = XXH3_64bits(text, n_byte);
    nib_status status = file_writer_write(w, text, n_byte, err);
    if (status == NIB_OK)
        status = file_writer_write(w, &sum, sizeof sum, err);
    mem_free(text);
    return status;
}

nib_status imatrix_save(const char *path, const model_imatrix *c, nib_error *err) {
    file_writer *w;
    NIB_TRY(path_make_folders(path, err));
    NIB_TRY(file_writer_open(path, &w, err));
    return file_writer_end(w, write_all(w, c, err), err);
}
