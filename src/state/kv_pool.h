/* kv_pool.h - an engine's keys and values in pages of KV_BLOCK positions.
 *
 * A page has the same positions of every layer. So a sequence is one list of pages (kv_table.h), and no
 * stride depends on the context length. Pages are counted by reference: sequences with a common prefix share
 * its pages. A page stores the tokens of its positions and its predecessor, so a prefix is found by content;
 * the tokens themselves are compared. A page without references keeps its content until it is reused: pages
 * without content are allocated first, then the least recently dropped ones.
 *
 * Memory is reserved before it is used: kv_pool_reserve charges a number of pages to the ledger, or refuses.
 * References never outnumber the reserved pages, so kv_pool_take cannot fail. The ledger is updated as
 * written positions become resident.
 *
 * The keys and values of many sequences are more small pages of the system than the processor's TLB has
 * entries for, and every step reads all of them. Memory for many sequences is therefore in huge pages, each
 * of which becomes resident as a whole.
 *
 * With kv_formats.slides, layers with a window have their keys and values in parts: a page refers to at most
 * one part, which holds its positions, and a table refers to the parts that its rows still read, a subset of
 * its pages' parts (kv_slide.h). A part without references stays with its page until it is reused, the least
 * recently dropped one first. So there are never more referenced parts than referenced pages.
 *
 * Some layers may have their keys and values in host memory (kv_pool_split): those that the host computes for
 * a device, and those that do not fit there. A page then has one piece in each memory.
 *
 * Thread-safe. Passes read and write the pages themselves, one pass at a time. */
#ifndef NIB_STATE_KV_POOL_H
#define NIB_STATE_KV_POOL_H

#include "kernels/kernels.h"
#include "state/kv_paging.h"
#include "state/kv_states.h"
#include "memory/region.h"

typedef struct kv_pool kv_pool;
typedef struct kv_page kv_page;

/* share: sequences find pages by content. d, l: memory and ledger, borrowed. *out is closed with
 * kv_pool_close. */
nib_status kv_pool_open(const layout *lay, kv_formats formats, bool overlaid, bool share, device *d,
                        ledger *l, kv_pool **out, nib_error *err);
void kv_pool_close(kv_pool *pool); /* NULL is fine; its pages have no references */
/* Moves the layers whose home [n_layer] is not the device to memory of `host`, which the host reads and which
 * is wholly resident. To be called before the first reservation. */
nib_status kv_pool_split(kv_pool *pool, const layout *lay, device *host, const kv_home *homes,
                         nib_error *err);
/* The disk of a pool with kv_formats.on_disk (memory/device_disk.h), borrowed. To be called likewise. */
void kv_pool_use_disk(kv_pool *pool, device *disk);
const kv_paging *kv_pool_paging(const kv_pool *pool);
device *kv_pool_host(const kv_pool *pool); /* of one of these; NULL: all layers are on the device */
/* The log of its tables' calls, and the pool's number in it (kv_calls.h); NULL: none. */
struct kv_log *kv_pool_log(const kv_pool *pool);
int32_t kv_pool_number(const kv_pool *pool);
void kv_pool_set_log(kv_pool *pool, struct kv_log *log, int32_t number);
uint64_t kv_pool_page_bytes(const kv_pool *pool); /* of a whole page: its own memory, the host's, its part */
bool kv_pool_shares(const kv_pool *pool);         /* as opened */
bool kv_pool_host_reads(const kv_pool *pool);     /* the host reads the memory of its device */

/* Numbers of pages and of their parts. */
typedef struct kv_amount {
    int64_t page, part;
} kv_amount;

/* The parts for kv_formats.rows that are reserved besides an amount: once for all sequences. */
int64_t kv_parts_together(const kv_paging *p, kv_amount n);
/* Reserves more pages and parts; huge: host memory for them is in huge pages. NIB_E_NOFIT, NIB_E_NOMEM. */
nib_status kv_pool_reserve(kv_pool *pool, kv_amount n, bool huge, nib_error *err);
void kv_pool_unreserve(kv_pool *pool, kv_amount n); /* the caller has dropped them */

