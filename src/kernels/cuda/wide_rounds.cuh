/* wide_rounds.cuh - divides the rows of a product of many rows among units of work: blocks of wide_mma.cu,
 * clusters of wide_float.cu. Units with the same outputs are neighbours. */
#ifndef NIB_KERNELS_CUDA_WIDE_ROUNDS_CUH
#define NIB_KERNELS_CUDA_WIDE_ROUNDS_CUH

#include "kernels/cuda/wide.cuh"

struct wide_rounds {
    int rows;     /* rows of a whole unit */
    int n_across; /* whole units with the same outputs */
    int n_unit;   /* in all */
    int n_whole;  /* units with `rows` rows; the later ones have half as many */
    int n_half;   /* units that replace a whole one; 1 if the rows end before the second */
};
/* Chooses the division that takes the fewest cycles. The device runs `at_once` units at once, there are
 * `outputs` different outputs, and cycles(n) are the cycles of a unit of n rows. The division changes no
 * bits. A last round of at most half of the device's units has units of half as many rows; few rows have only
 * such units. */
template <class Cycles>
static wide_rounds wide_rounds_of(unsigned n_row, unsigned outputs, unsigned at_once, const Cycles &cycles) {
    static const unsigned sizes[] = {256, 128};
    uint64_t min_all = UINT64_MAX;
    wide_rounds best = {};
    for (int i = 0; i < 2; i++) {
        const unsigned n = sizes[i], across = (n_row + n - 1) / n, units = across * outputs,
                       last = units % at_once;
        const bool few = i == 1 && 2 * n_row <= n;
        const unsigned whole = few                   ? 0
                               : 2 * last <= at_once ? units - last
                                                     : units,
                       n_half = few ? 1 : 2, halves = n_half * (units - whole);
        const uint64_t all =
            (whole + at_once - 1) / at_once * cycles(n) + (halves + at_once - 1) / at_once * cycles(n / 2);
        if (all >= min_all)
            continue;
        min_all = all;
        best = {(int)n, (int)across, (int)(whole + halves), (int)whole, (int)n_half};
    }
    return best;
}

#endif
