/* tile_blocked.c - products of many activation rows with vpdpbusd. */
#include "kernels/cpu/avxvnni/dot.h"

#include "kernels/cpu/avx2/blocked.h"
#include "kernels/cpu/avxvnni/avxvnni.h"

const strategy avxvnni_blocked = {
    .name = "padding.blocked", .can = blocked_can, .run = blocked_run, .rule_rows = STRATEGY_ANY_ROWS};
