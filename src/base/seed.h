/* seed.h - a random number that is unknown outside the process. */
#ifndef NIB_BASE_SEED_H
#define NIB_BASE_SEED_H

#include <stdint.h>

/* For hash tables with keys from a file, so that the file cannot make them collide. Answers never depend on
 * it. */
uint64_t seed_secret(void);

#endif
