/* prefetch.h - prefetches of weights among products. */
#ifndef NIB_KERNELS_PREFETCH_H
#define NIB_KERNELS_PREFETCH_H

#include <stdint.h>

/* Prefetches a line to the first-level cache, at this place among the other instructions. The compiler moves
 * the prefetches of _mm_prefetch together to the beginning of a tile: weights that come from memory were then
 * read at half the rate, or at 0.8 of it, on a Zen 5 (docs/optimisation-log.md). */
__attribute__((always_inline)) static inline void prefetch_line(const uint8_t *line) {
    __asm__ volatile("prefetcht0 %0" : : "m"(*line));
}

#endif
