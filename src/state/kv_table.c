/* kv_table.c - see kv_table.h. */
#include "state/kv_slide.h"

#include "base/mem.h"
#include "base/num.h"
#include "kernels/entries.h"
#include "kernels/kv_layout.h"

#include <string.h>

/* Codes are of whole blocks only. */
int64_t kv_table_pages(kv_formats formats, int64_t n) {
    return kv_formats_all_coded(formats) ? n / KV_BLOCK : num_div_up(n, KV_BLOCK);
}

kv_amount kv_table_amount(const kv_paging *p, int64_t n_table, int64_t n_page) {
    const int64_t each = kv_slide_quota(p, n_page);
    return (kv_amount){.page = n_page,
                       .part = each <= n_page / NUM_MAX(n_table, 1) ? n_table * each : n_page};
}

nib_status kv_tables_bytes(const layout *lay, kv_formats formats, bool overlaid, int64_t n_table,
                           int64_t n_page, uint64_t *bytes, nib_error *err) {
    kv_paging p, newest = {0};
    uint64_t parts, each;
    NIB_TRY(kv_paging_size(&p, lay, formats, overlaid, err));
    if (kv_formats_any_coded(formats))
        NIB_TRY(kv_paging_size(&newest, lay, kv_formats_newest(formats), overlaid, err));
    const kv_amount n = kv_table_amount(&p, n_table, n_page);
    if (!num_mul_u64((uint64_t)n.page, p.page_bytes, bytes) ||
        !num_mul_u64((uint64_t)(n.part + kv_parts_together(&p, n)), p.part_bytes, &parts) ||
        !num_add_u64(*bytes, parts, bytes) ||
        !num_add_u64(newest.page_bytes + p.tail_bytes,
                     (overlaid ? 1 : 2) * model_state_bytes(layout_model(lay)), &each) ||
        !num_mul_u64(each, (uint64_t)n_table, &each) || !num_add_u64(*bytes, each, bytes))
        return nib_fail(err, NIB_E_NOFIT, "keys and values of %lld pages overflow 64 bits",
                        (long long)n_page);
    return NIB_OK;
}

nib_status kv_table_bytes(const layout *lay, kv_formats formats, bool overlaid, int64_t n_ctx,
                          uint64_t *bytes, nib_error *err) {
    return kv_tables_bytes(lay, formats, overlaid, 1, kv_table_pages(formats, n_ctx), bytes, err);
}

nib_status kv_tables_on_disk(const layout *lay, kv_formats formats, int64_t n_page, uint64_t *bytes,
                             nib_error *err) {
    kv_paging p;
    NIB_TRY(kv_paging_size(&p, lay, formats, false, err));
    if (!num_mul_u64((uint64_t)n_page, p.host_bytes, bytes))
        return nib_fail(err, NIB_E_NOFIT, "keys and values of %lld pages overflow 64 bits",
                        (long long)n_page);
    return NIB_OK;
}

nib_status kv_table_touched(const layout *lay, kv_formats formats, int64_t n, uint64_t *bytes,
                            nib_error *err) {
    kv_paging p;
    NIB_TRY(kv_paging_size(&p, lay, formats, false, err));
    const int64_t n_page = n / KV_BLOCK, n_part = kv_slide_quota(&p, n_page + 1);
    *bytes = (uint64_t)n_page * p.page_bytes + (n < KV_BLOCK ? 1 : 2) * model_state_bytes(layout_model(lay));
    *bytes += kv_page_resident(lay, formats, false, n % KV_BLOCK);
    *bytes += (uint64_t)NUM_MIN(n_page, n_part) * p.part_bytes;
    if (n_part > n_page)
        *bytes += kv_page_resident(lay, formats, true, n % KV_BLOCK);
    *bytes += n > 0 ? p.tail_bytes : 0;
    if (kv_formats_any_coded(formats))
        *bytes += kv_page_resident(lay, kv_formats_newest(formats), false, NUM_MIN(n, (int64_t)KV_BLOCK));
    return NIB_OK;
}

