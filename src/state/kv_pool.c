/* kv_pool.c - see kv_pool.h. Memory is allocated in chunks, one for each reservation that exceeds the
 * existing pages. Pages with content are in a hash table, keyed by the serial number of the preceding page. A
 * page whose content is replaced gets a new serial number, so the pages that followed the old content can no
 * longer be found. kv_part.c adds parts for layers with a window, kv_ram.c pages in RAM. */
#include "state/kv_pool_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

enum {
    MIN_HUGE = 8, /* huge pages of a chunk */
    MIN_KEPT = 16 /* positions that are worth a copy of a page */
};

/* ---- pages; the lock is held ---- */

void kv_list_add(kv_tier *t, kv_page *page, bool at_front) {
    page->previous = at_front ? NULL : t->last;
    page->next = at_front ? t->first : NULL;
    *(page->previous ? &page->previous->next : &t->first) = page;
    *(page->next ? &page->next->previous : &t->last) = page;
}

void kv_list_remove(kv_tier *t, kv_page *page) {
    *(page->previous ? &page->previous->next : &t->first) = page->next;
    *(page->next ? &page->next->previous : &t->last) = page->previous;
    page->previous = page->next = NULL;
}

/* The first pages of all sequences follow nothing, so their first token tells them apart as far as it can. */
static kv_page **bucket_of(kv_pool *pool, uint64_t before, int32_t first) {
    return &pool->buckets[(before * UINT64_C(0x9e3779b97f4a7c15) + (uint32_t)first) % KV_N_BUCKET];
}

