/* kld_file.c - see kld_file.h. */
#include "measure/kld_file.h"

#include "base/file.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

#include <xxhash.h>

#define KLD_SPAN 16.0f /* range of the codes: nats below the row's largest log-probability */

typedef struct kld_header {
    char magic[8];
    int64_t n_ctx, n_vocab, n_token;
    uint64_t hash;
} kld_header;

struct kld_file {
    file_writer *writer; /* when saving; otherwise NULL */
    file *reader;        /* when comparing; otherwise NULL */
    uint64_t offset;
    int64_t n_vocab;
    size_t row_bytes;
    char *row;
    int64_t n, n_same;
    double sum, sum2, max, base_nll;
};

double log_sum_exp(const float *logits, int64_t n) {
    float max = logits[0];
    for (int64_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)expf(logits[i] - max);
    return log(sum) + (double)max;
}

static nib_status check_header(const kld_header *found, const kld_header *expected, const char *path,
                               nib_error *err) {
    if (memcmp(found->magic, expected->magic, sizeof found->magic))
        return nib_fail(err, NIB_E_USAGE, "%s: expected a file of saved distributions, found another file",
                        path);
    if (found->n_ctx != expected->n_ctx || found->n_vocab != expected->n_vocab ||
        found->n_token != expected->n_token || found->hash != expected->hash)
        return nib_fail(
            err, NIB_E_USAGE,
            "%s belongs to another text or setting: it has %lld tokens, context %lld, vocabulary %lld; "
            "this run has %lld, %lld, %lld",
            path, (long long)found->n_token, (long long)found->n_ctx, (long long)found->n_vocab,
            (long long)expected->n_token, (long long)expected->n_ctx, (long long)expected->n_vocab);
    return NIB_OK;
}

static nib_status open_file(kld_file *k, const char *path, const kld_header *header, bool saving,
                            nib_error *err) {
    k->offset = sizeof *header;
    if (saving) {
        NIB_TRY(file_writer_open(path, &k->writer, err));
        return file_writer_write(k->writer, header, sizeof *header, err);
    }
    kld_header found;
    NIB_TRY(file_open(path, 0, &k->reader, err));
    NIB_TRY(file_read_at(k->reader, &found, 0, sizeof found, err));
    return check_header(&found, header, path, err);
}

nib_status kld_open(const char *path, const int32_t *tokens, int64_t n_token, int64_t n_ctx, int64_t n_vocab,
                    bool *saving, kld_file **out, nib_error *err) {
    kld_header header = {"nibkld1", n_ctx, n_vocab, n_token,
                         XXH64(tokens, (size_t)n_token * sizeof *tokens, 0)};
    header.magic[7] = '\n';
    kld_file *k = mem_calloc(1, sizeof *k);
    size_t row_bytes = sizeof(float) + (size_t)n_vocab * sizeof(uint16_t);
    if (k)
        k->row = mem_alloc(row_bytes);
    if (!k || !k->row) {
        mem_free(k);
        return nib_fail_nomem(err, row_bytes, "a row of distributions");
    }
    k->n_vocab = n_vocab;
    k->row_bytes = row_bytes;
    *saving = !path_exists(path);
    nib_status status = open_file(k, path, &header, *saving, err);
    if (status)
        kld_abort(k);
    else
        *out = k;
    return status;
}

static nib_status save_row(kld_file *k, const float *logits, float log_sum, float max, nib_error *err) {
    float largest = max - log_sum;
    memcpy(k->row, &largest, sizeof largest);
    uint16_t *codes = (uint16_t *)(void *)(k->row + sizeof largest);
    for (int64_t i = 0; i < k->n_vocab; i++) {
        float below = (max - logits[i]) * (65535.0f / KLD_SPAN);
        codes[i] = below < 65535.0f ? (uint16_t)(below + 0.5f) : 65535;
    }
    return file_writer_write(k->writer, k->row, k->row_bytes, err);
}

static nib_status compare_row(kld_file *k, const float *logits, double log_sum, int64_t top, int32_t target,
                              nib_error *err) {
    NIB_TRY(file_read_at(k->reader, k->row, k->offset, k->row_bytes, err));
    k->offset += k->row_bytes;
    float largest;
    memcpy(&largest, k->row, sizeof largest);
    const uint16_t *codes = (const uint16_t *)(const void *)(k->row + sizeof largest);
    double divergence = 0;
    int64_t base_top = 0;
    for (int64_t i = 0; i < k->n_vocab; i++) {
        double base = (double)(largest - (float)codes[i] * (KLD_SPAN / 65535.0f));
        if (codes[i] < 65535)
            divergence += exp(base) * (base - ((double)logits[i] - log_sum));
        if (codes[i] < codes[base_top])
            base_top = i;
    }
    k->base_nll -= (double)(largest - (float)codes[target] * (KLD_SPAN / 65535.0f));
    k->sum += divergence;
    k->sum2 += divergence * divergence;
    k->max = divergence > k->max ? divergence : k->max;
    k->n_same += codes[top] == codes[base_top];
    return NIB_OK;
}

nib_status kld_row(kld_file *k, const float *logits, int32_t target, nib_error *err) {
    double log_sum = log_sum_exp(logits, k->n_vocab);
    int64_t top = 0;
    for (int64_t i = 1; i < k->n_vocab; i++)
        top = logits[i] > logits[top] ? i : top;
    k->n++;
    if (k->writer)
        return save_row(k, logits, (float)log_sum, logits[top], err);
    return compare_row(k, logits, log_sum, top, target, err);
}

nib_status kld_close(kld_file *k, kld_stats *stats, nib_error *err) {
    nib_status status = NIB_OK;
    if (k->writer) {
        status = file_writer_commit(k->writer, err);
        k->writer = NULL;
    } else if (k->n) {
        double n = (double)k->n, mean = k->sum / n, variance = k->sum2 / n - mean * mean;
        stats->mean = mean;
        stats->stderr_mean = k->n > 1 && variance > 0 ? sqrt(variance / (n - 1)) : 0;
        stats->max = k->max;
        stats->same_top = (double)k->n_same / n;
        stats->base_ppl = exp(k->base_nll / n);
    }
    kld_abort(k);
    return status;
}

void kld_abort(kld_file *k) {
    file_writer_abort(k->writer);
    file_close(k->reader);
    mem_free(k->row);
    mem_free(k);
}