/* Allocates a page, empty and with one reference. Its old content is dropped. */
kv_page *kv_pool_take(kv_pool *pool);
void kv_pool_refer(kv_pool *pool, kv_page *page); /* one reference more, of a page that has some */
void kv_pool_drop(kv_pool *pool, kv_page *page);  /* one reference less */
uint8_t *kv_page_at(const kv_page *page);         /* its memory, page_bytes; of a part, part_bytes */
uint8_t *kv_page_on_host(const kv_page *page);    /* NULL: the pool is not split */
/* Whether the second page's memory follows that of the first, in one allocation. */
bool kv_page_follows(const kv_page *first, const kv_page *second);
/* To be called before writing from position n on. Returns whether the caller may write: it has the only
 * reference, and the pool does not keep the content after n (kv_pool_keep) by having it copied. Then
 * kv_pool_find returns only the first n positions. */
bool kv_pool_claim(kv_pool *pool, kv_page *page, int64_t n);
/* A number for a walk over pages; how many of these pages the walk has met already. They are met then. */
uint64_t kv_pool_walk(kv_pool *pool);
int64_t kv_pool_met(kv_pool *pool, kv_page *const *pages, int64_t n, uint64_t walk);
/* Charges the first n positions of the page as resident; to be called before they are written. */
void kv_pool_touch(kv_pool *pool, kv_page *page, int64_t n);

/* A part is a kv_page too, for kv_pool_refer, kv_pool_drop and kv_pool_touch; it is dropped before its page.
 *
 * Allocates the part of a page that has none (NULL: of no page yet), with one reference. NULL: all parts have
 * references. */
kv_page *kv_pool_take_part(kv_pool *pool, kv_page *page);
/* Adds a reference to the page's part. NULL: it has none. */
kv_page *kv_pool_refer_part(kv_pool *pool, const kv_page *page);
bool kv_pool_has_part(kv_pool *pool, const kv_page *page);
/* If nobody else refers to the part, it becomes one of no page, so that nobody can. */
bool kv_pool_detach_part(kv_pool *pool, kv_page *part);
/* Makes a part that only the caller can refer to that of this page, unless the page has one. */
void kv_pool_attach_part(kv_pool *pool, kv_page *part, kv_page *page);

/* Records the page's content: its first n positions hold the keys and values of tokens[0..n), which follow
 * the content of page `before` (NULL: they begin the sequence). */
void kv_pool_describe(kv_pool *pool, kv_page *page, const kv_page *before, const int32_t *tokens, int64_t n);
/* Where a page has the content of a full page, which only the caller refers to and has just described:
 * returns that other page with a reference, and drops this one, whose part becomes the other's if that has
 * none. Otherwise returns the page itself. */
kv_page *kv_pool_merge(kv_pool *pool, kv_page *page);
/* Finds the page after `before` with the longest common prefix with tokens[0..n), and adds a reference;
 * *n_same is its length. NULL: none. */
kv_page *kv_pool_find(kv_pool *pool, const kv_page *before, const int32_t *tokens, int64_t n,
                      int64_t *n_same);

/* Keeps more content of pages without references, in at most `max` bytes of RAM. An eighth of the RAM cap
 * stays free. If the host reads the pool's device, *n more pages and parts are reserved, until
 * kv_pool_unkeep. Otherwise *n is 0 and the pool has a tier in RAM: a page whose content is about to be
 * dropped is copied there first, and kv_pool_restore copies it back. Its part is copied with it, or before,
 * when that is about to be reused. The tier's memory is page-locked. It is allocated as it is needed, if the
 * ledger has space; then the least recently used pages are reused. It is freed with the pool; a later call
 * can only raise `max`. */
