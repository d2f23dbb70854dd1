/* kv_part.c - parts of pages for layers with a window; see kv_pool.h. */
#include "state/kv_pool_parts.h"

void kv_part_unlink(kv_page *part) {
    if (!part || !part->of)
        return;
    part->of->part = NULL;
    part->of = NULL;
    if (part->n_ref > 0)
        return;
    kv_tier *t = part->chunk->tier; /* it is reused first */
    t->cached--;
    kv_list_remove(t, part);
    kv_list_add(t, part, true);
}

static void link_to(kv_page *part, kv_page *page) {
    part->of = page;
    page->part = part;
}

void kv_part_move(kv_page *part, kv_page *page) {
    if (part->of)
        part->of->part = NULL;
    link_to(part, page);
}

kv_page *kv_pool_take_part(kv_pool *pool, kv_page *page) {
    pthread_mutex_lock(&pool->lock);
    kv_page *part = pool->parts.first;
    if (part) {
        if (part->of && part->of->n_ref == 0)
            kv_ram_save(pool, part->of);
        kv_part_unlink(part);
        kv_page_refer(part);
        if (page)
            link_to(part, page);
    }
    pthread_mutex_unlock(&pool->lock);
    return part;
}

kv_page *kv_pool_refer_part(kv_pool *pool, const kv_page *page) {
    pthread_mutex_lock(&pool->lock);
    kv_page *part = page->part;
    if (part)
        kv_page_refer(part);
    pthread_mutex_unlock(&pool->lock);
    return part;
}

bool kv_pool_has_part(kv_pool *pool, const kv_page *page) {
    pthread_mutex_lock(&pool->lock);
    const bool has = page->part != NULL;
    pthread_mutex_unlock(&pool->lock);
    return has;
}

bool kv_pool_detach_part(kv_pool *pool, kv_page *part) {
    pthread_mutex_lock(&pool->lock);
    const bool alone = part->n_ref == 1;
    if (alone)
        kv_part_unlink(part);
    pthread_mutex_unlock(&pool->lock);
    return alone;
}

void kv_pool_attach_part(kv_pool *pool, kv_page *part, kv_page *page) {
    pthread_mutex_lock(&pool->lock);
    if (!page->part)
        kv_part_move(part, page);
    pthread_mutex_unlock(&pool->lock);
}
