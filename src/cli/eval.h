/* eval.h - the measures behind nibble eval. Each returns an exit code. */
#ifndef NIB_CLI_EVAL_H
#define NIB_CLI_EVAL_H

#include "cli/cli.h"

int eval_perplexity(cli_args *args);
int eval_hellaswag(cli_args *args);

/* log(sum(exp(logits))) in double, stable. */
double eval_log_sum_exp(const float *logits, int64_t n);

/* Saved distributions: one row of log-probabilities for each scored position, in 16 bits between the row's
 * largest and 16 nats below it (what lies lower counts as that). The header names what it belongs to. */
typedef struct kld_file kld_file;
/* Opens FILE to compare when it exists (*saving = false), else to save. The text's tokens and the settings
 * must be the same; NIB_E_USAGE says what differs. */
nib_status kld_open(const char *path, const int32_t *tokens, int64_t n_token, int64_t n_ctx, int64_t n_vocab,
                    bool *saving, kld_file **out, nib_error *err);
/* Saving: keeps the row. Comparing: adds the divergence from the row of the base. target is the next token.
 */
nib_status kld_row(kld_file *k, const float *logits, int32_t target, nib_error *err);
typedef struct kld_stats {
    int64_t n;
    double mean, stderr_mean, max; /* KL(base || this), nats */
    double same_top;               /* share of positions whose likeliest token is the same */
    double base_ppl;
} kld_stats;
nib_status kld_close(kld_file *k, kld_stats *stats, nib_error *err); /* saving: the file appears only now */
void kld_abort(kld_file *k);

#endif
