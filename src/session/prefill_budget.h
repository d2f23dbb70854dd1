/* prefill_budget.h - how many rows of prompts a step computes beside the rows of running answers (chunked
 * prefill: Agrawal et al. 2024, section 4.2). A step with fewer rows of prompts gives running answers their
 * next token sooner. The time that a row of a prompt adds is learned from past steps. */
#ifndef NIB_SESSION_PREFILL_BUDGET_H
#define NIB_SESSION_PREFILL_BUDGET_H

#include <stdint.h>

/* Zeroed: nothing is learned yet. */
typedef struct prefill_budget {
    double row_s; /* seconds that a row of a prompt adds; 0: unknown */
} prefill_budget;

/* Learns from a step of `seconds` with n_row rows of prompts. decode_s: predicted seconds of its other rows
 * (0: it had none). */
void prefill_budget_note(prefill_budget *p, double seconds, double decode_s, int64_t n_row);
/* Number of prompt rows for a step with a target of target_s seconds whose other rows take decode_s. At least
 * a few, so that prompts make progress, and if the other rows leave less than decode_s of the target, as many
 * as take decode_s again. */
int64_t prefill_budget_rows(const prefill_budget *p, double target_s, double decode_s);

#endif
