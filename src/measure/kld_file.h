/* kld_file.h - distributions of a text's tokens on disk, and the KL divergence from them.
 *
 * A row is the log-probabilities of the vocabulary at one scored position, in 16 bits between the row's
 * largest and 16 nats below it; lower ones are stored as 16 nats below. The file: "nibkld1\n"; i64 n_ctx,
 * n_vocab, n_token; u64 hash of the tokens; rows of {f32 largest log-probability, u16 code[n_vocab]}, where
 * log p = largest - code * 16 / 65535. */
#ifndef NIB_MEASURE_KLD_FILE_H
#define NIB_MEASURE_KLD_FILE_H

#include "base/status.h"

typedef struct kld_file kld_file;

typedef struct kld_stats {
    double mean, stderr_mean, max; /* KL(base || this), nats */
    double same_top;               /* share of positions whose most probable token is the same */
    double base_ppl;
} kld_stats;

/* Opens `path` for comparison if it exists (*saving = false), else for saving. NIB_E_USAGE: it belongs to
 * other tokens or settings. */
nib_status kld_open(const char *path, const int32_t *tokens, int64_t n_token, int64_t n_ctx, int64_t n_vocab,
                    bool *saving, kld_file **out, nib_error *err);
/* The next row. Saving: writes it. Comparing: adds the divergence from the base's row. target: the token that
 * follows. */
nib_status kld_row(kld_file *k, const float *logits, int32_t target, nib_error *err);
/* Closes it. Saving: the file appears. Comparing: fills *stats. */
nib_status kld_close(kld_file *k, kld_stats *stats, nib_error *err);
void kld_abort(kld_file *k); /* closes it; a file that was being saved does not appear */

/* log(sum(exp(logits))) in double, stable. */
double log_sum_exp(const float *logits, int64_t n);

#endif
