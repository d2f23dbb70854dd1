/* entries.c - see entries.h. */
#include "exec/entries.h"

#include "base/num.h"
#include "kernels/entries.h"
#include "kernels/kv_layout.h"

enum { PAGES = ATTEND_SPAN / KV_BLOCK };

/* Memory for one group of heads, behind that of the kernels. */
typedef struct room {
    float *parts, *totals; /* [ATTEND_PAIRS] parts */
    float *row;            /* [d_head] */
    uint8_t *pages[PAGES]; /* entries as keys and values */
    kv_view kv;
} room;

static size_t page_bytes(int64_t d_head) {
    return (size_t)kv_head_bytes(TYPE_F32, d_head);
}

size_t entries_attend_bytes(const op *o) {
    const int64_t d = o->u.attn.d_head;
    const size_t floats = (size_t)(2 * ATTEND_PAIRS * attend_part_floats(d) + num_round_up(d, KV_LANES));
    return attend_scratch_bytes(d, true) + floats * sizeof(float) + PAGES * page_bytes(d);
}

static void open_room(const attend_args *a, room *r) {
    const int64_t d = a->kv.d_head, each = ATTEND_PAIRS * attend_part_floats(d);
    r->parts = (float *)(void *)((uint8_t *)a->scratch + attend_scratch_bytes(d, true));
    r->totals = r->parts + each;
    r->row = r->totals + each;
    for (int i = 0; i < PAGES; i++)
        r->pages[i] = (uint8_t *)(r->row + num_round_up(d, KV_LANES)) + (size_t)i * page_bytes(d);
    r->kv = (kv_view){.pages = r->pages, .shared = true, .type = TYPE_F32, .n_kv_head = 1, .d_head = d};
}

static void join(const kernel_table *k, const attend_args *a, const room *r, int64_t h0, int64_t n,
                 int64_t row, bool first, bool last) {
    const int64_t each = attend_part_floats(a->kv.d_head);
    for (int64_t i = 0; i < n; i++)
        k->attend_join(a, h0 + i, row, r->parts + i * each, first, last, r->totals + i * each);
}

static void attend_group(const kernel_table *k, const attend_args *a, const float *chosen, room *r,
                         int64_t h0, int64_t n, int64_t row) {
    const int64_t position = a->first_position + row, first = attend_first(a, position) / ATTEND_SPAN;
    const int64_t n_entry = chosen ? (int64_t)chosen[0] : entries_seen(&a->kv, position);
    for (int64_t s = first; s <= position / ATTEND_SPAN; s++) {
        k->attend_part(a, h0, h0 + n, row, s, r->parts);
        join(k, a, r, h0, n, row, s == first, n_entry == 0 && s == position / ATTEND_SPAN);
    }
    attend_args of_entries = *a;
    of_entries.kv = r->kv;
    of_entries.window = 0;
    for (int64_t at = 0, some; at < n_entry; at += some) {
        some = NUM_MIN(n_entry - at, (int64_t)ATTEND_SPAN);
        of_entries.first_position = some - 1 - row;
        entries_gather(k, &a->kv, chosen, at, some, r->row, &r->kv);
        k->attend_part(&of_entries, h0, h0 + n, row, 0, r->parts);
        join(k, a, r, h0, n, row, false, at + some == n_entry);
    }
}

void entries_attend(const kernel_table *k, const attend_args *a, const float *chosen, int64_t h0, int64_t h1,
                    int64_t row) {
    room r;
    open_room(a, &r);
    for (int64_t h = h0; h < h1; h += ATTEND_PAIRS)
        attend_group(k, a, chosen, &r, h, NUM_MIN(h1 - h, (int64_t)ATTEND_PAIRS), row);
}
