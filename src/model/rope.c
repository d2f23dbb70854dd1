/* rope.c - rotary frequencies: the plain ones and the methods that extend them to longer contexts.
 * Sources: linear (kaiokendev), dynamic NTK (bloc97, emozilla), YaRN (arXiv 2309.00071), LongRoPE (arXiv
 * 2402.13753), Llama 3's piecewise scaling; defaults and corner cases follow HF transformers, the reference
 * for published checkpoints. GGUF files have Llama 3's and LongRoPE's divisors as tensors. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

/* The dimension pair that turns `turns` times in `ctx` positions (YaRN, section 3.2). */
static double pair_of_turns(double turns, double n_rot, double theta, double ctx) {
    return n_rot * log(ctx / (turns * 2 * PI)) / (2 * log(theta));
}

static void yarn_ramp(const rope_params *r, double *low, double *high) {
    double n = (double)r->n_rot;
    *low = pair_of_turns(r->beta_fast, n, r->theta, r->orig_ctx);
    *high = pair_of_turns(r->beta_slow, n, r->theta, r->orig_ctx);
    if (r->truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    *low = fmax(*low, 0);
    *high = fmin(*high, n - 1);
    if (*low == *high)
        *high += 0.001;
}

static double llama3_scaled(const rope_params *r, double f) {
    double wave = 2 * PI / f;
    if (wave < r->orig_ctx / r->high_freq)
        return f;
    if (wave > r->orig_ctx / r->low_freq)
        return f / r->factor;
    double smooth = (r->orig_ctx / wave - r->low_freq) / (r->high_freq - r->low_freq);
    return (1 - smooth) * f / r->factor + smooth * f;
}

void rope_frequencies(const rope_params *r, int64_t n_ctx_train, int64_t length, float *inv_freq,
                      float *factor) {
    double theta = r->theta, n = (double)r->n_rot, low = 0, high = 0;
    const float *divide = r->divide;
    if (r->kind == ROPE_LONG && (double)length > r->orig_ctx)
        divide = r->divide_long;
    if (r->kind == ROPE_DYNAMIC && n > 2) {
        double ctx = (double)n_ctx_train, len = fmax((double)length, ctx);
        theta *= pow(r->factor * len / ctx - (r->factor - 1), n / (n - 2));
    }
    if (r->kind == ROPE_YARN)
        yarn_ramp(r, &low, &high);
    for (int64_t i = 0; i < r->n_rot / 2; i++) {
        double f = pow(theta, -2.0 * (double)i / n);
        if (r->kind == ROPE_LINEAR) {
            f /= r->factor;
        } else if (r->kind == ROPE_LLAMA3) {
            f = llama3_scaled(r, f);
        } else if (r->kind == ROPE_YARN) {
            double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
            f = f / r->factor * ramp + f * (1 - ramp);
        }
        if (r->kind == ROPE_PART) /* whole pairs */
            f = i < (int64_t)floor(r->part * n / 2) ? f / r->factor : 0;
        if (divide != NULL)
            f /= divide[i];
        inv_freq[i] = (float)f;
    }
    *factor = (float)r->attn_factor;
}
