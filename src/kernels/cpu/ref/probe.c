/* probe.c - measures how fast plain C multiplies on registers. */
#include "kernels/cpu/ref/ref.h"

enum { CHAINS = 8 };

static int64_t multiply(int64_t rounds, int32_t *sink) {
    int32_t sum[CHAINS] = {0}, w = (int32_t)(rounds & 255), x = -3;
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++) {
            __asm__("" : "+r"(w), "+r"(x)); /* the compiler must assume new operands each time */
            sum[i] = (int32_t)((uint32_t)sum[i] + (uint32_t)(w * x));
        }
    for (int i = 0; i < CHAINS; i++)
        *sink ^= sum[i];
    return rounds * CHAINS;
}

const dpr_probe ref_probes[] = {{"multiply", 8, 8, multiply}, {NULL, 0, 0, NULL}};
