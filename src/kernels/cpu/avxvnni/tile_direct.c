/* tile_direct.c - products of few activation rows with vpdpbusd. */
#include "kernels/cpu/avxvnni/dot.h"

#include "kernels/cpu/avx2/direct.h"
#include "kernels/cpu/avxvnni/avxvnni.h"

const strategy avxvnni_direct = {
    .name = "padding.direct", .can = direct_can, .run = direct_run, .rule_rows = DIRECT_ROWS};
