/* kv_slide.c - see kv_slide.h. */
#include "state/kv_slide.h"

#include "base/num.h"

static int64_t window_of(const kv_table *t) {
    return kv_pool_paging(t->pool)->window;
}

int64_t kv_table_first_part(const kv_table *t, int64_t n) {
    return NUM_MAX(n + 1 - window_of(t), 0) / KV_BLOCK;
}

int64_t kv_slide_quota(const kv_paging *p, int64_t n_page) {
    /* window - 1 + KV_ROWS positions, from anywhere in a page on */
    const int64_t n = num_div_up(p->window + p->formats.kept, KV_BLOCK) + KV_ROWS / KV_BLOCK + 1;
    return p->window ? NUM_MIN(n_page, n) : 0;
}

/* ---- references ---- */

static void put(kv_table *t, int64_t i, kv_page *part) {
    t->parts[i] = part;
    t->part_at[i] = kv_page_at(part);
}

static void drop_at(kv_table *t, int64_t i) {
    kv_pool_drop(t->pool, t->parts[i]);
    t->parts[i] = NULL;
}

void kv_slide_replace(kv_table *t, int64_t i, kv_page *part) {
    drop_at(t, i);
    put(t, i, part);
}

void kv_slide_cut(kv_table *t, int64_t n_page) {
    while (t->n_part > NUM_MAX(n_page, t->first_part))
        drop_at(t, --t->n_part);
    t->n_part = NUM_MIN(t->n_part, n_page);
    t->first_part = NUM_MIN(t->first_part, t->n_part);
}

static void drop_before(kv_table *t, int64_t i) {
    while (t->first_part < NUM_MIN(i, t->n_part))
        drop_at(t, t->first_part++);
}

void kv_slide_drop(kv_table *t, int64_t n) {
    if (window_of(t) > 0)
        drop_before(t, kv_table_first_part(t, n));
}

/* The first page without a part gets one. NULL: there is none. */
static kv_page *add(kv_table *t) {
    kv_page *part = kv_pool_take_part(t->pool, t->pages[t->n_part]);
    if (part)
        put(t, t->n_part++, part);
    return part;
}

kv_page *kv_slide_load(kv_table *t, int64_t first, bool readable) {
    if (window_of(t) == 0)
        return NULL;
    kv_page *part = kv_pool_refer_part(t->pool, t->pages[t->n_page - 1]);
    const bool has = part || readable;
    drop_before(t, has ? kv_table_first_part(t, first) : t->n_part);
    if (part) {
        put(t, t->n_part++, part);
    } else if (has) {
        part = add(t);
        kv_pool_touch(t->pool, part, KV_BLOCK);
        return part;
    } else {
        t->first_part = t->n_part = t->n_page;
    }
    return NULL;
}

int64_t kv_slide_keep(kv_table *t, int64_t n) {
    const int64_t end = kv_table_pages(kv_pool_paging(t->pool)->formats, n),
                  first = kv_table_first_part(t, n);
    if (window_of(t) == 0 || n == 0 || (t->first_part <= first && t->n_part >= end))
        return n;
    kv_slide_cut(t, end);
    drop_before(t, first);
    if (t->first_part == t->n_part)
        t->first_part = t->n_part = end;
    for (; t->n_part < end; t->n_part++) {
        kv_page *part = kv_pool_refer_part(t->pool, t->pages[t->n_part]);
        if (!part)
            return kv_slide_keep(t, t->n_part * KV_BLOCK);
        put(t, t->n_part, part);
    }
    for (; t->first_part > first; t->first_part--) {
        kv_page *part = kv_pool_refer_part(t->pool, t->pages[t->first_part - 1]);
        if (!part)
            return kv_slide_keep(t, (t->first_part - 1) * KV_BLOCK);
        put(t, t->first_part - 1, part);
    }
    return n;
}

/* ---- a pass ---- */

/* Makes sure that only the table can refer to part i, or to its copy. */
static nib_status make_own(kv_table *t, int64_t i, nib_error *err) {
    if (kv_pool_detach_part(t->pool, t->parts[i]))
        return NIB_OK;
    kv_page *copy = kv_pool_take_part(t->pool, NULL);
    kv_pool_touch(t->pool, copy, KV_BLOCK);
    nib_status status = kv_pool_copy_waiting(t->pool, err);
    if (status == NIB_OK)
        status = t->device->kind->copy(t->device, DEVICE_COMPUTE, kv_page_at(copy), kv_page_at(t->parts[i]),
                                       kv_pool_paging(t->pool)->part_bytes, err);
    if (status == NIB_OK)
        kv_slide_replace(t, i, copy);
    else
        kv_pool_drop(t->pool, copy);
    return status;
}

/* The number of positions of page i before `end`. */
static int64_t positions_of(int64_t i, int64_t end) {
    return NUM_MIN(end - i * KV_BLOCK, (int64_t)KV_BLOCK);
}

nib_status kv_slide_reach(kv_table *t, int64_t end, nib_error *err) {
    if (window_of(t) == 0)
        return NIB_OK;
    const bool reuses = t->n_page - t->first_part > t->max_part && !kv_pool_paging(t->pool)->read_again;
    for (int64_t i = t->first_part; i < t->n_part && reuses; i++)
        NIB_TRY(make_own(t, i, err));
    while (t->n_part < t->n_page && t->n_part - t->first_part < t->max_part)
        add(t);
    for (int64_t i = t->first_part; i < t->n_part; i++)
        kv_pool_touch(t->pool, t->parts[i], positions_of(i, end));
    return NIB_OK;
}

static nib_status fill(kv_table *t, int64_t end, nib_error *err) {
    while (t->n_part < t->n_page && add(t))
        kv_pool_touch(t->pool, t->parts[t->n_part - 1], positions_of(t->n_part - 1, end));
    if (t->n_part < t->n_page && kv_pool_paging(t->pool)->read_again)
        return nib_fail(
            err, NIB_E_FAILED,
            "keys and values of windows: expected at most %d rows in a pass, found positions up to "
            "%lld",
            kv_pool_paging(t->pool)->formats.rows, (long long)end);
    while (t->n_part < t->n_page) {
        kv_page *part = t->parts[t->first_part];
        t->parts[t->first_part++] = NULL;
        kv_pool_attach_part(t->pool, part, t->pages[t->n_part]);
        kv_pool_touch(t->pool, part, positions_of(t->n_part, end));
        put(t, t->n_part++, part);
    }
    for (int64_t i = t->first_part; i < t->n_part; i++)
        kv_pool_attach_part(t->pool, t->parts[i], t->pages[i]);
    return NIB_OK;
}

nib_status kv_table_fill(kv_table *t, int64_t end, nib_error *err) {
    if (window_of(t) > 0)
        NIB_TRY(fill(t, end, err));
    return kv_pool_copy_waiting(t->pool, err);
}

int64_t kv_table_rows(const kv_table *t, int64_t first) {
    if (window_of(t) == 0 || t->first_part <= kv_table_first_part(t, first))
        return INT64_MAX;
    return (t->n_part - t->first_part - num_div_up(window_of(t), KV_BLOCK) - 1) * KV_BLOCK;
}

void kv_table_settle(kv_table *t) {
    if (t->n_part - t->first_part > t->max_part)
        drop_before(t, t->n_part - t->max_part);
}

/* ---- other sequences ---- */

int64_t kv_slide_shareable(const kv_table *t, int64_t n_page) {
    if (window_of(t) == 0)
        return n_page;
    const int64_t n = NUM_MIN(n_page, t->n_part);
    return kv_table_first_part(t, n * KV_BLOCK) >= t->first_part ? n : 0;
}
