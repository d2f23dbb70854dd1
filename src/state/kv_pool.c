/* kv_pool.c - see kv_pool.h. Memory is allocated in chunks, one for each reservation that exceeds the
 * existing pages. Pages with content are in a hash table, keyed by the serial number of the preceding page. A
 * page whose content is replaced gets a new serial number, so the pages that followed the old content can no
 * longer be found. kv_ram.c adds pages in RAM. */
#include "state/kv_pool_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

enum {
    MIN_HUGE = 8, /* huge pages of a chunk */
    MIN_KEPT = 16 /* positions that are worth a copy of a page */
};

/* ---- pages; the lock is held ---- */

static kv_tier *tier_of(kv_pool *pool, const kv_page *page) {
    return page->chunk->in_ram ? &pool->ram.tier : &pool->tier;
}

static void list_add(kv_tier *t, kv_page *page, bool at_front) {
    page->previous = at_front ? NULL : t->last;
    page->next = at_front ? t->first : NULL;
    *(page->previous ? &page->previous->next : &t->first) = page;
    *(page->next ? &page->next->previous : &t->last) = page;
}

static void list_remove(kv_tier *t, kv_page *page) {
    *(page->previous ? &page->previous->next : &t->first) = page->next;
    *(page->next ? &page->next->previous : &t->last) = page->previous;
    page->previous = page->next = NULL;
}

/* The first pages of all sequences follow nothing, so their first token tells them apart as far as it can. */
static kv_page **bucket_of(kv_pool *pool, uint64_t before, int32_t first) {
    return &pool->buckets[(before * UINT64_C(0x9e3779b97f4a7c15) + (uint32_t)first) % KV_N_BUCKET];
}

void kv_page_forget(kv_pool *pool, kv_page *page) {
    if (page->n_token == 0)
        return;
    *page->in_bucket = page->next_in_bucket;
    if (page->next_in_bucket)
        page->next_in_bucket->in_bucket = page->in_bucket;
    page->next_in_bucket = NULL;
    page->n_token = 0;
    tier_of(pool, page)->cached -= page->n_ref == 0;
}

void kv_page_fill(kv_pool *pool, kv_page *page, uint64_t before, const int32_t *tokens, int64_t n) {
    page->before = before;
    page->n_token = n;
    if (n == 0)
        return;
    memcpy(page->tokens, tokens, (size_t)n * sizeof *tokens);
    page->in_bucket = bucket_of(pool, before, tokens[0]);
    page->next_in_bucket = *page->in_bucket;
    if (page->next_in_bucket)
        page->next_in_bucket->in_bucket = &page->next_in_bucket;
    *page->in_bucket = page;
}

kv_page *kv_page_find(kv_pool *pool, bool in_ram, uint64_t before, const int32_t *tokens, int64_t n,
                      int64_t *n_same) {
    kv_page *best = NULL;
    *n_same = 0;
    for (kv_page *page = n ? *bucket_of(pool, before, tokens[0]) : NULL; page; page = page->next_in_bucket) {
        int64_t same = 0;
        if (page->before != before || page->chunk->in_ram != in_ram)
            continue;
        while (same < NUM_MIN(n, page->n_token) && page->tokens[same] == tokens[same])
            same++;
        if (same > *n_same) {
            *n_same = same;
            best = page;
        }
    }
    return best;
}

void kv_page_refer(kv_pool *pool, kv_page *page) {
    kv_tier *t = tier_of(pool, page);
    if (page->n_ref++ > 0)
        return;
    list_remove(t, page);
    page->chunk->n_used++;
    t->used++;
    t->cached -= page->n_token > 0;
}

void kv_page_drop(kv_pool *pool, kv_page *page) {
    kv_tier *t = tier_of(pool, page);
    if (--page->n_ref > 0)
        return;
    page->chunk->n_used--;
    t->used--;
    t->cached += page->n_token > 0;
    list_add(t, page, page->n_token == 0);
}

/* ---- chunks; the lock is held ---- */

/* Allocates memory for n pages. */
static nib_status chunk_take(const kv_pool *pool, kv_chunk *c, uint64_t bytes, uint64_t on_host,
                             nib_error *err) {
    NIB_TRY(memory_region_open(&c->memory, pool->device, pool->ledger, NIB_OWNER_KV, bytes, true,
                               "keys and values", err));
    if (on_host == 0)
        return NIB_OK;
    const nib_status status = memory_region_open(&c->host, pool->host, pool->ledger, NIB_OWNER_KV, on_host,
                                                 false, "keys and values of layers in RAM", err);
    if (status != NIB_OK)
        memory_region_close(&c->memory);
    return status;
}