void kv_page_forget(kv_page *page) {
    if (page->n_token == 0)
        return;
    *page->in_bucket = page->next_in_bucket;
    if (page->next_in_bucket)
        page->next_in_bucket->in_bucket = page->in_bucket;
    page->next_in_bucket = NULL;
    page->n_token = 0;
    page->chunk->tier->cached -= page->n_ref == 0;
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

static bool is_in_ram(const kv_pool *pool, const kv_page *page) {
    return page->chunk->tier == &pool->ram.tier;
}

kv_page *kv_page_find(kv_pool *pool, bool in_ram, uint64_t before, const int32_t *tokens, int64_t n,
                      int64_t *n_same) {
    kv_page *best = NULL;
    *n_same = 0;
    for (kv_page *page = n ? *bucket_of(pool, before, tokens[0]) : NULL; page; page = page->next_in_bucket) {
        int64_t same = 0;
        if (page->before != before || is_in_ram(pool, page) != in_ram)
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

static bool has_content(const kv_page *page) {
    return page->n_token > 0 || page->of;
}

void kv_page_refer(kv_page *page) {
    kv_tier *t = page->chunk->tier;
    if (page->n_ref++ > 0)
        return;
    kv_list_remove(t, page);
    page->chunk->n_used++;
    t->used++;
    t->cached -= has_content(page);
}

void kv_page_drop(kv_page *page) {
    kv_tier *t = page->chunk->tier;
    if (--page->n_ref > 0)
        return;
    page->chunk->n_used--;
    t->used--;
    if (!has_content(page))
        kv_part_unlink(page->part);
    t->cached += has_content(page);
    kv_list_add(t, page, !has_content(page));
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
                                                 false, "keys and values of layers elsewhere", err);
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

void kv_chunk_add(kv_chunk *c) {
    kv_tier *t = c->tier;
    c->next = t->chunks;
    t->chunks = c;
    t->capacity += c->n_page;
    for (int64_t i = c->n_page - 1; i >= 0; i--) { /* so that pages at the beginning are allocated first */
        c->pages[i].chunk = c;
        kv_list_add(t, &c->pages[i], true);
    }
}

void kv_chunk_free(kv_chunk *c) {
    memory_region_close(&c->memory);
    memory_region_close(&c->host);
    mem_free(c->huge_touched);
    mem_free(c);
}

static nib_status chunk_open(kv_pool *pool, kv_tier *t, int64_t n, bool huge, nib_error *err) {
    const kv_paging *p = &pool->paging;
    const uint64_t each = t == &pool->parts ? p->part_bytes : p->page_bytes;
    const uint64_t each_on_host = t == &pool->parts ? 0 : p->host_bytes;
    uint64_t bytes, on_host, heap;
    if (!num_mul_u64((uint64_t)n, each, &bytes) || bytes > INT64_MAX ||
        !num_mul_u64((uint64_t)n, each_on_host, &on_host) || on_host > INT64_MAX ||
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
    c->tier = t;
    c->n_page = n;
    for (int64_t i = 0; i < n; i++) {
        if (each > 0)
            c->pages[i].at = (uint8_t *)c->memory.at + (uint64_t)i * each;
        if (on_host > 0)
            c->pages[i].on_host = (uint8_t *)c->host.at + (uint64_t)i * each_on_host;
    }
    kv_chunk_add(c);
    return NIB_OK;
}

static void chunk_close(kv_chunk *c) {
    for (int64_t i = 0; i < c->n_page; i++) {
        kv_page_forget(&c->pages[i]);
        kv_part_unlink(c->pages[i].part);
        kv_part_unlink(&c->pages[i]);
        kv_list_remove(c->tier, &c->pages[i]);
    }
    c->tier->capacity -= c->n_page;
    kv_chunk_free(c);
}

/* Frees the tier's chunks without references, as long as the others suffice for the reservations. */
static void close_unneeded(kv_tier *t) {
    for (kv_chunk **at = &t->chunks; *at;) {
        kv_chunk *c = *at;
        if (c->n_used > 0 || t->capacity - c->n_page < t->reserved) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        chunk_close(c);
    }
}

static void close_all(kv_tier *t) {
    while (t->chunks) {
        kv_chunk *c = t->chunks;
        t->chunks = c->next;
        chunk_close(c);
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

device *kv_pool_host(const kv_pool *pool) {
    return pool->host;
}

nib_status kv_pool_split(kv_pool *pool, const layout *lay, device *host, const kv_home *homes,
                         nib_error *err) {
    pool->host = host;
    return kv_paging_split(&pool->paging, lay, homes, err);
}

void kv_pool_use_disk(kv_pool *pool, device *disk) {
    pool->host = disk;
}

void kv_pool_close(kv_pool *pool) {
    if (!pool)
        return;
    kv_ram_close(pool);
    close_all(&pool->parts);
    close_all(&pool->tier);
    kv_states_deinit(&pool->states);
    kv_paging_close(&pool->paging);
    pthread_mutex_destroy(&pool->lock);
    mem_free(pool);
}

const kv_paging *kv_pool_paging(const kv_pool *pool) {
    return &pool->paging;
}

struct kv_log *kv_pool_log(const kv_pool *pool) {
    return pool->log;
}

int32_t kv_pool_number(const kv_pool *pool) {
    return pool->number;
}

void kv_pool_set_log(kv_pool *pool, struct kv_log *log, int32_t number) {
    pool->log = log;
    pool->number = number;
}

uint64_t kv_pool_page_bytes(const kv_pool *pool) {
    return pool->paging.page_bytes + pool->paging.part_bytes + pool->paging.host_bytes;
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

static nib_status reserve(kv_pool *pool, kv_tier *t, int64_t n, bool huge, nib_error *err) {
    if (n > INT64_MAX - t->reserved)
        return nib_fail(err, NIB_E_NOFIT, "keys and values of %lld pages overflow 64 bits", (long long)n);
    if (t->reserved + n > t->capacity)
        NIB_TRY(chunk_open(pool, t, t->reserved + n - t->capacity, huge, err));
    t->reserved += n;
    return NIB_OK;
}

/* Waiting copies may be from and to any chunk. */
static void unreserve(kv_pool *pool, kv_amount n) {
    pool->tier.reserved -= n.page;
    pool->parts.reserved -= n.part;
    if (pool->tier.reserved == 0) {
        pool->parts.reserved -= pool->together;
        pool->together = 0;
    }
    if (pool->tier.used == 0)
        kv_ram_abandon(pool);
    if (pool->ram.n_copy > 0)
        return;
    close_unneeded(&pool->parts);
    close_unneeded(&pool->tier);
}

int64_t kv_parts_together(const kv_paging *p, kv_amount n) {
    return p->window ? NUM_MIN(num_div_up(p->formats.rows, KV_BLOCK), n.page - n.part) : 0;
}

nib_status kv_pool_reserve(kv_pool *pool, kv_amount n, bool huge, nib_error *err) {
    pthread_mutex_lock(&pool->lock);
    const int64_t more = NUM_MAX(kv_parts_together(&pool->paging, n) - pool->together, 0);
    nib_status status = reserve(pool, &pool->tier, n.page, huge, err);
    if (status == NIB_OK && (status = reserve(pool, &pool->parts, n.part + more, huge, err)) != NIB_OK)
        unreserve(pool, (kv_amount){.page = n.page});
    pool->together += status == NIB_OK ? more : 0;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void kv_pool_unkeep(kv_pool *pool, kv_amount n) {
    pthread_mutex_lock(&pool->lock);
    pool->kept -= n.page;
    pthread_mutex_unlock(&pool->lock);
    kv_pool_unreserve(pool, n);
}

void kv_pool_unreserve(kv_pool *pool, kv_amount n) {
    pthread_mutex_lock(&pool->lock);
    unreserve(pool, n);
    pthread_mutex_unlock(&pool->lock);
}

kv_page *kv_page_take(kv_pool *pool) {
    kv_page *page = pool->tier.first;
    kv_ram_save(pool, page);
    kv_page_forget(page);
    kv_part_unlink(page->part);
    page->serial = ++pool->last_serial;
    kv_page_refer(page);
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
    kv_page_refer(page);
    pthread_mutex_unlock(&pool->lock);
}

void kv_pool_drop(kv_pool *pool, kv_page *page) {
    pthread_mutex_lock(&pool->lock);
    kv_page_drop(page);
    pthread_mutex_unlock(&pool->lock);
}

uint8_t *kv_page_at(const kv_page *page) {
    return page->at;
}

bool kv_page_follows(const kv_page *first, const kv_page *second) {
    return first->chunk == second->chunk && second == first + 1;
}

uint8_t *kv_page_on_host(const kv_page *page) {
    return page->on_host;
}

static void cut(kv_pool *pool, kv_page *page, int64_t n) {
    if (n >= page->n_token)
        return;
    page->serial = ++pool->last_serial;
    if (n == 0)
        kv_page_forget(page);
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

uint64_t kv_pool_walk(kv_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    const uint64_t walk = ++pool->last_serial;
    pthread_mutex_unlock(&pool->lock);
    return walk;
}

int64_t kv_pool_met(kv_pool *pool, kv_page *const *pages, int64_t n, uint64_t walk) {
    int64_t n_met = 0;
    pthread_mutex_lock(&pool->lock);
    for (int64_t i = 0; i < n; i++) {
        n_met += pages[i]->met == walk;
        pages[i]->met = walk;
    }
    pthread_mutex_unlock(&pool->lock);
    return n_met;
}

void kv_pool_touch(kv_pool *pool, kv_page *page, int64_t n) {
    pthread_mutex_lock(&pool->lock);
    if (n > page->n_touched) {
        kv_chunk *c = page->chunk;
        const bool part = c->tier == &pool->parts;
        const kv_paging *p = &pool->paging;
        c->touched += c->huge_touched
                          ? chunk_touch_huge(c, page, part ? p->part_bytes : p->page_bytes)
                          : kv_paging_touched(p, part, n) - kv_paging_touched(p, part, page->n_touched);
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
    kv_page_forget(page);
    kv_page_fill(pool, page, follows, tokens, n);
    pthread_mutex_unlock(&pool->lock);
}

/* Another page with the content of a full page. */
static kv_page *twin_of(kv_pool *pool, const kv_page *page, bool in_ram) {
    kv_page *twin = *bucket_of(pool, page->before, page->tokens[0]);
    while (twin && (twin == page || is_in_ram(pool, twin) != in_ram || twin->before != page->before ||
                    twin->n_token < KV_BLOCK || memcmp(twin->tokens, page->tokens, sizeof page->tokens) != 0))
        twin = twin->next_in_bucket;
    return twin;
}

/* The pages that follow a copy in RAM must be found after this page too. */
kv_page *kv_pool_merge(kv_pool *pool, kv_page *page) {
    pthread_mutex_lock(&pool->lock);
    const bool alone = page->n_token == KV_BLOCK && page->n_ref == 1;
    kv_page *twin = alone ? twin_of(pool, page, false) : NULL, *part = page->part;
    const kv_page *in_ram = alone && !twin ? twin_of(pool, page, true) : NULL;
    if (in_ram)
        page->serial = in_ram->serial;
    if (twin) {
        kv_page_refer(twin);
        if (part && !twin->part)
            kv_part_move(part, twin);
        kv_page_forget(page);
        kv_page_drop(page);
    }
    pthread_mutex_unlock(&pool->lock);
    return twin ? twin : page;
}

kv_page *kv_pool_find(kv_pool *pool, const kv_page *before, const int32_t *tokens, int64_t n,
                      int64_t *n_same) {
    pthread_mutex_lock(&pool->lock);
    kv_page *best = kv_page_find(pool, false, before ? before->serial : 0, tokens, n, n_same);
    if (best)
        kv_page_refer(best);
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

/* Copies from the page's memory, followed by that of its part. */
static void copy_bytes(const kv_pool *pool, const kv_page *page, uint64_t at, uint8_t *out, size_t n) {
    const uint64_t own =
        pool->paging.part_bytes && !is_in_ram(pool, page) ? pool->paging.page_bytes : UINT64_MAX;
    const size_t n_own = at < own ? (size_t)NUM_MIN(n, own - at) : 0;
    if (n_own > 0)
        memcpy(out, page->at + at, n_own);
    if (n > n_own)
        memcpy(out + n_own, page->part->at + (at + n_own - own), n - n_own);
}

/* Of its memory and of its part, if it has one; page NULL: none. */
static uint64_t bytes_of(const kv_pool *pool, const kv_page *page) {
    const uint64_t all = kv_pool_page_bytes(pool);
    return !page ? 0 : page->part || page->whole ? all : all - pool->paging.part_bytes;
}

uint64_t kv_pool_copyable(kv_pool *pool, const int32_t *tokens, int64_t first, int64_t end) {
    pthread_mutex_lock(&pool->lock);
    const kv_page *page = kv_page_of(pool, !pool->host_reads, tokens, first, end);
    const uint64_t n = bytes_of(pool, page);
    pthread_mutex_unlock(&pool->lock);
    return n;
}

bool kv_pool_copy(kv_pool *pool, const int32_t *tokens, int64_t first, int64_t end, uint64_t at, void *out,
                  size_t n_byte, uint64_t *mark) {
    pthread_mutex_lock(&pool->lock);
    const kv_page *page = kv_page_of(pool, !pool->host_reads, tokens, first, end);
    const bool found = page && at + n_byte <= bytes_of(pool, page) && (*mark == 0 || *mark == page->serial) &&
                       (pool->host_reads || page->n_queued <= pool->ram.n_made);
    if (found) {
        *mark = page->serial;
        copy_bytes(pool, page, at, out, n_byte);
    }
    pthread_mutex_unlock(&pool->lock);
    return found;
}

void kv_pool_usage(kv_pool *pool, kv_usage *out) {
    pthread_mutex_lock(&pool->lock);
    *out = (kv_usage){.reserved = pool->tier.reserved,
                      .used = pool->tier.used,
                      .cached = pool->tier.cached,
                      .page_bytes = pool->paging.page_bytes + pool->paging.host_bytes,
                      .parts_reserved = pool->parts.reserved,
                      .parts_used = pool->parts.used,
                      .ram_bytes = pool->ram.bytes,
                      .n_saved = pool->ram.n_saved,
                      .n_restored = pool->ram.n_restored};
    pthread_mutex_unlock(&pool->lock);
}
