/* kv.c - the sizes of a KV cache. */
#include "base/num.h"
#include "kernels/kernels.h"
#include "kernels/kv_layout.h"

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
