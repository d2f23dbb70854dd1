/* kv.c - the sizes of a KV cache. */
#include "base/num.h"
#include "kernels/kernels.h"
#include "kernels/kv_layout.h"

#include <math.h>
#include <string.h>

size_t attend_scratch_bytes(int64_t d_head, bool coded) {
    const int64_t each = ATTEND_KV + 2 * num_round_up(d_head, KV_LANES);
    const int64_t factors = 2 * ATTEND_PAIRS * kv_d_pad(d_head); /* of codes, and lists of their groups */
    const int64_t codes = coded ? factors + (1 + KV_LANES) * kv_d_pad(d_head) / KV_GROUP : 0;
    const int64_t wide = ATTEND_KV * d_head + KV_LANES;
    const int64_t floats = each * ATTEND_PAIRS + d_head * ATTEND_QUERIES + codes + wide;
    return (size_t)num_round_up(floats * (int64_t)sizeof(float), 64);
}

size_t attend_top_bytes(int64_t n_position) {
    const size_t each = (size_t)num_round_up(n_position, KV_BLOCK);
    return each * (ATTEND_TOP_PAIRS * sizeof(float) + sizeof(int32_t));
}

/* Integers in the order of floats; a NaN is the largest, so it is chosen and reaches the output. */
static uint64_t key_of(float x) {
    uint32_t bits;
    if (isnan(x))
        return UINT32_MAX;
    x += 0.0F; /* -0 is 0 */
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
}

int64_t attend_choose(float *x, int64_t n, int64_t k, int32_t *at) {
    static const struct { int shift, bits; } digits[] = {{21, 11}, {10, 11}, {0, 10}};
    int32_t count[1 << 11];
    uint64_t least = 0; /* its digits so far */
    int64_t n_chosen = 0;
    for (size_t i = 0; i < NUM_COUNT(digits); i++) {
        const int shift = digits[i].shift, bits = digits[i].bits;
        uint64_t digit = (UINT64_C(1) << bits) - 1;
        memset(count, 0, sizeof count);
        for (int64_t j = 0; j < n; j++) {
            const uint64_t key = key_of(x[j]);
            count[key >> shift & digit] += key >> (shift + bits) == least;
        }
        for (; digit > 0 && count[digit] < k; digit--)
            k -= count[digit];
        least = least << bits | digit;
    }
    for (int64_t j = 0; j < n; j++) { /* k: how many of those that equal the least one */
        const uint64_t key = key_of(x[j]);
        const bool is_one = key > least || (key == least && k-- > 0);
        if (!is_one && j < n - 1)
            continue;
        x[n_chosen] = x[j];
        at[n_chosen++] = (int32_t)j;
    }
    return n_chosen;
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
