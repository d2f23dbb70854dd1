/* tile_signs.c - products of many activation rows with 8-bit codes in groups of 16 and 32. Blocks are those
 * of tile_blocked.c, but a code's sign is moved to the activation, and the code is not cut into halves. So
 * 256 multiply-adds take 34 vector instructions instead of 38, but 26 of them use the multiplication ports
 * instead of 20 (vpsignb uses them too). Which way is faster depends on the processor (docs/kernels.md). */
#define DOT_SIGNS 1
#include "kernels/cpu/avx2/dot.h"

#include "base/cpu.h"
#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/blocked.h"

/* Moved signs are faster on Zen 3, which has no AVX-512. Halves are faster on Zen 4, which has it. */
static bool signs_suit(const pack_format *f, int64_t n_row) {
    (void)f;
    (void)n_row;
    return !cpu_get()->avx512;
}

const strategy avx2_signs = {.name = "padding.signs",
                             .can = blocked_can,
                             .run = blocked_run,
                             .rule_rows = STRATEGY_ANY_ROWS,
                             .suits = signs_suit};
