/* kv_ram.c - pages in RAM with the content of pages that a device has reused; see kv_pool.h.
 *
 * A page moves in two steps. Its description changes at once, under the lock: kv_pool_take describes the
 * dropped content in a page of RAM, and kv_pool_restore describes it in a page of the device. The memory is
 * copied later, by kv_pool_copy_waiting at the beginning of the next pass, because only passes use the
 * device. The copies are made in the order of the descriptions and in the lane of the kernels, so each reads
 * what its description says, even if its page is reused by a later copy. */
#include "state/kv_pool_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

#define CHUNK_BYTES (UINT64_C(32) << 20)

enum {
    FREE_PART = 8, /* one of so many parts of the RAM cap stays free for others */
    MAX_COPIES = 4 /* of a page that is restored with its part, and of those whose memory it takes */
};

/* ---- memory; the lock is held ---- */

/* Bytes that pages without references may still take. */
static uint64_t left_in_ram(const kv_pool *pool) {
    const uint64_t left = ledger_free(pool->ledger, PLACE_RAM);
    if (left == NIB_AUTO)
        return left;
    const uint64_t others = ledger_cap(pool->ledger, PLACE_RAM) / FREE_PART;
    return left > others ? left - others : 0;
}

static nib_status open_memory(kv_pool *pool, kv_chunk *c, nib_error *err) {
    const uint64_t bytes = (uint64_t)c->n_page * kv_pool_page_bytes(pool);
    NIB_TRY(memory_region_open(&c->memory, device_host(), pool->ledger, NIB_OWNER_KV, bytes, false,
                               "keys and values in RAM", err));
    return pool->device->kind->pin(pool->device, c->memory.at, bytes, err);
}

/* Allocates a chunk of pages, if it fits. */
static void grow(kv_pool *pool) {
    const uint64_t each = kv_pool_page_bytes(pool);
    const uint64_t n = NUM_MIN(NUM_MAX(CHUNK_BYTES / each, 1), (pool->ram.max - pool->ram.bytes) / each);
    if (n == 0 || left_in_ram(pool) < n * each)
        return;
    kv_chunk *c = mem_calloc(1, sizeof *c + (size_t)n * sizeof *c->pages);
    if (!c)
        return;
    c->tier = &pool->ram.tier;
    c->n_page = (int64_t)n;
    if (open_memory(pool, c, NULL) != NIB_OK) {
        pool->ram.max = pool->ram.bytes; /* not tried again */
        kv_chunk_free(c);
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        c->pages[i].at = (uint8_t *)c->memory.at + i * each;
        if (pool->paging.host_bytes > 0)
            c->pages[i].on_host = c->pages[i].at + pool->paging.page_bytes;
    }
    pool->ram.bytes += n * each;
    kv_chunk_add(c);
}

void kv_ram_close(kv_pool *pool) {
    device_mark all;
    const device_kind *kind = pool->device->kind;
    if (pool->ram.tier.chunks && kind->mark(pool->device, DEVICE_COMPUTE, &all, NULL) == NIB_OK)
        (void)kind->wait(pool->device, all, NULL);
    while (pool->ram.tier.chunks) {
        kv_chunk *c = pool->ram.tier.chunks;
        pool->ram.tier.chunks = c->next;
        kind->unpin(pool->device, c->memory.at, c->memory.bytes);
        kv_chunk_free(c);
    }
    mem_free(pool->ram.copies);
}

/* ---- moving pages; the lock is held ---- */

/* Whether n more copies can be queued. */
static bool can_copy(kv_ram *r, size_t n) {
    return mem_grow((void **)&r->copies, &r->max_copy, r->n_copy + n, sizeof *r->copies) == 0;
}

static void queue_copy(kv_ram *r, kv_copy copy) {
    r->copies[r->n_copy++] = copy;
    copy.to->n_queued = ++r->n_queued;
}

/* Describes the content of one page in another one. Nothing follows a partial page, so its serial number is
 * not needed; two sequences may later fill its copies with different tokens. */