static nib_status open_newest(kv_table *t, const layout *lay, device *d, ledger *l, nib_error *err) {
    const kv_paging *p = kv_pool_paging(t->pool);
    NIB_TRY(kv_paging_open(&t->recent, lay, kv_formats_newest(p->formats), false, err));
    if (p->homes)
        NIB_TRY(kv_paging_split(&t->recent, lay, p->homes, err));
    NIB_TRY(memory_region_open(&t->newest, d, l, NIB_OWNER_KV, t->recent.page_bytes, true,
                               "the newest keys and values", err));
    return t->recent.host_bytes == 0
               ? NIB_OK
               : memory_region_open(&t->host_newest, kv_pool_host(t->pool), l, NIB_OWNER_KV,
                                    t->recent.host_bytes, false, "the newest keys and values in RAM", err);
}

static nib_status open_state(kv_table *t, const layout *lay, device *d, ledger *l, nib_error *err) {
    const uint64_t bytes = model_state_bytes(layout_model(lay));
    if (bytes == 0)
        return NIB_OK;
    NIB_TRY(
        memory_region_open(&t->state, d, l, NIB_OWNER_KV, bytes, true, "a sequence's recurrent state", err));
    memory_region_touch(&t->state, bytes);
    if (!kv_pool_shares(t->pool))
        return NIB_OK;
    NIB_TRY(kv_states_reserve(kv_pool_states(t->pool), err));
    t->checkpoints = true;
    return NIB_OK;
}

nib_status kv_table_open_second(kv_table *t, ledger *l, nib_error *err) {
    if (!t->state.at)
        return NIB_OK;
    NIB_TRY(memory_region_open(&t->second, t->device, l, NIB_OWNER_KV, t->state.bytes, true,
                               "a sequence's second recurrent state", err));
    memory_region_touch(&t->second, t->second.bytes);
    return NIB_OK;
}

uint8_t *kv_table_states(const kv_table *t) {
    uint8_t *one = t->state.at, *other = t->second.at;
    return other && other < one ? other : one;
}

/* Makes the state that of the n positions after which the table's page has a checkpoint. */
static bool restore(kv_table *t, int64_t n) {
    const void *from =
        kv_states_find(kv_pool_states(t->pool), kv_pool_serial(t->pool, t->pages[n / KV_BLOCK - 1]));
    if (!from || t->device->kind->copy(t->device, DEVICE_COMPUTE, t->state.at, from, t->state.bytes, NULL))
        return false;
    t->n_in_state = n;
    return true;
}

/* The largest number of positions up to n at which the state is or can be. */
static int64_t keep_state(kv_table *t, int64_t n) {
    const int64_t here = t->n_in_state <= n ? NUM_MAX(t->n_in_state, 0) : 0;
    if (n == here)
        return n;
    for (n = NUM_MIN(n / KV_BLOCK, t->n_page) * KV_BLOCK; n > here && t->checkpoints; n -= KV_BLOCK)
        if (restore(t, n))
            return n;
    return here;
}

static void fill_views(kv_table *t) {
    const kv_paging *p = kv_pool_paging(t->pool);
    for (int i = 0; i < p->n_layer; i++) {
        const kv_layer *at = &p->layers[i];
        t->layers[i] = (kv_view){.pages = at->home     ? t->on_host
                                          : at->slides ? t->part_at
                                                       : t->at,
                                 .key_at = at->key_at,
                                 .value_at = at->value_at,
                                 .type = kv_code_type(at->type),
                                 .n_kv_head = at->n_kv_head,
                                 .d_head = at->d_head,
                                 .entry_pages = at->home ? t->on_host : t->at,
                                 .entry_at = at->entry_at,
                                 .index_at = at->index_at,
                                 .every = at->every,
                                 .shared = at->shared,
                                 .d_index = at->d_index};
        if (!kv_is_coded(at->type) || at->n_kv_head == 0)
            continue;
        t->layers[i].rotated = kv_is_rotated(at->type) && !at->shared; /* of values only */
        t->layers[i].first = at->type == TYPE_KV4S && !at->shared;
        t->layers[i].recent = t->recent.layers[i].home ? t->host_newest.at : t->newest.at;
        t->layers[i].recent_key_at = t->recent.layers[i].key_at;
        t->layers[i].recent_value_at = t->recent.layers[i].value_at;
    }
}

