/* tile_signs.c - many activation rows and codes of 8 bits in groups of 16 and 32: the blocks of
 * tile_blocked.c, but a code's sign moves to the activation instead of the code being cut in two. That is 34
 * vector instructions for 256 multiply-adds instead of 38, of which 26 multiply instead of 20 (vpsignb shares
 * their pipes). Which of them is faster depends on the processor (docs/kernels.md). */
#define DOT_SIGNS 1
#include "kernels/cpu/avx2/dot.h"

#include "base/cpu.h"
#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/blocked.h"

/* Zen 3 has no AVX-512 and is faster so. Zen 4 has it, and halves are faster there. */
static bool signs_suit(const pack_format *f, int64_t n_row) {
    return blocked_suits(f, n_row) && !cpu_get()->avx512;
}

const strategy avx2_signs = {.name = "padding.signs",
                             .can = blocked_can,
                             .run = blocked_run,
                             .rule_rows = STRATEGY_ANY_ROWS,
                             .suits = signs_suit};
