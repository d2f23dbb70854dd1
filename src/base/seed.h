/* seed.h - a random number that is unknown outside the process. */
#ifndef NIB_BASE_SEED_H
#define NIB_BASE_SEED_H

#include <stdint.h>

/* For hash tables whose keys come from a file: so that it cannot make them collide. Never what an answer
 * depends on. */
uint64_t seed_secret(void);

#endif
