/* prompts.h - prompts to measure a model with. */
#ifndef NIB_TESTS_PROMPTS_H
#define NIB_TESTS_PROMPTS_H

#include "measure/calibrate.h"

/* Four prompts of 5, 70, 1 and 40 arbitrary ids: more and fewer than the rows of a cell. Freed by
 * calibration_clear. */
calibration prompts_open(int64_t n_vocab);

#endif
