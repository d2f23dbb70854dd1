/* seed.c - see seed.h. */
#include "base/seed.h"

#include <sys/random.h>
#include <time.h>

uint64_t seed_secret(void) {
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        seed = (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15u ^ (uintptr_t)&seed;
    }
    return seed;
}