static void describe_in(kv_pool *pool, const kv_page *from, kv_page *to) {
    to->serial = from->n_token == KV_BLOCK ? from->serial : ++pool->last_serial;
    kv_page_fill(pool, to, from->before, from->tokens, from->n_token);
}

/* The memory of a page in RAM for its part: after its own and the host's. */
static uint8_t *part_at(const kv_pool *pool, const kv_page *in_ram) {
    return in_ram->at + pool->paging.page_bytes + pool->paging.host_bytes;
}

/* The page in RAM that is reused next; NULL: none. */
static kv_page *next_in_ram(kv_pool *pool) {
    kv_tier *t = &pool->ram.tier;
    if (!t->first || t->first->n_token > 0)
        grow(pool);
    return t->first;
}

void kv_ram_save(kv_pool *pool, const kv_page *page) {
    kv_ram *r = &pool->ram;
    int64_t n_same;
    if (r->max == 0 || page->n_token == 0 || !can_copy(r, 1))
        return;
    kv_page *to = kv_page_find(pool, true, page->before, page->tokens, page->n_token, &n_same);
    const bool is_there = to && n_same == page->n_token;
    if (!is_there) {
        to = next_in_ram(pool);
        if (!to)
            return;
        kv_page_forget(to);
        to->whole = false;
    }
    kv_page_refer(to);
    if (!is_there) {
        describe_in(pool, page, to);
        r->n_saved++;
    }
    kv_copy copy = {.from = page, .to = to, .own = !is_there};
    if (page->part && !to->whole && to->n_token == page->n_token) {
        copy.part_from = page->part->at;
        copy.part_to = part_at(pool, to);
        to->whole = true;
    }
    if (copy.own || copy.part_to)
        queue_copy(r, copy);
    kv_page_drop(to); /* the last one to be reused */
}

void kv_ram_abandon(kv_pool *pool) {
    for (size_t i = 0; i < pool->ram.n_copy; i++) {
        kv_page_forget(pool->ram.copies[i].to);
        pool->ram.copies[i].to->whole = false;
    }
    pool->ram.n_queued -= pool->ram.n_copy;
    pool->ram.n_copy = 0;
}

static nib_status copy_page(const kv_pool *pool, const kv_copy *c, nib_error *err) {
    const kv_paging *p = &pool->paging;
    device *d = pool->device;
    if (c->own && p->host_bytes > 0)
        memcpy(c->to->on_host, c->from->on_host, (size_t)p->host_bytes);
    if (c->own)
        NIB_TRY(d->kind->copy(d, DEVICE_COMPUTE, c->to->at, c->from->at, p->page_bytes, err));
    return c->part_to ? d->kind->copy(d, DEVICE_COMPUTE, c->part_to, c->part_from, p->part_bytes, err)
                      : NIB_OK;
}

/* ---- for sequences ---- */

nib_status kv_pool_keep(kv_pool *pool, uint64_t max, kv_amount *out, nib_error *err) {
    *out = (kv_amount){0};
    if (!pool->share || pool->log || max == 0 ||
        kv_pool_page_bytes(pool) == 0) /* no layer has keys and values */
        return NIB_OK;
    const bool more_pages = pool->host_reads;
    const int64_t n = (int64_t)(NUM_MIN(max, left_in_ram(pool)) / kv_pool_page_bytes(pool));
    const kv_amount more = {.page = n, .part = pool->paging.part_bytes ? n : 0};
    if (more_pages) {
        NIB_TRY(kv_pool_reserve(pool, more, true, err));
        *out = more;
    }
    pthread_mutex_lock(&pool->lock);
    if (more_pages)
        pool->kept += n;
    else
        pool->ram.max = NUM_MAX(pool->ram.max, max);
    pthread_mutex_unlock(&pool->lock);
    return NIB_OK;
}