nib_status kv_pool_keep(kv_pool *pool, uint64_t max, kv_amount *n, nib_error *err);
void kv_pool_unkeep(kv_pool *pool, kv_amount n); /* they are without references */
/* As kv_pool_find, among the pages in RAM. It cannot be reused before kv_pool_restore or kv_pool_drop. */
kv_page *kv_pool_find_in_ram(kv_pool *pool, const kv_page *before, const int32_t *tokens, int64_t n,
                             int64_t *n_same);
/* Allocates a page with the content of a page in RAM, as kv_pool_take. The caller drops that one. */
kv_page *kv_pool_restore(kv_pool *pool, kv_page *in_ram);
/* Whether the page in RAM has the content of its part too. kv_pool_put_part copies it to the part of a page
 * that the caller has taken; false: no memory for the list of copies. */
bool kv_pool_is_whole(kv_pool *pool, const kv_page *in_ram);
bool kv_pool_put_part(kv_pool *pool, kv_page *page, const kv_page *in_ram);
/* Queues the copies between the device and RAM in the device's lane of kernels. To be called by a pass,
 * before it uses any page. After an error of the device the other copies wait for the next call. */
nib_status kv_pool_copy_waiting(kv_pool *pool, nib_error *err);

/* For pages on disk (kv_disk.h), if the host cannot read the device.
 *
 * Copies the page with tokens [first, end) of a sequence to the tier in RAM, as in kv_pool_copy, if it is on
 * the device. */
void kv_pool_save(kv_pool *pool, const int32_t *tokens, int64_t first, int64_t end);
/* Allocates a page in RAM, empty and with one reference; kv_pool_drop returns it. NULL: there is no memory.
 */
kv_page *kv_pool_take_in_ram(kv_pool *pool);
/* Copies the memory of a page in RAM to a page that the caller has taken. False: no memory for the list of
 * copies. The page in RAM must stay unchanged until kv_pool_settle. */
bool kv_pool_put(kv_pool *pool, kv_page *page, const kv_page *in_ram);
/* kv_pool_copy_waiting, and waits until all copies are complete. No pass may run meanwhile. */
nib_status kv_pool_settle(kv_pool *pool, nib_error *err);

/* The bytes of a page that kv_pool_copy can copy: of a whole page, or without its part; 0: no such page. */
uint64_t kv_pool_copyable(kv_pool *pool, const int32_t *tokens, int64_t first, int64_t end);
/* Copies n_byte bytes of a page, from byte `at` on, to host memory, while passes may write other pages. If
 * the host cannot read the device, the page is one in RAM whose copy is complete. The host's part is after
 * its own memory, and its part for windows at the end. The page is the one with tokens [first, end) of a
 * sequence that begins with tokens[0..first); first is a multiple of KV_BLOCK and end at most KV_BLOCK more.
 * *mark is 0, or the value from an earlier call: then the call succeeds only for the same unchanged page.
 * False: no such page, no part to copy from, or a partial page with references, which may be written. */
bool kv_pool_copy(kv_pool *pool, const int32_t *tokens, int64_t first, int64_t end, uint64_t at, void *out,
                  size_t n_byte, uint64_t *mark);

/* Checkpoints of recurrent states at the ends of pages, and the number by which a page's is found. */
kv_states *kv_pool_states(kv_pool *pool);
uint64_t kv_pool_serial(kv_pool *pool,
                        const kv_page *page); /* 0: the page is not full of described content */

typedef struct kv_usage {
    int64_t reserved; /* pages */
    int64_t used;     /* pages with references */
    int64_t cached;   /* pages without references that still have content */
    uint64_t page_bytes;
    int64_t parts_reserved, parts_used;
    uint64_t ram_bytes;           /* allocated for pages of the RAM tier */
    uint64_t n_saved, n_restored; /* pages copied to RAM and back since the pool was opened */
} kv_usage;
void kv_pool_usage(kv_pool *pool, kv_usage *out);

#endif