nib_status kv_table_open(kv_table *t, kv_pool *pool, const layout *lay, device *d, ledger *l, int64_t n_ctx,
                         const kv_amount *reserved, nib_error *err) {
    const kv_paging *p = kv_pool_paging(pool);
    const int64_t n = kv_table_pages(p->formats, n_ctx);
    const kv_amount own = kv_table_amount(p, 1, n), all = reserved ? *reserved : own;
    memset(t, 0, sizeof *t);
    if (!reserved)
        NIB_TRY(kv_pool_reserve(pool, own, false, err));
    t->reserved = reserved != NULL;
    t->max_part = all.part < all.page ? kv_slide_quota(p, n) : INT64_MAX;
    t->pool = pool;
    t->device = d;
    t->n_ctx = n_ctx;
    t->max_page = n;
    t->pages = mem_calloc((size_t)NUM_MAX(n, 1), sizeof *t->pages);
    t->at = mem_calloc((size_t)NUM_MAX(n, 1), sizeof *t->at);
    t->on_host = mem_calloc((size_t)NUM_MAX(n, 1), sizeof *t->on_host);
    t->parts = mem_calloc((size_t)NUM_MAX(n, 1), sizeof *t->parts);
    t->part_at = mem_calloc((size_t)NUM_MAX(n, 1), sizeof *t->part_at);
    t->layers = mem_calloc((size_t)NUM_MAX(p->n_layer, 1), sizeof *t->layers);
    nib_status status = NIB_OK;
    if (!t->pages || !t->at || !t->on_host || !t->parts || !t->part_at || !t->layers)
        status = nib_fail_nomem(err, (size_t)n * 5 * sizeof *t->pages, "a sequence's pages");
    if (status == NIB_OK && kv_formats_any_coded(p->formats))
        status = open_newest(t, lay, d, l, err);
    if (status == NIB_OK && p->tail_bytes)
        status = memory_region_open(&t->tail, device_host(), l, NIB_OWNER_KV, p->tail_bytes, true,
                                    "an incomplete page of keys and values", err);
    if (status == NIB_OK)
        status = open_state(t, lay, d, l, err);
    if (status != NIB_OK) {
        kv_table_close(t);
        return status;
    }
    fill_views(t);
    return NIB_OK;
}

static void drop_from(kv_table *t, int64_t n_page) {
    kv_slide_cut(t, n_page);
    while (t->n_page > n_page)
        kv_pool_drop(t->pool, t->pages[--t->n_page]);
}

void kv_table_close(kv_table *t) {
    if (!t->pool)
        return;
    drop_from(t, 0);
    if (!t->reserved)
        kv_pool_unreserve(t->pool, kv_table_amount(kv_pool_paging(t->pool), 1, t->max_page));
    memory_region_close(&t->newest);
    memory_region_close(&t->host_newest);
    memory_region_close(&t->tail);
    if (t->saving)
        kv_states_put(kv_pool_states(t->pool), t->saving, 0);
    if (t->checkpoints)
        kv_states_unreserve(kv_pool_states(t->pool));
    memory_region_close(&t->state);
    memory_region_close(&t->second);
    kv_paging_close(&t->recent);
    mem_free(t->pages);
    mem_free(t->at);
    mem_free(t->on_host);
    mem_free(t->parts);
    mem_free(t->part_at);
    mem_free(t->layers);
    memset(t, 0, sizeof *t);
}

int64_t kv_table_keep(kv_table *t, int64_t n) {
    const kv_formats formats = kv_pool_paging(t->pool)->formats;
    for (int64_t asked = -1; n != asked;) {
        asked = n;
        n = kv_slide_keep(t, t->state.at ? keep_state(t, n) : n);
    }
    if (n == 0)
        t->saved = 0;
    const int64_t begin = n / KV_BLOCK * KV_BLOCK; /* start of the block that contains n */
    if (kv_formats_only_whole(formats)) {
        if (begin < t->held && n > begin)
            n = kv_slide_keep(t, t->state.at ? keep_state(t, begin) : begin);
        t->held = NUM_MIN(t->held, NUM_MIN(begin, n));
    }
    drop_from(t, kv_table_pages(formats, n));
    return n;
}