static uint64_t huge_index(const void *at) {
    return (uint64_t)(uintptr_t)at / MEM_HUGE_PAGE;
}

/* Prepares a chunk for huge pages: its first touches make whole huge pages resident. */
static nib_status chunk_prefer_huge(const kv_pool *pool, kv_chunk *c, nib_error *err) {
    const uint8_t *at = c->memory.at;
    if (pool->device != device_host() || c->memory.bytes < (uint64_t)MIN_HUGE * MEM_HUGE_PAGE)
        return NIB_OK;
    const uint64_t n = huge_index(at + c->memory.bytes - 1) - huge_index(at) + 1;
    c->huge_touched = mem_calloc(n, sizeof *c->huge_touched);
    if (!c->huge_touched)
        return nib_fail_nomem(err, n, "the list of huge pages");
    mem_prefer_huge(c->memory.at, c->memory.bytes);
    return NIB_OK;
}

/* Marks the huge pages of `page` as resident; returns the bytes that become resident. */
static uint64_t chunk_touch_huge(kv_chunk *c, const kv_page *page, uint64_t page_bytes) {
    const uint64_t base = (uint64_t)(uintptr_t)c->memory.at, end = base + c->memory.bytes;
    uint64_t touched = 0;
    for (uint64_t i = huge_index(page->at); i <= huge_index(page->at + page_bytes - 1); i++) {
        bool *seen = &c->huge_touched[i - huge_index(c->memory.at)];
        if (!*seen)
            touched += NUM_MIN(end, (i + 1) * MEM_HUGE_PAGE) - NUM_MAX(base, i * MEM_HUGE_PAGE);
        *seen = true;
    }
    return touched;
}

void kv_chunk_add(kv_pool *pool, kv_chunk *c) {
    kv_tier *t = c->in_ram ? &pool->ram.tier : &pool->tier;
    c->next = t->chunks;
    t->chunks = c;
    t->capacity += c->n_page;
    for (int64_t i = c->n_page - 1; i >= 0; i--) { /* so that pages at the beginning are allocated first */
        c->pages[i].chunk = c;
        list_add(t, &c->pages[i], true);
    }
}

void kv_chunk_free(kv_chunk *c) {
    memory_region_close(&c->memory);
    memory_region_close(&c->host);
    mem_free(c->huge_touched);
    mem_free(c);
}

static nib_status chunk_open(kv_pool *pool, int64_t n, bool huge, nib_error *err) {
    uint64_t bytes, on_host, heap;
    if (!num_mul_u64((uint64_t)n, pool->paging.page_bytes, &bytes) || bytes > INT64_MAX ||
        !num_mul_u64((uint64_t)n, pool->paging.host_bytes, &on_host) || on_host > INT64_MAX ||
        !num_mul_u64((uint64_t)n, sizeof(kv_page), &heap) || heap > INT64_MAX / 2)
        return nib_fail(err, NIB_E_NOFIT, "keys and values of %lld pages overflow 64 bits", (long long)n);
    kv_chunk *c = mem_calloc(1, sizeof *c + (size_t)heap);
    if (!c)
        return nib_fail_nomem(err, (size_t)heap, "the list of pages");
    nib_status status = chunk_take(pool, c, bytes, on_host, err);
    if (status == NIB_OK && huge)
        status = chunk_prefer_huge(pool, c, err);
    if (status != NIB_OK) {
        kv_chunk_free(c);
        return status;
    }
    c->n_page = n;
    for (int64_t i = 0; i < n; i++) {
        if (pool->paging.page_bytes > 0)
            c->pages[i].at = (uint8_t *)c->memory.at + (uint64_t)i * pool->paging.page_bytes;
        if (on_host > 0)
            c->pages[i].on_host = (uint8_t *)c->host.at + (uint64_t)i * pool->paging.host_bytes;
    }
    kv_chunk_add(pool, c);
    return NIB_OK;
}

static void chunk_close(kv_pool *pool, kv_chunk *c) {
    for (int64_t i = 0; i < c->n_page; i++) {
        kv_page_forget(pool, &c->pages[i]);
        list_remove(&pool->tier, &c->pages[i]);
    }
    pool->tier.capacity -= c->n_page;
    kv_chunk_free(c);
}

/* Frees chunks without references, as long as the others suffice for the reservations. Waiting copies may be
 * from and to any chunk. */
static void close_unneeded(kv_pool *pool) {
    if (pool->tier.used == 0)
        kv_ram_abandon(pool);
    if (pool->ram.n_copy > 0)
        return;
    for (kv_chunk **at = &pool->tier.chunks; *at;) {
        kv_chunk *c = *at;
        if (c->n_used > 0 || pool->tier.capacity - c->n_page < pool->reserved) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        chunk_close(pool, c);
    }
}

