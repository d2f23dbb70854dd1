/* probe.c - measures how fast plain C multiplies, and counts bits, on registers. */
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

static int64_t and_popcount(int64_t rounds, int32_t *sink) {
    int64_t sum[CHAINS] = {0};
    uint64_t w = (uint64_t)rounds * 0x9e3779b97f4a7c15u, x = 0xff00ff0ff0f0aau;
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++) {
            __asm__("" : "+r"(w), "+r"(x));
            sum[i] += __builtin_popcountll(w & x);
        }
    for (int i = 0; i < CHAINS; i++)
        *sink ^= (int32_t)sum[i];
    return rounds * CHAINS * 64;
}

const dpr_probe ref_probes[] = {
    {"multiply", 8, 8, multiply}, {"and+popcount", 1, 1, and_popcount}, {NULL, 0, 0, NULL}};
