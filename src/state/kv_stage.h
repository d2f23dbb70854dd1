/* kv_stage.h - keys and values on their way from their home to the memory of who attends to them, and back:
 * from host memory to a device, or from a disk to host memory.
 *
 * A layer whose home is there (kv_home) has its pages copied to a slot of that memory before its
 * attention, and the pages that rows have written copied back after it (FlexGen section 4.2: load cache,
 * store cache). The rows of a pass are cut into parts: sequences whose pages fit in a slot. A part of a layer
 * is what is copied and attended to together:
 *
 *     absent -- load --> arriving -- acquire --> attended -- release --> leaving -- load --> ...
 *
 * There are several slots, and copies have lanes of their own, so the next part (of this layer, or the first
 * of the next) arrives while the current one is attended to and while products run. Order is kept by marks:
 * attention follows the arrival, the store follows attention, and the next load of a slot follows its store.
 * The host never waits, except in kv_stage_end.
 *
 * Attention may also come for parts and layers in another order: what was loaded ahead is then dropped. No
 * part reads what another one writes in the same pass.
 *
 * One thread at a time. */
#ifndef NIB_STATE_KV_STAGE_H
#define NIB_STATE_KV_STAGE_H

#include "memory/watch.h"
#include "state/kv_table.h"

typedef struct kv_stage kv_stage;

enum { KV_STAGE_SLOTS = 2, KV_STAGE_LIST = 5 /* numbers in lists for a page: its own, two pairs */ };

/* Bytes of a slot, and of device memory: slots, and lists for n_list pages. */
static inline uint64_t kv_stage_slot(uint64_t stride, uint64_t n_page, uint64_t newest, uint64_t n_newest) {
    return n_page * stride + n_newest * newest;
}
uint64_t kv_stage_bytes(uint64_t slot_bytes, uint64_t n_list);

/* The device makes the copies, and has copy_rows. Slots are in `memory`: its own, or, of a disk, RAM. A slot
 * has n_page pages of `stride` bytes, a multiple of DEVICE_PAGE; with codes before them a page of `newest`
 * bytes for the newest block of each of n_newest sequences, which kernels expect never to hold anything but
 * halves. n_list: pages of a pass, those for the newest blocks included. Numbers grow if a pass needs
 * more. It takes kv_stage_bytes. host: the memory of kv_pool_split. Everything is borrowed. */
typedef struct kv_stage_setup {
    device *device, *memory, *host;
    ledger *ledger;
    uint64_t stride, newest;
    int64_t n_page, n_newest, n_list;
} kv_stage_setup;

/* NIB_E_NOFIT, NIB_E_NOMEM. */
nib_status kv_stage_open(const kv_stage_setup *how, kv_stage **out, nib_error *err);
void kv_stage_close(kv_stage *s); /* NULL is fine; the lanes must be empty */

/* watch: told of the copies of each part; NULL: nobody. s NULL is fine. */
void kv_stage_set_watch(kv_stage *s, const device_watch *watch);

/* Rows of one sequence in a pass: positions [first, end) are written, those before them are read. */
typedef struct kv_stage_rows {
    const kv_table *kv;
    int64_t first, end;
    bool by_host; /* in layers with KV_HOME_HOST the host computes them */
    int64_t page; /* set by kv_stage_add: the first of its pages in the pass's list */
} kv_stage_rows;

/* A pass: kv_stage_clear, then kv_stage_add for all its rows in their order, all of one pool format, then
 * kv_stage_begin, before any attention. After an error no copy is queued, and no kv_stage_end follows. */
void kv_stage_clear(kv_stage *s);
nib_status kv_stage_add(kv_stage *s, const kv_stage_rows *rows, nib_error *err);
nib_status kv_stage_begin(kv_stage *s, nib_error *err);

/* What attention reads. Page i of the pass (each sequence has those up to its last position; with codes that
 * of its newest block is before them) begins pages[i] * DEVICE_PAGE bytes after `key` and `value`. */
typedef struct kv_stage_part {
    uint8_t *key, *value, *newest_value; /* device memory; the newest keys begin at `key` too */
    const int32_t *pages;                /* device memory */
    int64_t end;                         /* the part's rows of the pass end here */
} kv_stage_part;

/* Gets the part with this row of the pass for a layer whose home is host memory. Work that is queued in the
 * compute lane later finds it there. */
nib_status kv_stage_acquire(kv_stage *s, int layer, int64_t row, kv_stage_part *out, nib_error *err);
/* To be called when all attention of the acquired part is queued in the compute lane. */
nib_status kv_stage_release(kv_stage *s, nib_error *err);
/* Ends a pass, also one that has failed: waits until the copies are complete. */
nib_status kv_stage_end(kv_stage *s, nib_error *err);

#endif