/* ---- the pool ---- */

nib_status kv_pool_open(const layout *lay, kv_formats formats, bool overlaid, bool share, device *d,
                        ledger *l, kv_pool **out, nib_error *err) {
    kv_pool *pool = mem_calloc(1, sizeof *pool);
    if (!pool)
        return nib_fail_nomem(err, sizeof *pool, "the pool of keys and values");
    pool->device = d;
    pool->ledger = l;
    pool->share = share;
    device_info info;
    d->kind->info(d, &info);
    pool->host_reads = info.host_reads;
    pthread_mutex_init(&pool->lock, NULL);
    kv_states_init(&pool->states, model_state_bytes(layout_model(lay)), d, l);
    const nib_status status = kv_paging_open(&pool->paging, lay, formats, overlaid, err);
    if (status != NIB_OK) {
        kv_pool_close(pool);
        return status;
    }
    *out = pool;
    return NIB_OK;
}

nib_status kv_pool_split(kv_pool *pool, const layout *lay, device *host, const bool *on_host,
                         nib_error *err) {
    pool->host = host;
    return kv_paging_split(&pool->paging, lay, on_host, err);
}

void kv_pool_close(kv_pool *pool) {
    if (!pool)
        return;
    kv_ram_close(pool);
    while (pool->tier.chunks) {
        kv_chunk *c = pool->tier.chunks;
        pool->tier.chunks = c->next;
        chunk_close(pool, c);
    }
    kv_states_deinit(&pool->states);
    kv_paging_close(&pool->paging);
    pthread_mutex_destroy(&pool->lock);
    mem_free(pool);
}

const kv_paging *kv_pool_paging(const kv_pool *pool) {
    return &pool->paging;
}

bool kv_pool_host_reads(const kv_pool *pool) {
    return pool->host_reads;
}

kv_states *kv_pool_states(kv_pool *pool) {
    return &pool->states;
}

uint64_t kv_pool_serial(kv_pool *pool, const kv_page *page) {
    pthread_mutex_lock(&pool->lock);
    const uint64_t serial = page->n_token == KV_BLOCK ? page->serial : 0;
    pthread_mutex_unlock(&pool->lock);
    return serial;
}

bool kv_pool_shares(const kv_pool *pool) {
    return pool->share;
}