static void put(kv_table *t, int64_t i, kv_page *page) {
    t->pages[i] = page;
    t->at[i] = kv_page_at(page);
    t->on_host[i] = kv_page_on_host(page);
}

/* Copies the entries of a layer that the first n positions of a page have. */
static nib_status copy_entries(device *d, const kv_layer *l, uint8_t *to, const uint8_t *from, int64_t n,
                               nib_error *err) {
    if (l->every == 0)
        return NIB_OK;
    NIB_TRY(d->kind->copy(d, DEVICE_COMPUTE, to + l->entry_at, from + l->entry_at,
                          entries_page_bytes(l->type, l->every, l->d_head, n), err));
    return d->kind->copy(d, DEVICE_COMPUTE, to + l->index_at, from + l->index_at,
                         entries_page_bytes(l->type, l->every, l->d_index, n), err);
}

/* Copies the first n positions of a layer in a page, head by head. An incomplete page has no codes. A device
 * may store rows with padding (kv_d_head), so as many bytes are copied as its rows have. */
static nib_status copy_layer(device *d, const kv_layer *l, uint8_t *to, const uint8_t *from, int64_t n,
                             nib_error *err) {
    const int64_t head = kv_head_bytes(l->type, l->d_head), row = head / KV_BLOCK;
    const int64_t keys = num_round_up(n, KV_POSITIONS);
    for (int64_t h = 0; h < l->n_kv_head && !kv_is_coded(l->type); h++) {
        const int64_t k = l->key_at + h * head, v = l->value_at + h * head;
        NIB_TRY(d->kind->copy(d, DEVICE_COMPUTE, to + k, from + k, (uint64_t)(keys * row), err));
        if (!l->shared)
            NIB_TRY(d->kind->copy(d, DEVICE_COMPUTE, to + v, from + v, (uint64_t)(n * row), err));
    }
    return NIB_OK;
}

/* Copies the first n positions of the layers that are in the pages, or in their parts. An incomplete page has
 * nothing on the disk. */
static nib_status copy_positions(kv_table *t, bool part, const kv_page *to, const kv_page *from, int64_t n,
                                 nib_error *err) {
    const kv_paging *p = kv_pool_paging(t->pool);
    for (int i = 0; i < p->n_layer; i++) {
        const kv_layer *l = &p->layers[i];
        device *d = l->home ? device_host() : t->device;
        uint8_t *at = l->home ? kv_page_on_host(to) : kv_page_at(to);
        const uint8_t *old = l->home ? kv_page_on_host(from) : kv_page_at(from);
        if (l->home && p->formats.on_disk)
            continue;
        if (l->slides == part)
            NIB_TRY(copy_layer(d, l, at, old, n, err));
        if (!part)
            NIB_TRY(copy_entries(d, l, at, old, n, err));
    }
    return NIB_OK;
}

/* Gives the table its own copy of page i, with its first n positions. */
static nib_status make_own(kv_table *t, int64_t i, int64_t n, nib_error *err) {
    kv_page *page = t->pages[i];
    if (kv_pool_claim(t->pool, page, n))
        return NIB_OK;
    kv_page *copy = kv_pool_take(t->pool), *part = NULL;
    kv_pool_touch(t->pool, copy, n);
    nib_status status = kv_pool_copy_waiting(t->pool, err);
    if (status == NIB_OK)
        status = copy_positions(t, false, copy, page, n, err);
    if (status == NIB_OK && i < t->n_part) {
        part = kv_pool_take_part(t->pool, copy);
        kv_pool_touch(t->pool, part, n);
        status = copy_positions(t, true, part, t->parts[i], n, err);
    }
    if (status != NIB_OK) {
        if (part)
            kv_pool_drop(t->pool, part);
        kv_pool_drop(t->pool, copy);
        return status;
    }
    if (part)
        kv_slide_replace(t, i, part);
    kv_pool_drop(t->pool, page);
    put(t, i, copy);
    return NIB_OK;
}

