/* estimate.c - the activations of estimates (kernels.h). */
#include "kernels/act8.h"

#include <float.h>
#include <math.h>

/* The largest weight, 127 steps, divided by the standard deviation of its rounding to a multiple of 16 steps,
 * 16 / sqrt(12): how much an error of an activation counts beside its value. */
#define WEIGHT_SHARE 27.5

/* The largest scale of a row; NaN: one is not finite. */
static float largest_scale(const float *scale, int64_t n) {
    float max = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(scale[i] <= FLT_MAX))
            return NAN;
        max = scale[i] > max ? scale[i] : max;
    }
    return max;
}

float estimate_row(act_format f, const void *row, int64_t k, void *out) {
    const act8_layout from = act_layout_of(f, k), to = act_layout_of(ESTIMATE_ACT, k);
    const int64_t group = act_group(f, k), pad = to.scale;
    const float *scale = (const float *)(const void *)((const char *)row + from.scale);
    const float max = largest_scale(scale, num_div_up(pad, group));
    const int8_t *codes = row;
    uint8_t *bytes = out;
    double length = 0, error = 0; /* squares, in units of the largest scale */
    for (int64_t g = 0; g * group < pad; g++) {
        const float share = max > 0 ? scale[g] / max : 0;
        for (int64_t i = g * group; i < NUM_MIN((g + 1) * group, pad); i++) {
            const float x = share * (float)codes[i];
            const long code = lrintf(x);
            bytes[i] = (uint8_t)(code + 128);
            length += (double)(x * x);
            error += (double)((x - (float)code) * (x - (float)code));
        }
    }
    *(float *)(void *)(bytes + to.scale) = max;
    return max * (float)sqrt(length + WEIGHT_SHARE * WEIGHT_SHARE * error);
}
