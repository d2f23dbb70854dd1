/* device_store.h - the weights of a model in the memory of a device whose kernels cannot read host memory.
 *
 * Every copy of a weight to a device is made here. A matrix that one block reads is either resident, in the
 * block's own region, or comes for each visit into one of the slots of device_blocks.h. A block may have
 * both, and the slots are as large as what comes. Vectors, and matrices that several blocks read, are always
 * resident. A resident weight is copied at the first visit of its block; then the pager needs it no longer,
 * and the RAM of pages that the device has is given back.
 * What the device's kind does on arrival (device_kind.arrange) follows each copy.
 *
 * The order of the pass's visits is known, so the blocks of the next visits are copied while the current one
 * is computed. Pages of the pager's ring are copied in the order of the visits too. Such a block is not
 * copied before its visit if a block that reads pages from the ring itself may come first.
 *
 * If another program takes the device's memory, resident blocks leave it, and return when it is free again
 * (device_store_look). The bits of all results stay the same.
 *
 * The store does not decide what is resident: plan/homes.h does, matrix by matrix. */
#ifndef NIB_WEIGHTS_DEVICE_STORE_H
#define NIB_WEIGHTS_DEVICE_STORE_H

#include "base/log.h"
#include "base/thread.h"
#include "memory/watch.h"
#include "weights/device_blocks.h"

typedef struct device_store device_store;

/* Lists the weights that a device of this kind reads, and their sizes. Opens no device and takes no device
 * memory. The layout is borrowed. */
nib_status device_store_open(const layout *l, const device_kind *kind, device_store **out, nib_error *err);
void device_store_close(device_store *s); /* NULL is fine; all lanes must be empty */

/* Bytes of what is always resident. */
uint64_t device_store_fixed(const device_store *s);
/* Bytes of the matrices that only block b reads; of block 0: of the tables that the device can look up. */
uint64_t device_store_block(const device_store *s, int b);
/* The bytes of these matrices, [*n], for all blocks from 1 on, block by block; a block's in the order of
 * their use. Owned by the store. */
const uint64_t *device_store_matrices(const device_store *s, int *n);
/* The number of the first of block b's; of n_block: the number of all. */
int device_store_first_matrix(const device_store *s, int b);
/* Bytes of a slot if these matrices come; comes NULL: all. */
uint64_t device_store_slot(const device_store *s, const bool *comes);

/* A store with one slot of host memory for a layer, which is then read once for consecutive visits, even if
 * the pager's ring holds only a part of it. For passes whose visits are not merged because they share one KV
 * cache (exec/step.h). Other blocks, and vectors, stay the pager's. */
nib_status device_store_open_layer(const layout *l, ledger *to, int owner, device_store **out,
                                   nib_error *err);
uint64_t device_store_layer_bytes(const layout *l); /* bytes that it takes at most; pure */

typedef struct device_store_setup {
    device *device; /* of the kind given at opening */
    ledger *ledger;
    const logger *log;
    pool *threads;         /* which copy resident weights to page-locked memory; NULL: none do */
    int owner;             /* of the slots' bytes on the ledger: a NIB_OWNER_ */
    const bool *comes;     /* of device_store_matrices: those that come for each visit; NULL: all do */
    const bool *apart;     /* [n_block]: blocks of which generated rows do not read what comes; NULL: none */
    int n_kept;            /* of such blocks' stacks, so many experts are resident too */
    const int16_t *places; /* [n_block, n_place]: an expert's place among them, or negative */
    int n_place;
    bool tables;    /* the tables of block 0 are resident */
    bool host_too;  /* the host computes some blocks in some passes, so RAM keeps the tables */
    bool next_pass; /* after a pass, the blocks of the next one are copied ahead */
    int n_slot;     /* 1: blocks are not copied ahead; 0: DEVICE_BLOCKS */
} device_store_setup;

/* Takes the memory. NIB_E_NOFIT, NIB_E_NOMEM. */
nib_status device_store_reserve(device_store *s, const device_store_setup *how, nib_error *err);

/* Between two passes: blocks [n_block] whose generated rows the host computes from now on, so they are not
 * acquired here; NULL: none. Borrowed. prompts_next: the pass after the next one has prompt rows. */
void device_store_leave(device_store *s, const bool *on_host, bool prompts_next);
/* Whether the block of a visit is acquired here. */
bool device_store_has(const device_store *s, const visit *v);

/* Acquires the block of a visit; rest: the visits after it. *views: its weights in the device's memory, one
 * for each, valid after *mark until release. data NULL: the device does not read it, or it is a table that is
 * looked up by row on the host. mark->at 0: no wait is needed. */
nib_status device_store_acquire(device_store *s, pager *p, const visit *at, const visits *rest,
                                const view **views, device_mark *mark, nib_error *err);
/* To be called when the visit's kernels are queued in the compute lane, after the mark. */
nib_status device_store_release(device_store *s, const visit *at, const visits *rest, nib_error *err);
/* To be called when the pass has ended (also early) and the compute lane is empty. */
void device_store_end(device_store *s);

/* Whether matrices of block b come for each visit. */
bool device_store_comes(const device_store *s, int b);
int device_store_n_coming(const device_store *s); /* number of such blocks */
/* Whether the resident weights of block b are loaded: its first visit was acquired. */
bool device_store_is_loaded(const device_store *s, int b);
/* Whether the tables of block 0 are on the device, so that it looks their rows up. */
bool device_store_has_tables(const device_store *s);
/* The views of a block that is loaded and of which nothing comes, or that is acquired. */
const view *device_store_views(const device_store *s, int b);
/* Of a block of which generated rows do not read what comes: the resident experts of stack w, one after the
 * other, on the device, and the places of all experts among them there. NULL: none is resident. */
const void *device_store_experts(const device_store *s, int b, int w);
const int16_t *device_store_places(const device_store *s, int b);
const int16_t *device_store_places_host(const device_store *s, int b); /* the same for the host */
/* Bytes of an expert's matrices in block b; *n: the number of experts, 0: it has none. And more bytes that
 * resident ones take at most, however many they are. */
uint64_t device_store_expert(const device_store *s, int b, int *n, uint64_t *more);
/* Whether matrix i of device_store_matrices is a stack of experts. */
bool device_store_is_stack(const device_store *s, int i);
/* Memory of a block's resident matrices; *bytes 0: it has none. */
const void *device_store_memory(const device_store *s, int b, uint64_t *bytes);
/* Whether a matrix of block b, which owns it, is resident and RAM need not hold it. */
bool device_store_keeps(const device_store *s, int b, int w);
/* [all pages]: all matrices of the page are kept. Valid after reserve. */
const bool *device_store_copied(const device_store *s);

/* Between two passes, at most ten times a second, asks for the device's free memory, and moves resident
 * blocks out of it or back. Fails if there is no memory for the slots after all blocks were moved. */
nib_status device_store_look(device_store *s, nib_error *err);
/* Number of times that weights were loaded to other addresses, so launches with the earlier ones are void. */
uint64_t device_store_changes(const device_store *s);

/* watch: told of each copy and of each arranging; NULL: nobody. */
void device_store_set_watch(device_store *s, const device_watch *watch);

#endif