/* The page has the pass's blocks one after the other; an adopted block does not use it. */
static void reach_newest(kv_table *t, int64_t first, int64_t end) {
    const int64_t begin = first / KV_BLOCK * KV_BLOCK;
    t->held = NUM_MAX(t->held, (end - 1) / KV_BLOCK * KV_BLOCK);
    t->n_newest = NUM_MAX(t->n_newest, NUM_MIN(end - begin, KV_BLOCK));
    memory_region_touch(&t->newest, kv_paging_touched(&t->recent, false, t->n_newest));
}

/* The memory has one page: in the pass's layers it becomes that of the last block, if this is incomplete. */
static void reach_tail(kv_table *t, int64_t end) {
    memory_region_touch(&t->tail, t->tail.bytes);
    t->held = NUM_MAX(t->held, end / KV_BLOCK * KV_BLOCK);
}

/* A pass of several rows of a prompt leaves a checkpoint, which replaces the sequence's last one. Others
 * leave none: they belong to an answer, which is short beside what was before it, and which the next prompt
 * may not repeat. */
static void begin_checkpoint(kv_table *t, int64_t first, int64_t end, bool generated) {
    const int64_t at = end / KV_BLOCK * KV_BLOCK;
    if (t->checkpoints && !generated && end - first > 1 && at > first)
        t->saving = kv_states_take(kv_pool_states(t->pool), t->saved);
    if (!t->saving)
        return;
    t->save_to = kv_state_at(t->saving);
    t->save_at = at;
}

/* Decides what a pass stores of its state on the way. */
static void begin_saving(kv_table *t, int64_t first, int64_t end, int64_t proposed, bool generated) {
    if (t->saving) /* the last pass has failed */
        kv_states_put(kv_pool_states(t->pool), t->saving, 0);
    t->saving = NULL;
    t->save_to = NULL;
    t->save_at = 0;
    t->end = end;
    if (proposed >= end)
        begin_checkpoint(t, first, end, generated);
    else if (t->second.at) {
        t->save_to = t->second.at;
        t->save_at = proposed;
    }
}

nib_status kv_table_reach(kv_table *t, int64_t first, int64_t end, int64_t proposed, bool generated,
                          nib_error *err) {
    const kv_formats formats = kv_pool_paging(t->pool)->formats;
    const int64_t n_page = kv_table_pages(formats, end), from = first / KV_BLOCK;
    if (first >= end)
        return NIB_OK;
    t->n_in_state = -1;
    begin_saving(t, first, end, proposed, generated);
    kv_slide_drop(t, first);
    if (from < t->n_page)
        NIB_TRY(make_own(t, from, first % KV_BLOCK, err));
    for (; t->n_page < n_page; t->n_page++)
        put(t, t->n_page, kv_pool_take(t->pool));
    for (int64_t i = from; i < n_page; i++)
        kv_pool_touch(t->pool, t->pages[i], NUM_MIN(end - i * KV_BLOCK, KV_BLOCK));
    NIB_TRY(kv_slide_reach(t, end, err));
    if (kv_formats_any_coded(formats))
        reach_newest(t, first, end);
    if (t->tail.at)
        reach_tail(t, end);
    return kv_pool_copy_waiting(t->pool, err);
}

int64_t kv_table_advance(kv_table *t, int64_t n) {
    if (n < t->end && t->save_to && t->save_to == t->second.at) {
        const memory_region last = t->state;
        t->state = t->second;
        t->second = last;
        n = t->save_at;
    }
    if (t->saving) {
        t->saved = kv_pool_serial(t->pool, t->pages[t->save_at / KV_BLOCK - 1]);
        kv_states_put(kv_pool_states(t->pool), t->saving, t->saved);
        t->saving = NULL;
    }
    t->save_to = NULL;
    t->save_at = 0;
    t->n_in_state = n;
    return n;
}

