/* paged_kv.c - see paged_kv.h. */
#include "support/paged_kv.h"

#include "base/num.h"
#include "kernels/kv_layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

paged_kv paged_kv_open(type_id type, int64_t n, int64_t n_kv_head, int64_t d_head) {
    paged_kv x = {0};
    uint64_t each = 0, half = 0;
    if (!kv_page_bytes(type, n_kv_head, d_head, &each) || !kv_page_bytes(TYPE_F16, n_kv_head, d_head, &half))
        abort();
    const int64_t n_page = num_div_up(n, KV_BLOCK), n_recent = kv_is_coded(type);
    each = (uint64_t)num_round_up((int64_t)each, 64);
    half = (uint64_t)num_round_up((int64_t)half, 64);
    x.memory = guard_open((size_t)((uint64_t)n_page * 2 * each + (uint64_t)n_recent * 2 * half));
    memset(x.memory.data, 0xff, (size_t)((uint64_t)n_page * 2 * each + (uint64_t)n_recent * 2 * half));
    x.pages = calloc((size_t)n_page, sizeof *x.pages);
    uint8_t *at = x.memory.data;
    for (int64_t i = n_page - 1; i >= 0;
         i--, at += 2 * each) /* backwards, so that no page follows its predecessor in memory */
        x.pages[i] = at;
    x.view = (kv_view){.pages = x.pages,
                       .value_at = (int64_t)each,
                       .type = type,
                       .n_kv_head = n_kv_head,
                       .d_head = d_head,
                       .recent = at,
                       .recent_value_at = (int64_t)half};
    return x;
}

void paged_kv_close(paged_kv *kv) {
    free(kv->pages);
    guard_close(&kv->memory);
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
    const bool apart = kv->first && position < KV_BLOCK;
    for (int64_t d = 0; d < kv->d_head && apart && position == 0; d++)
        out[d] = half_to_float(kv_first_at(kv, is_value, kv_block_at(kv, false, head, 0))[d]);
    if (apart && position == 0)
        return;
    for (int64_t d = 0; d < kv->d_head; d++) {
        const int64_t half = apart ? 0 : at / KV_GROUP;
        const int64_t group = is_value ? at * (d_pad / KV_GROUP) + d / KV_GROUP : half * d_pad + d;
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
    if (is_value)
        hadamard(out, kv->d_head, kv_rotation(kv));
}
