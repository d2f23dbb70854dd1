/* kv.c - the sizes of a KV cache, and decoding of its codes. */
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

bool kv_page_bytes(type_id type, int64_t n_kv_head, int64_t d_head, uint64_t *bytes) {
    const int64_t max_d = INT64_MAX / 4096; /* a head takes fewer than 64 * 9 * d_head bytes */
    if (n_kv_head < 0 || d_head < 0 || d_head > max_d)
        return false;
    return num_mul_u64((uint64_t)n_kv_head, (uint64_t)kv_head_bytes(type, d_head), bytes) &&
           *bytes <= INT64_MAX;
}

uint64_t kv_page_touched(type_id type, int64_t n_kv_head, int64_t d_head, int64_t n, uint64_t page) {
    const uint64_t each = (uint64_t)kv_head_bytes(type, d_head);
    const uint64_t part = each / KV_BLOCK * (uint64_t)NUM_MIN(num_round_up(n, KV_LANES), KV_BLOCK);
    return (uint64_t)n_kv_head * NUM_MIN((part + page - 1) / page * page, each);
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
