/* tile_blocked.c - products of many activation rows with vpmaddubsw. */
#include "kernels/cpu/avx2/dot.h"

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/blocked.h"

const strategy avx2_blocked = {
    .name = "padding.blocked", .can = blocked_can, .run = blocked_run, .rule_rows = STRATEGY_ANY_ROWS};
