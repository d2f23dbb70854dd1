/* kv_pool_parts.h - shared by kv_pool.c, kv_part.c and kv_ram.c only. */
#ifndef NIB_STATE_KV_POOL_PARTS_H
#define NIB_STATE_KV_POOL_PARTS_H

#include "state/kv_pool.h"

#include <pthread.h>

enum { KV_N_BUCKET = 1024 };

typedef struct kv_chunk kv_chunk;
typedef struct kv_tier kv_tier;

struct kv_page {
    uint8_t *at, *on_host;
    kv_chunk *chunk;
    kv_page *previous, *next;             /* in the list of unused pages of its tier */
    kv_page *next_in_bucket, **in_bucket; /* in_bucket: the pointer to this page */
    int64_t n_ref;
    int64_t n_touched;       /* positions that are resident */
    uint64_t serial, before; /* before: serial of the preceding page; 0: none */
    uint64_t met;            /* the last walk that has met it (kv_pool_met) */
    int64_t n_token;         /* 0: no content */
    int32_t tokens[KV_BLOCK];
    uint64_t n_queued; /* in RAM: copies that had been queued with the one that fills it */
    bool whole;        /* in RAM: the part's content is at the end of its memory */
    kv_page *part;     /* of a page, for layers with a window; NULL: none */
    kv_page *of;       /* of a part: its page; NULL: none, it has no content */
};

/* Memory of n_page pages. */
struct kv_chunk {
    kv_chunk *next;
    kv_tier *tier; /* that has its pages */
    memory_region memory, host;
    uint64_t touched;
    bool *huge_touched; /* for each huge page that overlaps the memory: it is resident; NULL: small pages */
    int64_t n_page, n_used;
    kv_page pages[];
};

/* The pages of one tier, or the parts. Those without references are in a list: pages without content at its
 * front, the last dropped page at its end. */
struct kv_tier {
    kv_chunk *chunks;
    int64_t capacity, used, cached; /* pages: all, with references, unused ones with content */
    int64_t reserved;               /* pages; not of the RAM tier */
    kv_page *first, *last;
};

/* Memory of a page that is to be copied to another page: of its own, of its part, or both. */
typedef struct kv_copy {
    const kv_page *from;
    kv_page *to;
    bool own;
    const uint8_t *part_from; /* NULL: no part */
    uint8_t *part_to;
} kv_copy;

/* Pages in RAM that hold what pages on a device held. */
typedef struct kv_ram {
    kv_tier tier;
    uint64_t max, bytes; /* of its pages: at most, and allocated */
    kv_copy *copies;     /* to be made before the next pass, in this order */
    size_t n_copy, max_copy;
    uint64_t n_queued, n_made;    /* copies so far: queued, and complete in memory */
    uint64_t n_saved, n_restored; /* pages */
} kv_ram;

struct kv_pool {
    kv_paging paging;
    device *device, *host; /* host NULL: pages are not split */
    bool host_reads;       /* the host reads the device's memory */
    ledger *ledger;
    bool share;
    struct kv_log *log; /* of its tables' calls, and its number there; NULL: none */
    int32_t number;
    kv_states states;
    pthread_mutex_t lock; /* protects all below, and the pages */
    kv_tier tier;         /* pages that passes use */
    kv_tier parts;        /* and their parts for layers with a window */
    kv_ram ram;
    int64_t kept;     /* pages that are reserved by kv_pool_keep */
    int64_t together; /* parts that are reserved for passes of all sequences (kv_parts_together) */
    uint64_t last_serial;
    kv_page *buckets[KV_N_BUCKET];
};

/* ---- kv_pool.c; the lock is held ---- */
kv_page *kv_page_take(kv_pool *pool); /* as kv_pool_take */
void kv_page_refer(kv_page *page);
void kv_page_drop(kv_page *page);
void kv_page_forget(kv_page *page); /* drops its content */
/* Gives a page without content the first n tokens after the page with this serial. */
void kv_page_fill(kv_pool *pool, kv_page *page, uint64_t before, const int32_t *tokens, int64_t n);
/* The page of a tier that shares the longest prefix with tokens[0..n) after the page with this serial. NULL:
 * none. */
kv_page *kv_page_find(kv_pool *pool, bool in_ram, uint64_t before, const int32_t *tokens, int64_t n,
                      int64_t *n_same);
/* The page of a tier with tokens [first, end) of a sequence, as in kv_pool_copy. NULL: none. */
kv_page *kv_page_of(kv_pool *pool, bool in_ram, const int32_t *tokens, int64_t first, int64_t end);
void kv_list_add(kv_tier *t, kv_page *page, bool at_front);
void kv_list_remove(kv_tier *t, kv_page *page);
/* Adds the pages of a chunk, whose memory exists, to its tier. */
void kv_chunk_add(kv_chunk *c);
void kv_chunk_free(kv_chunk *c); /* it is in no list */

/* ---- kv_part.c; the lock is held ---- */
void kv_part_unlink(kv_page *part);              /* it is no page's part any more; NULL is fine */
void kv_part_move(kv_page *part, kv_page *page); /* it becomes the part of a page that has none */

/* ---- kv_ram.c; the lock is held ---- */
/* Before the content of the page, or of its part, is dropped. */
void kv_ram_save(kv_pool *pool, const kv_page *page);
void kv_ram_abandon(kv_pool *pool); /* makes no waiting copy; their pages lose their content */
void kv_ram_close(kv_pool *pool);

#endif
