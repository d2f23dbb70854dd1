/* pace.h - how many rows of prompts a step has beside those of running answers, so that these need not wait
 * long for their next token (chunked prefill: Agrawal et al. 2024, section 4.2). Learned from the steps that
 * were: what a row of a prompt adds to a step. */
#ifndef NIB_SESSION_PACE_H
#define NIB_SESSION_PACE_H

#include <stdint.h>

/* Zeroed: nothing is known. */
typedef struct pace {
    double row_s; /* seconds that a row of a prompt adds; 0: not known */
} pace;

/* A step took so long with n_row rows of prompts; without them decode_s is expected (0: there was nothing
 * else). */
void pace_note(pace *p, double seconds, double decode_s, int64_t n_row);
/* Rows of prompts for a step that is to take target_s, without them decode_s: a few at least, so that prompts
 * go on, and as many as make it take twice as long as without them. */
int64_t pace_rows(const pace *p, double target_s, double decode_s);

#endif