void kv_table_learn(kv_table *t, const int32_t *tokens, int64_t first, int64_t end) {
    for (int64_t i = first / KV_BLOCK; i < t->n_page && i * KV_BLOCK < end; i++) {
        kv_pool_describe(t->pool, t->pages[i], i ? t->pages[i - 1] : NULL, tokens + i * KV_BLOCK,
                         NUM_MIN(end - i * KV_BLOCK, KV_BLOCK));
        put(t, i, kv_pool_merge(t->pool, t->pages[i]));
    }
}

/* Replaces page i by this page, which holds the sequence up to n_held, and drops the pages after it. */
static void replace(kv_table *t, int64_t i, kv_page *page, int64_t n_held) {
    drop_from(t, i);
    put(t, i, page);
    t->n_page = i + 1;
    t->held = NUM_MAX(t->held, n_held); /* its positions have no copies */
}

/* ---- pages of other sequences ---- */

/* The page that continues a sequence, with a reference. */
typedef struct next_page {
    kv_page *page;   /* on the device; NULL: none */
    kv_page *in_ram; /* in RAM, with what `page` or its part lacks; NULL: not needed */
    int64_t n_same;  /* positions in common; 0: there is neither */
    bool part;       /* its part can be had too */
} next_page;

static void drop_next(kv_table *t, const next_page *f) {
    if (f->page)
        kv_pool_drop(t->pool, f->page);
    if (f->in_ram)
        kv_pool_drop(t->pool, f->in_ram);
}

/* Finds the page after `before` that shares the most of tokens[0..n). */
static next_page find_next(kv_table *t, const kv_page *before, const int32_t *tokens, int64_t n) {
    int64_t n_in_ram;
    next_page f = {.page = kv_pool_find(t->pool, before, tokens, n, &f.n_same)};
    f.in_ram = kv_pool_find_in_ram(t->pool, before, tokens, n, &n_in_ram);
    const bool longer = n_in_ram > f.n_same, whole = f.in_ram && kv_pool_is_whole(t->pool, f.in_ram);
    f.part = f.page && !longer && kv_pool_has_part(t->pool, f.page);
    const bool needed = longer || (whole && n_in_ram == f.n_same && !f.part);
    drop_next(t, &(next_page){.page = longer ? f.page : NULL, .in_ram = needed ? NULL : f.in_ram});
    return (next_page){.page = longer ? NULL : f.page,
                       .in_ram = needed ? f.in_ram : NULL,
                       .n_same = longer ? n_in_ram : f.n_same,
                       .part = f.part || (needed && whole)};
}

/* Whether a sequence can continue at the end of what it shares with this page. without: the first pages,
 * whose parts it does not have. */
static bool can_continue(kv_table *t, const next_page *f, int64_t end, int64_t without) {
    const kv_page *page = f->page ? f->page : f->in_ram;
    if (kv_pool_paging(t->pool)->window > 0 && kv_table_first_part(t, end) < without)
        return false;
    return !t->state.at ||
           (f->n_same == KV_BLOCK && kv_states_find(kv_pool_states(t->pool), kv_pool_serial(t->pool, page)));
}

/* The largest position up to n at which the sequence could continue with pages of others; n_held: none. */
static int64_t adoptable(kv_table *t, const int32_t *tokens, int64_t n_held, int64_t n) {
    const bool whole = kv_formats_only_whole(kv_pool_paging(t->pool)->formats);
    int64_t found = n_held, without = t->first_part;
    next_page f = {.n_same = KV_BLOCK};
    for (int64_t i = n_held / KV_BLOCK; i < t->max_page && f.n_same == KV_BLOCK && i * KV_BLOCK < n; i++) {
        const next_page last = f;
        const kv_page *before = last.page     ? last.page
                                : last.in_ram ? last.in_ram
                                : i           ? t->pages[i - 1]
                                              : NULL;
        f = find_next(t, before, tokens + i * KV_BLOCK, NUM_MIN(n - i * KV_BLOCK, (int64_t)KV_BLOCK));
        drop_next(t, &last);
        if (f.n_same == 0 || (whole && f.n_same < KV_BLOCK))
            break;
        if (!f.part)
            without = i + 1;
        if (can_continue(t, &f, i * KV_BLOCK + f.n_same, without))
            found = NUM_MAX(found, i * KV_BLOCK + f.n_same);
    }
    drop_next(t, &f);
    return found;
}

