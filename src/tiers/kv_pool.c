/* kv_pool.c - see kv_pool.h. Memory is allocated in chunks, one for each reservation that exceeds the
 * existing pages. Pages without references are in one list: pages without content at its front, the last
 * dropped page at its end. Pages with content are also in a hash table, keyed by the serial number of the
 * preceding page. A page whose content is replaced gets a new serial number, so the pages that followed the
 * old content can no longer be found. */
#include "tiers/kv_pool.h"

#include "base/mem.h"
#include "base/num.h"

#include <pthread.h>
#include <string.h>

enum { N_BUCKET = 1024, MIN_HUGE = 8 /* huge pages of a chunk */ };

typedef struct kv_chunk kv_chunk;

struct kv_page {
    uint8_t *at, *on_host;
    kv_chunk *chunk;
    kv_page *previous, *next; /* in the list of unused pages */
    kv_page *next_in_bucket;
    int64_t n_ref;
    int64_t n_touched;       /* positions that are resident */
    uint64_t serial, before; /* before: serial of the preceding page; 0: none */
    int64_t n_token;         /* 0: no content */
    int32_t tokens[KV_BLOCK];
};

struct kv_chunk {
    kv_chunk *next;
    tier_region memory, host;
    uint64_t touched;
    bool *huge_touched; /* for each huge page that overlaps the memory: it is resident; NULL: small pages */
    int64_t n_page, n_used;
    kv_page pages[];
};

struct kv_pool {
    kv_paging paging;
    device *device, *host; /* host NULL: pages are not split */
    ledger *ledger;
    bool share;
    pthread_mutex_t lock;
    kv_chunk *chunks;
    int64_t capacity, reserved, used, cached; /* pages */
    kv_page *first, *last;                    /* unused pages */
    uint64_t last_serial;
    kv_page *buckets[N_BUCKET];
};

/* ---- lists; the lock is held ---- */

static void list_add(kv_pool *pool, kv_page *page, bool at_front) {
    page->previous = at_front ? NULL : pool->last;
    page->next = at_front ? pool->first : NULL;
    *(page->previous ? &page->previous->next : &pool->first) = page;
    *(page->next ? &page->next->previous : &pool->last) = page;
}

static void list_remove(kv_pool *pool, kv_page *page) {
    *(page->previous ? &page->previous->next : &pool->first) = page->next;
    *(page->next ? &page->next->previous : &pool->last) = page->previous;
    page->previous = page->next = NULL;
}

static kv_page **bucket_of(kv_pool *pool, uint64_t before) {
    return &pool->buckets[before % N_BUCKET];
}

static void forget(kv_pool *pool, kv_page *page) {
    if (page->n_token == 0)
        return;
    kv_page **at = bucket_of(pool, page->before);
    while (*at != page)
        at = &(*at)->next_in_bucket;
    *at = page->next_in_bucket;
    page->next_in_bucket = NULL;
    page->n_token = 0;
    pool->cached -= page->n_ref == 0;
}

static void refer(kv_pool *pool, kv_page *page) {
    if (page->n_ref++ > 0)
        return;
    list_remove(pool, page);
    page->chunk->n_used++;
    pool->used++;
    pool->cached -= page->n_token > 0;
}

/* ---- chunks; the lock is held ---- */

/* Allocates memory for n pages. */
static nib_status chunk_take(const kv_pool *pool, kv_chunk *c, uint64_t bytes, uint64_t on_host,
                             nib_error *err) {
    NIB_TRY(tier_region_open(&c->memory, pool->device, pool->ledger, NIB_OWNER_KV, bytes, true,
                             "keys and values", err));
    if (on_host == 0)
        return NIB_OK;
    const nib_status status = tier_region_open(&c->host, pool->host, pool->ledger, NIB_OWNER_KV, on_host,
                                               false, "keys and values of layers in RAM", err);
    if (status != NIB_OK)
        tier_region_close(&c->memory);
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

static void chunk_free(kv_chunk *c) {
    tier_region_close(&c->memory);
    tier_region_close(&c->host);
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
        chunk_free(c);
        return status;
    }
    c->n_page = n;
    c->next = pool->chunks;
    pool->chunks = c;
    pool->capacity += n;
    for (int64_t i = n - 1; i >= 0; i--) { /* so that pages at the beginning are allocated first */
        c->pages[i].chunk = c;
        c->pages[i].at = (uint8_t *)c->memory.at + (uint64_t)i * pool->paging.page_bytes;
        if (on_host > 0)
            c->pages[i].on_host = (uint8_t *)c->host.at + (uint64_t)i * pool->paging.host_bytes;
        list_add(pool, &c->pages[i], true);
    }
    return NIB_OK;
}

static void chunk_close(kv_pool *pool, kv_chunk *c) {
    for (int64_t i = 0; i < c->n_page; i++) {
        forget(pool, &c->pages[i]);
        list_remove(pool, &c->pages[i]);
    }
    pool->capacity -= c->n_page;
    chunk_free(c);
}

/* Frees chunks without references, as long as the others suffice for the reservations. */
static void close_unneeded(kv_pool *pool) {
    for (kv_chunk **at = &pool->chunks; *at;) {
        kv_chunk *c = *at;
        if (c->n_used > 0 || pool->capacity - c->n_page < pool->reserved) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        chunk_close(pool, c);
    }
}

/* ---- the pool ---- */

