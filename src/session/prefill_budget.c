/* prefill_budget.c - see prefill_budget.h. */
#include "session/prefill_budget.h"

#include "base/num.h"

enum { MIN_ROWS = 8, FIRST_ROWS = 64 /* before any measurement */, MAX_ROWS = 1 << 20 };
#define NEW_SHARE 0.3 /* weight of a new time in the moving average; a longer time replaces it */

void prefill_budget_note(prefill_budget *p, double seconds, double decode_s, int64_t n_row) {
    if (n_row < 1 || !(seconds > 0))
        return;
    /* decode_s may be too large, so a row takes at least a little. */
    const double row = NUM_MAX(seconds - decode_s, 0.01 * seconds) / (double)n_row;
    p->row_s = p->row_s > 0 && row < p->row_s ? p->row_s + NEW_SHARE * (row - p->row_s) : row;
}

int64_t prefill_budget_rows(const prefill_budget *p, double target_s, double decode_s) {
    if (!(p->row_s > 0))
        return FIRST_ROWS;
    const double left = NUM_MAX(target_s - decode_s, decode_s);
    return (int64_t)NUM_MIN(NUM_MAX(left / p->row_s, (double)MIN_ROWS), (double)MAX_ROWS);
}
