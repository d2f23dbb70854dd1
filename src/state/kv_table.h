/* kv_table.h - the state of one sequence: its keys and values, which are pages in order with the views that
 * kernels read, and the recurrent state of layers that have one.
 *
 * Pages for n_ctx positions are reserved when the table opens, allocated as positions are written, and
 * returned when positions are dropped. A page with other references is copied before it is written (copy on
 * write).
 *
 * A sequence continues at its end, or at the end of a shorter prefix. In f16 and f32 any prefix works. If
 * some layers have codes (kernels.h), the newest positions must still have f16 copies; otherwise the sequence
 * continues at the beginning of that prefix's last block. kv_table_keep returns the position. The f16 copies
 * of these layers' newest block are the table's own memory, a page in f16.
 *
 * The same holds for layers on a disk in f16 and f32: a page goes there when it is full. Until then it is in
 * the table's own memory in RAM, `tail`, which has one page.
 *
 * A recurrent state (model_state_bytes) is the table's own memory too. It is that of one number of positions
 * and cannot be truncated. Passes of a prompt leave a checkpoint of it at the end of a page (kv_states.h): a
 * shorter prefix, and a sequence with the same tokens, continues at the last page with one, or at position 0.
 * Ops begin with zeros there, so nothing is cleared. For speculation a table has a second state
 * (kv_table_open_second): a pass with rows of proposed tokens stores there what the state was before them. If
 * not all of them stay, the sequence continues with that state, and computes rows again that were right.
 *
 * Layers with a window may keep only the pages' parts that are still read (kv_slide.h). Then a shorter prefix
 * continues where the parts before its end still exist, otherwise earlier, and only such prefixes of other
 * sequences are adopted.
 *
 * One thread at a time. */
#ifndef NIB_STATE_KV_TABLE_H
#define NIB_STATE_KV_TABLE_H

#include "state/kv_disk.h"

typedef struct kv_table {
    kv_pool *pool;  /* borrowed */
    device *device; /* where the pages are */
    int64_t n_ctx, n_page, max_page;
    int32_t number;    /* in records of calls (kv_calls.h) */
    bool reserved;     /* the opener has reserved the pages */
    kv_page **pages;   /* [max_page] */
    uint8_t **at;      /* [max_page]: addresses of the pages, for the views */
    uint8_t **on_host; /* [max_page]: addresses of their parts on the host; unused if the pool is not split */
    kv_page **parts;   /* [max_page]: for layers with a window, of pages [first_part, n_part); else NULL */
    uint8_t **part_at; /* [max_page]: their addresses; those of other pages are unused */
    int64_t first_part, n_part;
    int64_t max_part;                  /* parts that the table may refer to between two passes */
    kv_view *layers;                   /* [n_layer] */
    kv_paging recent;                  /* layers with codes: layout of the f16 page of the newest block */
    memory_region newest, host_newest; /* this page; that of layers whose home is host memory */
    int64_t n_newest;                  /* positions of it that are resident */
    memory_region tail; /* layers on the disk without codes: the incomplete page (kv_layer.tail_at) */
    int64_t held;     /* with codes or a tail: positions from here on are in these; a multiple of KV_BLOCK */
    kv_state *saving; /* the pass's checkpoint; NULL: none */
    uint64_t saved;   /* the page of its last checkpoint; 0: none */
    void *save_to;    /* where the pass stores the state after save_at positions too; NULL: nowhere */
    int64_t save_at;  /* of a checkpoint: a multiple of KV_BLOCK */
    int64_t end;      /* of the pass */
    memory_region state;  /* the recurrent state, model_state_bytes in f32; unused if there is none */
    memory_region second; /* for speculation: another one; unused without it */
    bool checkpoints;     /* its pool has memory for one more */
    int64_t n_in_state;   /* the number of positions that it has seen; -1: unknown, since a pass began */
} kv_table;

/* Number of pages for n positions. */
int64_t kv_table_pages(kv_formats formats, int64_t n);
/* What n_table tables reserve that have n_page pages together. */
kv_amount kv_table_amount(const kv_paging *p, int64_t n_table, int64_t n_page);
/* Bytes that a table of n_ctx positions reserves, its f16 page and recurrent state included; that n_table
 * tables reserve together with n_page pages. NIB_E_NOFIT: overflow. */
nib_status kv_table_bytes(const layout *lay, kv_formats formats, bool overlaid, int64_t n_ctx,
                          uint64_t *bytes, nib_error *err);
