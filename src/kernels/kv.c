/* kv.c - the sizes of a cache, and its codes read back. */
#include "base/num.h"
#include "kernels/kernels.h"
#include "kernels/kv_layout.h"

#include <math.h>
#include <string.h>

size_t attend_scratch_bytes(int64_t d_head) {
    const int64_t each = ATTEND_KV + 2 * num_round_up(d_head, KV_LANES);
    const int64_t scales = 4 * kv_scale_count(d_head); /* of a block's keys and values */
    const int64_t wide = ATTEND_KV * d_head + KV_LANES;
    const int64_t floats = each * ATTEND_PAIRS + d_head * ATTEND_QUERIES + scales + wide;
    return (size_t)num_round_up(floats * (int64_t)sizeof(float), 64);
}

int64_t attend_part_floats(int64_t d_head) {
    return KV_LANES + num_round_up(d_head, KV_LANES);
}

static bool mul3(uint64_t a, int64_t b, int64_t c, uint64_t *out) {
    return num_mul_u64(a, (uint64_t)b, out) && num_mul_u64(*out, (uint64_t)c, out) && *out <= INT64_MAX;
}

bool kv_bytes(type_id type, int64_t n_ctx, int64_t n_kv_head, int64_t d_head, uint64_t *bytes) {
    const int64_t most_d = INT64_MAX / 4096; /* a block is below 64 * 9 times as many bytes */
    uint64_t recent;
    if (n_ctx < 0 || n_ctx > INT64_MAX - KV_LANES || n_kv_head < 0 || d_head < 0 || d_head > most_d)
        return false;
    if (!kv_is_coded(type))
        return mul3((uint64_t)kv_blocks(n_ctx) * KV_LANES, n_kv_head, d_head, bytes) &&
               mul3(*bytes, type == TYPE_F16 ? 2 : 4, 1, bytes);
    return mul3((uint64_t)d_head, n_kv_head, KV_WINDOW * (int64_t)sizeof(uint16_t), &recent) &&
           mul3((uint64_t)(n_ctx / KV_BLOCK), n_kv_head, kv_block_bytes(type, d_head), bytes) &&
           num_add_u64(*bytes, recent, bytes) && *bytes <= INT64_MAX;
}

/* n_run runs of `each` bytes, of which the first `part` are touched. */
static uint64_t runs(int64_t n_run, uint64_t each, uint64_t part, uint64_t page) {
    return (uint64_t)n_run * NUM_MIN((part + page - 1) / page * page, each);
}

uint64_t kv_touched(const kv_view *kv, int64_t n, uint64_t page) {
    const bool coded = kv_is_coded(kv->type);
    const uint64_t row = (uint64_t)kv->d_head * (kv->type == TYPE_F32 ? 4 : 2);
    const int64_t held = coded ? KV_WINDOW : kv_blocks(kv->n_ctx) * KV_LANES;
    const int64_t now = NUM_MIN(num_round_up(n, KV_LANES), held);
    uint64_t sum = runs(kv->n_kv_head, row * (uint64_t)held, row * (uint64_t)now, page);
    if (!coded)
        return sum;
    const uint64_t block = (uint64_t)kv_block_bytes(kv->type, kv->d_head);
    return sum + runs(kv->n_kv_head, block * (uint64_t)(kv->n_ctx / KV_BLOCK),
                      block * (uint64_t)(n / KV_BLOCK), page);
}

static float half_at(const uint8_t *scales, int64_t i) {
    uint16_t h;
    memcpy(&h, scales + 2 * i, sizeof h);
    return half_to_float(h);
}

void kv_read(const kv_view *kv, bool is_value, int64_t head, int64_t position, float *out) {
    const uint8_t *codes = kv_block_at(kv, is_value, head, position / KV_BLOCK);
    const uint8_t *scales = codes + kv_code_bytes(kv->type, kv->d_head);
    const int64_t at = position % KV_BLOCK, n = kv_scale_count(kv->d_head), d_pad = kv_d_pad(kv->d_head);
    for (int64_t d = 0; d < kv->d_head; d++) {
        const int64_t group = is_value ? at * (d_pad / KV_GROUP) + d / KV_GROUP : at / KV_GROUP * d_pad + d;
        int64_t i = is_value ? at * d_pad + d : d * KV_BLOCK + at;
        uint8_t code = 0;
        if (kv->type == TYPE_KV8) {
            code = codes[i];
        } else if (is_value) {
            i = at * (d_pad / 2) + d / KV_GROUP * (KV_GROUP / 2) + d % (KV_GROUP / 2);
            code = d % KV_GROUP < KV_GROUP / 2 ? codes[i] & 15 : codes[i] >> 4;
        } else {
            i = d * (KV_BLOCK / 2) + at % (KV_BLOCK / 2);
            code = at < KV_BLOCK / 2 ? codes[i] & 15 : codes[i] >> 4;
        }
        out[d] = fmaf((float)code, half_at(scales, group), half_at(scales, n + group));
    }
}
