/* paged_kv.c - see paged_kv.h. */
#include "support/paged_kv.h"

#include "base/num.h"

#include <stdlib.h>
#include <string.h>

paged_kv paged_kv_open(type_id type, int64_t n, int64_t n_kv_head, int64_t d_head) {
    paged_kv x = {0};
    uint64_t each = 0, half = 0;
    if (!kv_page_bytes(type, n_kv_head, d_head, &each) || !kv_page_bytes(TYPE_F16, n_kv_head, d_head, &half))
        abort();
    const int64_t n_page = num_div_up(n, KV_BLOCK), n_recent = kv_is_coded(type) ? 2 : 0;
    each = (uint64_t)num_round_up((int64_t)each, 64);
    half = (uint64_t)num_round_up((int64_t)half, 64);
    x.memory = guard_open((size_t)((uint64_t)n_page * 2 * each + (uint64_t)n_recent * 2 * half));
    memset(x.memory.data, 0xff, (size_t)((uint64_t)n_page * 2 * each + (uint64_t)n_recent * 2 * half));
    x.pages = calloc((size_t)(n_page + n_recent), sizeof *x.pages);
    uint8_t *at = x.memory.data;
    for (int64_t i = n_page - 1; i >= 0;
         i--, at += 2 * each) /* backwards, so that no page follows its predecessor in memory */
        x.pages[i] = at;
    for (int64_t i = 0; i < n_recent; i++, at += 2 * half)
        x.pages[n_page + i] = at;
    x.view = (kv_view){.pages = x.pages,
                       .value_at = (int64_t)each,
                       .type = type,
                       .n_kv_head = n_kv_head,
                       .d_head = d_head,
                       .recent = x.pages + n_page,
                       .recent_value_at = (int64_t)half};
    return x;
}

void paged_kv_close(paged_kv *kv) {
    free(kv->pages);
    guard_close(&kv->memory);
}
