/* tile_direct.c - products of few activation rows with vpmaddubsw. */
#include "kernels/cpu/avx2/dot.h"

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/direct.h"

const strategy avx2_direct = {
    .name = "padding.direct", .can = direct_can, .run = direct_run, .rule_rows = DIRECT_ROWS};