nib_status kv_tables_bytes(const layout *lay, kv_formats formats, bool overlaid, int64_t n_table,
                           int64_t n_page, uint64_t *bytes, nib_error *err);
/* Bytes on the disk of the pages that they reserve (kv_formats.on_disk). NIB_E_NOFIT: overflow. */
nib_status kv_tables_on_disk(const layout *lay, kv_formats formats, int64_t n_page, uint64_t *bytes,
                             nib_error *err);
/* The bytes of it that the first n positions make resident. */
nib_status kv_table_touched(const layout *lay, kv_formats formats, int64_t n, uint64_t *bytes,
                            nib_error *err);

/* reserved: pages are taken from the caller's reservation in the pool for several tables (kv_table_amount);
 * the caller counts them. NULL: the table reserves its own. */
nib_status kv_table_open(kv_table *t, kv_pool *pool, const layout *lay, device *d, ledger *l, int64_t n_ctx,
                         const kv_amount *reserved, nib_error *err);
/* Gives a table with a recurrent state a second one, so that tokens may be proposed. NIB_E_NOFIT. */
nib_status kv_table_open_second(kv_table *t, ledger *l, nib_error *err);
void kv_table_close(kv_table *t); /* zeroed is fine */

/* Truncates the sequence to its first n positions, to continue there. Returns how many positions stay, from
 * where the caller computes again: n; up to KV_BLOCK - 1 fewer with codes; with a recurrent state n
 * only where it is, otherwise the last page's end up to n that has a checkpoint, or 0; with parts for
 * windows, where these exist. Pages after them are dropped. */
int64_t kv_table_keep(kv_table *t, int64_t n);
/* Prepares positions [first, end) for writing, before a pass: allocates pages and copies shared ones; end <=
 * n_ctx. Those from `proposed` on may be dropped after it; `end`: none. generated: they are of an answer, so
 * the pass leaves no checkpoint. kv_table_fill follows, after all tables of the pass, and after the pass
 * kv_table_settle. The recurrent state is unknown until kv_table_advance. Returns the errors of copying. */
nib_status kv_table_reach(kv_table *t, int64_t first, int64_t end, int64_t proposed, bool generated,
                          nib_error *err);
nib_status kv_table_fill(kv_table *t, int64_t end, nib_error *err);
/* Between these two: how many rows of a layer with a window an op may store, in a pass that begins at
 * position `first`, before it attends to them. */
int64_t kv_table_rows(const kv_table *t, int64_t first);
/* And the first page whose part they read. */
int64_t kv_table_first_part(const kv_table *t, int64_t first);
void kv_table_settle(kv_table *t); /* also if the pass has failed */
/* After the pass and kv_table_learn: the sequence has n positions, and the pass's checkpoint can be found.
 * Returns the number of positions of the recurrent state: n, or that of the pass's first proposed position,
 * if n lies between that and the end of the pass. */
int64_t kv_table_advance(kv_table *t, int64_t n);
/* Where its recurrent states begin in memory: the same address for the same table. NULL: it has none. */
uint8_t *kv_table_states(const kv_table *t);
/* Records that positions [first, end) were written, for tokens[first..end). A page with the content of
 * another one is replaced by that. */
void kv_table_learn(kv_table *t, const int32_t *tokens, int64_t first, int64_t end);
/* The table holds tokens[0..n_held); pages of other sequences that hold more of tokens[0..n) replace its own
 * from there on, as far as the sequence can continue. Returns how many positions it holds now: n_held or
 * more; fewer if another thread took parts or a checkpoint meanwhile. */
int64_t kv_table_adopt(kv_table *t, const int32_t *tokens, int64_t n_held, int64_t n);
/* An empty table gets the first n_page pages of another one of the same pool. They are full of positions that
 * are the same in both sequences, and are not written again. */
void kv_table_share(kv_table *t, const kv_table *from, int64_t n_page);
/* How many of the first n_page pages kv_table_share can take from the table. */
int64_t kv_table_shareable(const kv_table *t, int64_t n_page);
/* As kv_table_adopt, with pages from disk, at most n_page of them; blocks on reads. *more: the folder may
 * have more pages. */
int64_t kv_table_load(kv_table *t, kv_disk *from, const int32_t *tokens, int64_t n_held, int64_t n,
                      int64_t n_page, bool *more);

#endif