nib_status kv_pool_reserve(kv_pool *pool, int64_t n, bool huge, nib_error *err) {
    nib_status status = NIB_OK;
    pthread_mutex_lock(&pool->lock);
    if (n > INT64_MAX - pool->reserved)
        status = nib_fail(err, NIB_E_NOFIT, "keys and values of %lld pages overflow 64 bits", (long long)n);
    else if (pool->reserved + n > pool->tier.capacity)
        status = chunk_open(pool, pool->reserved + n - pool->tier.capacity, huge, err);
    if (status == NIB_OK)
        pool->reserved += n;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void kv_pool_unkeep(kv_pool *pool, int64_t n) {
    pthread_mutex_lock(&pool->lock);
    pool->kept -= n;
    pthread_mutex_unlock(&pool->lock);
    kv_pool_unreserve(pool, n);
}

void kv_pool_unreserve(kv_pool *pool, int64_t n) {
    pthread_mutex_lock(&pool->lock);
    pool->reserved -= n;
    close_unneeded(pool);
    pthread_mutex_unlock(&pool->lock);
}

kv_page *kv_page_take(kv_pool *pool) {
    kv_page *page = pool->tier.first;
    kv_ram_save(pool, page);
    kv_page_forget(pool, page);
    page->serial = ++pool->last_serial;
    kv_page_refer(pool, page);
    return page;
}

kv_page *kv_pool_take(kv_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    kv_page *page = kv_page_take(pool);
    pthread_mutex_unlock(&pool->lock);
    return page;
}

void kv_pool_refer(kv_pool *pool, kv_page *page) {
    pthread_mutex_lock(&pool->lock);
    kv_page_refer(pool, page);
    pthread_mutex_unlock(&pool->lock);
}

void kv_pool_drop(kv_pool *pool, kv_page *page) {
    pthread_mutex_lock(&pool->lock);
    kv_page_drop(pool, page);
    pthread_mutex_unlock(&pool->lock);
}

uint8_t *kv_page_at(const kv_page *page) {
    return page->at;
}

uint8_t *kv_page_on_host(const kv_page *page) {
    return page->on_host;
}

static void cut(kv_pool *pool, kv_page *page, int64_t n) {
    if (n >= page->n_token)
        return;
    page->serial = ++pool->last_serial;
    if (n == 0)
        kv_page_forget(pool, page);
    page->n_token = n;
}

bool kv_pool_claim(kv_pool *pool, kv_page *page, int64_t n) {
    pthread_mutex_lock(&pool->lock);
    const bool loses = page->n_token - n >= MIN_KEPT, alone = page->n_ref == 1 && !(loses && pool->kept > 0);
    if (alone && loses)
        kv_ram_save(pool, page);
    if (alone)
        cut(pool, page, n);
    pthread_mutex_unlock(&pool->lock);
    return alone;
}

void kv_pool_touch(kv_pool *pool, kv_page *page, int64_t n) {
    pthread_mutex_lock(&pool->lock);
    if (n > page->n_touched) {
        kv_chunk *c = page->chunk;
        c->touched += c->huge_touched ? chunk_touch_huge(c, page, pool->paging.page_bytes)
                                      : kv_paging_touched(&pool->paging, n) -
                                            kv_paging_touched(&pool->paging, page->n_touched);
        page->n_touched = n;
        memory_region_touch(&c->memory, c->touched);
    }
    pthread_mutex_unlock(&pool->lock);
}

void kv_pool_describe(kv_pool *pool, kv_page *page, const kv_page *before, const int32_t *tokens, int64_t n) {
    if (!pool->share)
        return;
    pthread_mutex_lock(&pool->lock);
    const uint64_t follows = before ? before->serial : 0;
    if (follows != page->before || n < page->n_token ||
        memcmp(page->tokens, tokens, (size_t)page->n_token * sizeof *tokens) != 0)
        page->serial = ++pool->last_serial; /* the content did not only grow */
    kv_page_forget(pool, page);
    kv_page_fill(pool, page, follows, tokens, n);
    pthread_mutex_unlock(&pool->lock);
}

kv_page *kv_pool_find(kv_pool *pool, const kv_page *before, const int32_t *tokens, int64_t n,
                      int64_t *n_same) {
    pthread_mutex_lock(&pool->lock);
    kv_page *best = kv_page_find(pool, false, before ? before->serial : 0, tokens, n, n_same);
    if (best)
        kv_page_refer(pool, best);
    pthread_mutex_unlock(&pool->lock);
    return best;
}

/* Finds a page of a tier whose content after `follows` begins with these n tokens. */
static kv_page *page_with(kv_pool *pool, bool in_ram, uint64_t follows, const int32_t *tokens, int64_t n) {
    int64_t n_same;
    kv_page *page = kv_page_find(pool, in_ram, follows, tokens, n, &n_same);
    return n_same == n ? page : NULL;
}

kv_page *kv_page_of(kv_pool *pool, bool in_ram, const int32_t *tokens, int64_t first, int64_t end) {
    uint64_t follows = 0;
    for (int64_t i = 0; i < first; i += KV_BLOCK) {
        const kv_page *page = page_with(pool, false, follows, tokens + i, KV_BLOCK);
        if (!page)
            page = page_with(pool, true, follows, tokens + i, KV_BLOCK);
        if (!page)
            return NULL;
        follows = page->serial;
    }
    kv_page *page = page_with(pool, in_ram, follows, tokens + first, end - first);
    return page && (page->n_token == KV_BLOCK || page->n_ref == 0) ? page : NULL;
}

bool kv_pool_copy(kv_pool *pool, const int32_t *tokens, int64_t first, int64_t end, uint64_t at, void *out,
                  size_t n_byte, uint64_t *mark) {
    pthread_mutex_lock(&pool->lock);
    const kv_page *page = kv_page_of(pool, !pool->host_reads, tokens, first, end);
    const bool found = page && (*mark == 0 || *mark == page->serial) &&
                       (pool->host_reads || page->n_queued <= pool->ram.n_made);
    if (found) {
        *mark = page->serial;
        memcpy(out, page->at + at, n_byte);
    }
    pthread_mutex_unlock(&pool->lock);
    return found;
}

void kv_pool_usage(kv_pool *pool, kv_usage *out) {
    pthread_mutex_lock(&pool->lock);
    *out = (kv_usage){.reserved = pool->reserved,
                      .used = pool->tier.used,
                      .cached = pool->tier.cached,
                      .page_bytes = pool->paging.page_bytes + pool->paging.host_bytes,
                      .in_ram = pool->ram.tier.cached,
                      .ram_bytes = pool->ram.bytes,
                      .n_saved = pool->ram.n_saved,
                      .n_restored = pool->ram.n_restored};
    pthread_mutex_unlock(&pool->lock);
}