kv_page *kv_pool_find_in_ram(kv_pool *pool, const kv_page *before, const int32_t *tokens, int64_t n,
                             int64_t *n_same) {
    kv_page *page = NULL;
    *n_same = 0;
    pthread_mutex_lock(&pool->lock);
    if (pool->ram.max > 0 && can_copy(&pool->ram, MAX_COPIES))
        page = kv_page_find(pool, true, before ? before->serial : 0, tokens, n, n_same);
    if (page)
        kv_page_refer(page);
    pthread_mutex_unlock(&pool->lock);
    return page;
}

kv_page *kv_pool_restore(kv_pool *pool, kv_page *in_ram) {
    pthread_mutex_lock(&pool->lock);
    kv_page *page = kv_page_take(pool);
    describe_in(pool, in_ram, page);
    queue_copy(&pool->ram, (kv_copy){.from = in_ram, .to = page, .own = true});
    pool->ram.n_restored++;
    pthread_mutex_unlock(&pool->lock);
    return page;
}

bool kv_pool_is_whole(kv_pool *pool, const kv_page *in_ram) {
    pthread_mutex_lock(&pool->lock);
    const bool whole = in_ram->whole;
    pthread_mutex_unlock(&pool->lock);
    return whole;
}

bool kv_pool_put_part(kv_pool *pool, kv_page *page, const kv_page *in_ram) {
    pthread_mutex_lock(&pool->lock);
    const bool can = can_copy(&pool->ram, 1);
    if (can)
        queue_copy(&pool->ram, (kv_copy){.from = in_ram,
                                         .to = page,
                                         .part_from = part_at(pool, in_ram),
                                         .part_to = page->part->at});
    pthread_mutex_unlock(&pool->lock);
    return can;
}

nib_status kv_pool_copy_waiting(kv_pool *pool, nib_error *err) {
    kv_ram *r = &pool->ram;
    nib_status status = NIB_OK;
    size_t n = 0;
    pthread_mutex_lock(&pool->lock);
    while (status == NIB_OK && n < r->n_copy) {
        status = copy_page(pool, &r->copies[n], err);
        n += status == NIB_OK;
    }
    if (n > 0) {
        r->n_copy -= n;
        memmove(r->copies, r->copies + n, r->n_copy * sizeof *r->copies);
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ---- for pages on disk ---- */

void kv_pool_save(kv_pool *pool, const int32_t *tokens, int64_t first, int64_t end) {
    pthread_mutex_lock(&pool->lock);
    const kv_page *page = kv_page_of(pool, false, tokens, first, end);
    if (page)
        kv_ram_save(pool, page);
    pthread_mutex_unlock(&pool->lock);
}

kv_page *kv_pool_take_in_ram(kv_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    kv_page *page = next_in_ram(pool);
    if (page) {
        kv_page_forget(page);
        kv_page_refer(page);
    }
    pthread_mutex_unlock(&pool->lock);
    return page;
}

bool kv_pool_put(kv_pool *pool, kv_page *page, const kv_page *in_ram) {
    pthread_mutex_lock(&pool->lock);
    const bool can = can_copy(&pool->ram, 1);
    if (can)
        queue_copy(&pool->ram, (kv_copy){.from = in_ram, .to = page, .own = true});
    pthread_mutex_unlock(&pool->lock);
    return can;
}

nib_status kv_pool_settle(kv_pool *pool, nib_error *err) {
    device_mark all;
    NIB_TRY(kv_pool_copy_waiting(pool, err));
    pthread_mutex_lock(&pool->lock);
    const uint64_t n = pool->ram.n_queued - pool->ram.n_copy;
    const bool is_settled = n == pool->ram.n_made;
    pthread_mutex_unlock(&pool->lock);
    if (is_settled)
        return NIB_OK;
    NIB_TRY(pool->device->kind->mark(pool->device, DEVICE_COMPUTE, &all, err));
    NIB_TRY(pool->device->kind->wait(pool->device, all, err));
    pthread_mutex_lock(&pool->lock);
    pool->ram.n_made = n;
    pthread_mutex_unlock(&pool->lock);
    return NIB_OK;
}