/* Makes the found page that of block i. False: its part's content cannot be copied. */
static bool adopt_page(kv_table *t, int64_t i, const next_page *f) {
    const int64_t first = i * KV_BLOCK;
    if (f->page) {
        replace(t, i, f->page, first + f->n_same);
    } else {
        drop_from(t, i); /* dropped first, so that the pool has a page to take */
        kv_page *page = kv_pool_restore(t->pool, f->in_ram);
        kv_pool_touch(t->pool, page, KV_BLOCK);
        replace(t, i, page, first + f->n_same);
    }
    const bool good = !kv_slide_load(t, first, f->part) || kv_pool_put_part(t->pool, t->pages[i], f->in_ram);
    if (f->in_ram)
        kv_pool_drop(t->pool, f->in_ram);
    return good;
}

int64_t kv_table_adopt(kv_table *t, const int32_t *tokens, int64_t n_held, int64_t n) {
    if (t->state.at && !t->checkpoints)
        return n_held;
    const int64_t end = adoptable(t, tokens, n_held, n);
    int64_t held = n_held, n_same = KV_BLOCK;
    for (int64_t i = n_held / KV_BLOCK; end > n_held && i * KV_BLOCK < end && n_same == KV_BLOCK; i++) {
        const next_page f = find_next(t, i ? t->pages[i - 1] : NULL, tokens + i * KV_BLOCK,
                                      NUM_MIN(end - i * KV_BLOCK, (int64_t)KV_BLOCK));
        n_same = f.n_same;
        if (n_same == 0)
            break;
        held = adopt_page(t, i, &f) ? i * KV_BLOCK + n_same : i * KV_BLOCK;
    }
    return held > n_held ? kv_table_keep(t, held) : n_held;
}

void kv_table_share(kv_table *t, const kv_table *from, int64_t n_page) {
    for (int64_t i = 0; i < n_page; i++) {
        kv_pool_refer(t->pool, from->pages[i]);
        replace(t, i, from->pages[i], (i + 1) * KV_BLOCK);
    }
    kv_slide_keep(t, n_page * KV_BLOCK);
}

int64_t kv_table_shareable(const kv_table *t, int64_t n_page) {
    return kv_slide_shareable(t, n_page);
}

int64_t kv_table_load(kv_table *t, kv_disk *from, const int32_t *tokens, int64_t n_held, int64_t n,
                      int64_t n_page, bool *more) {
    const bool slides = kv_pool_paging(t->pool)->window > 0;
    n_page = kv_disk_begin(from, slides ? t->max_page : n_page); /* it may continue only at their end */
    *more = n_page > 0 && n_held / KV_BLOCK < t->max_page;
    for (int64_t i = n_held / KV_BLOCK; *more && n_page > 0 && i < t->max_page; i++, n_page--) {
        const int64_t first = i * KV_BLOCK;
        int64_t n_same;
        *more = first < n && kv_disk_find(from, tokens, first, n, n_held - first, &n_same);
        if (!*more)
            break;
        drop_from(t, i); /* dropped first, so that the pool has a page to take */
        n_held = first;
        kv_page *page = kv_pool_take(t->pool);
        kv_pool_touch(t->pool, page, KV_BLOCK);
        replace(t, i, page, first);
        if (!kv_disk_read(from, page, kv_slide_load(t, first, kv_disk_has_part(from)))) {
            drop_from(t, i);
            *more = false;
            break;
        }
        n_held = first + n_same;
        t->held = NUM_MAX(t->held, n_held);
        kv_pool_describe(t->pool, page, i ? t->pages[i - 1] : NULL, tokens + first, n_same);
        *more = n_same == KV_BLOCK;
    }
    return slides ? kv_table_keep(t, n_held) : n_held;
}