nib_status kv_pool_open(const layout *lay, type_id type, bool overlaid, bool share, device *d, ledger *l,
                        kv_pool **out, nib_error *err) {
    kv_pool *pool = mem_calloc(1, sizeof *pool);
    if (!pool)
        return nib_fail_nomem(err, sizeof *pool, "the pool of keys and values");
    pool->device = d;
    pool->ledger = l;
    pool->share = share;
    pthread_mutex_init(&pool->lock, NULL);
    const nib_status status = kv_paging_open(&pool->paging, lay, type, overlaid, err);
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
    while (pool->chunks) {
        kv_chunk *c = pool->chunks;
        pool->chunks = c->next;
        chunk_close(pool, c);
    }
    kv_paging_close(&pool->paging);
    pthread_mutex_destroy(&pool->lock);
    mem_free(pool);
}

const kv_paging *kv_pool_paging(const kv_pool *pool) {
    return &pool->paging;
}

bool kv_pool_shares(const kv_pool *pool) {
    return pool->share;
}

nib_status kv_pool_reserve(kv_pool *pool, int64_t n, bool huge, nib_error *err) {
    nib_status status = NIB_OK;
    pthread_mutex_lock(&pool->lock);
    if (n > INT64_MAX - pool->reserved)
        status = nib_fail(err, NIB_E_NOFIT, "keys and values of %lld pages overflow 64 bits", (long long)n);
    else if (pool->reserved + n > pool->capacity)
        status = chunk_open(pool, pool->reserved + n - pool->capacity, huge, err);
    if (status == NIB_OK)
        pool->reserved += n;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void kv_pool_unreserve(kv_pool *pool, int64_t n) {
    pthread_mutex_lock(&pool->lock);
    pool->reserved -= n;
    close_unneeded(pool);
    pthread_mutex_unlock(&pool->lock);
}

kv_page *kv_pool_take(kv_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    kv_page *page = pool->first;
    forget(pool, page);
    page->serial = ++pool->last_serial;
    refer(pool, page);
    pthread_mutex_unlock(&pool->lock);
    return page;
}

void kv_pool_refer(kv_pool *pool, kv_page *page) {
    pthread_mutex_lock(&pool->lock);
    refer(pool, page);
    pthread_mutex_unlock(&pool->lock);
}

void kv_pool_drop(kv_pool *pool, kv_page *page) {
    pthread_mutex_lock(&pool->lock);
    if (--page->n_ref == 0) {
        page->chunk->n_used--;
        pool->used--;
        pool->cached += page->n_token > 0;
        list_add(pool, page, page->n_token == 0);
    }
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
        forget(pool, page);
    page->n_token = n;
}

bool kv_pool_claim(kv_pool *pool, kv_page *page, int64_t n) {
    pthread_mutex_lock(&pool->lock);
    const bool alone = page->n_ref == 1;
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
        tier_region_touch(&c->memory, c->touched);
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
    forget(pool, page);
    page->before = follows;
    page->n_token = n;
    if (n > 0) {
        memcpy(page->tokens, tokens, (size_t)n * sizeof *tokens);
        page->next_in_bucket = *bucket_of(pool, follows);
        *bucket_of(pool, follows) = page;
    }
    pthread_mutex_unlock(&pool->lock);
}

kv_page *kv_pool_find(kv_pool *pool, const kv_page *before, const int32_t *tokens, int64_t n,
                      int64_t *n_same) {
    kv_page *best = NULL;
    *n_same = 0;
    pthread_mutex_lock(&pool->lock);
    const uint64_t follows = before ? before->serial : 0;
    for (kv_page *page = *bucket_of(pool, follows); page; page = page->next_in_bucket) {
        int64_t same = 0;
        while (page->before == follows && same < NUM_MIN(n, page->n_token) &&
               page->tokens[same] == tokens[same])
            same++;
        if (same > *n_same) {
            *n_same = same;
            best = page;
        }
    }
    if (best)
        refer(pool, best);
    pthread_mutex_unlock(&pool->lock);
    return best;
}

/* Finds a page after `follows` whose content begins with these n tokens. */
static const kv_page *page_with(kv_pool *pool, uint64_t follows, const int32_t *tokens, int64_t n) {
    for (const kv_page *page = *bucket_of(pool, follows); page; page = page->next_in_bucket)
        if (page->before == follows && page->n_token >= n &&
            !memcmp(page->tokens, tokens, (size_t)n * sizeof *tokens))
            return page;
    return NULL;
}

static const kv_page *page_of(kv_pool *pool, const int32_t *tokens, int64_t first, int64_t end) {
    uint64_t follows = 0;
    for (int64_t i = 0; i < first; i += KV_BLOCK) {
        const kv_page *page = page_with(pool, follows, tokens + i, KV_BLOCK);
        if (!page)
            return NULL;
        follows = page->serial;
    }
    const kv_page *page = page_with(pool, follows, tokens + first, end - first);
    return page && (page->n_token == KV_BLOCK || page->n_ref == 0) ? page : NULL;
}

bool kv_pool_copy(kv_pool *pool, const int32_t *tokens, int64_t first, int64_t end, uint64_t at, void *out,
                  size_t n_byte, uint64_t *mark) {
    pthread_mutex_lock(&pool->lock);
    const kv_page *page = page_of(pool, tokens, first, end);
    const bool found = page && (*mark == 0 || *mark == page->serial);
    if (found) {
        *mark = page->serial;
        memcpy(out, page->at + at, n_byte);
    }
    pthread_mutex_unlock(&pool->lock);
    return found;
}

void kv_pool_usage(kv_pool *pool, kv_usage *out) {
    pthread_mutex_lock(&pool->lock);
    *out = (kv_usage){pool->reserved, pool->used, pool->cached,
                      pool->paging.page_bytes + pool->paging.host_bytes};
    pthread_mutex_unlock(&pool->lock);
}
