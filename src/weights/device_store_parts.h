/* device_store_parts.h - shared by the files of the store of a device's weights (device_store.h) only. */
#ifndef NIB_WEIGHTS_DEVICE_STORE_PARTS_H
#define NIB_WEIGHTS_DEVICE_STORE_PARTS_H

#include "weights/device_store.h"

/* A weight, at the block that owns it. */
typedef struct store_weight {
    const weight *of;
    uint64_t at;      /* byte offset in the block's region or slot, or among what is always resident */
    uint64_t kept_at; /* of a stack that comes: where its resident experts are in the block's region */
    int reader;       /* 1 + the only block that reads it; 0: no block, -1: several blocks */
    bool placed;
    bool exclusive; /* a matrix that one block reads: in the region or a slot of that block */
    bool comes;     /* with `exclusive`: in the slot */
    bool planned;   /* the same by the decision, while no other program needs the memory */
    bool arriving;  /* its copy is queued, what follows it is not */
    bool loaded;
} store_weight;

typedef struct store_block {
    int first;       /* of its exclusive matrices in device_store.matrices */
    uint64_t bytes;  /* of these; of block 0: of its tables */
    uint64_t coming; /* of these, the bytes that come for each visit */
    uint64_t kept;   /* bytes of experts of these that are resident too, and of their places */
    uint64_t places_at;
    memory_region memory; /* of the others, and of these experts */
    bool loaded;          /* its resident weights are */
    bool only_here;       /* RAM no longer has pages that the device keeps */
    uint64_t seen;        /* device_store.n_change when its views were made */
} store_block;

/* Page-locked host memory: resident pages of a block. */
typedef struct locked_pages {
    int block;
    void *at;
    uint64_t bytes;
} locked_pages;

/* Page-locked memory through which resident weights are copied, while a pass loads them. */
typedef struct store_staging {
    memory_region memory; /* two halves; at NULL: none */
    bool pinned, failed;
    int next; /* half */
    device_mark copied[2];
} store_staging;

/* Blocks that were moved out because another program needs the memory. */
typedef struct store_moved {
    int *blocks, n;    /* [n] in ascending order */
    double checked_at; /* seconds (time_now) */
    int n_calm;        /* consecutive checks that found enough free memory */
} store_moved;

struct device_store {
    const layout *layout;
    const device_kind *kind;
    device_store_setup setup;
    store_weight *weights;   /* [all weights], indexed as in page_layout.places */
    store_block *blocks;     /* [n_block + 1] */
    store_weight **matrices; /* [n_matrix]: device_store_matrices */
    uint64_t *sizes;         /* [n_matrix]: their bytes */
    int n_matrix;
    view *views;  /* [all weights] */
    bool *copied; /* [all pages]: device_store_copied */
    uint64_t fixed_bytes;
    memory_region fixed;
    device_blocks slots;
    uint64_t slot_bytes, planned_slot; /* now; by the decision */
    int n_coming;                      /* blocks of which something comes */
    const bool *on_host;               /* device_store_leave */
    bool prompts_next;
    bool layers_only;  /* the first and the last block, and what is always resident, stay the pager's */
    pager *pager;      /* source of the weights; NULL: nothing was loaded yet */
    uint64_t n_change; /* of the places of weights, counted from 1 */
    locked_pages *locked;
    int n_locked;
    bool lock_tried, lock_failed;
    store_moved moved;
    store_staging staging;
    uint64_t given_back; /* bytes of RAM whose pages the device has */
    device_watch watch;
};

/* ---- device_store.c ---- */
/* The entry of a weight, at its owner. */
store_weight *store_own(const device_store *s, int b, int w);
const weight *store_weight_of(const device_store *s, int b, int w);
/* Calls fn for each weight that the device reads in block b, in the order of the program, once for each
 * reader. */
typedef void (*store_weight_fn)(const device_store *s, int b, int w, void *user);
void store_each_read(const device_store *s, int b, store_weight_fn fn, void *user);
/* Calls fn for each table that the device can look up: those of block 0, which later blocks may look up too.
 */
void store_each_table(const device_store *s, store_weight_fn fn, void *user);
/* Bytes of the first n_row rows of a weight on the device. */
uint64_t store_bytes(const device_store *s, const weight *w, int64_t n_row);
/* Whether generated rows of block b do not read what comes. */
static inline bool store_is_apart(const device_store *s, int b) {
    return s->setup.apart && s->setup.apart[b];
}
/* Whether expert e of block b's stacks is resident too, and its place among those that are; negative: not. */
static inline int store_place(const device_store *s, int b, int64_t e) {
    return store_is_apart(s, b) && s->setup.n_kept > 0 ? s->setup.places[(int64_t)b * s->setup.n_place + e]
                                                       : -1;
}
/* The memory of a resident weight. */
uint8_t *store_at(const device_store *s, const store_weight *g);
/* Sets which matrices of block b come: all of them, or those of the decision. Its region and the slots have
 * no content afterwards. */
void store_divide(device_store *s, int b, bool all);
/* Bytes of a slot for any layer as a whole. */
uint64_t store_layer_slot(const device_store *s);
/* Takes the memory of block b's resident matrices. */
nib_status store_take(device_store *s, int b, nib_error *err);
/* Opens the slots, if some blocks come. */
nib_status store_open_slots(device_store *s, nib_error *err);
void store_close_slots(device_store *s);
/* Waits for all copies, and makes all slots empty. */
void store_empty_slots(device_store *s);

/* ---- device_store_staged.c ---- */
/* Whether there is memory for staged copies; takes it if the pages that were given back are as many. */
bool store_staging_open(device_store *s);
void store_staging_close(device_store *s);
/* Copies in the lane for weights; `from` is read when it returns. */
nib_status store_staging_copy(device_store *s, uint8_t *to, const uint8_t *from, uint64_t bytes,
                              nib_error *err);

/* ---- device_store_copy.c ---- */
/* Loads the resident weights of a visit's block; they are complete when it returns. */
nib_status store_load(device_store *s, const visit *at, const visits *rest, nib_error *err);
/* block_source.load. */
nib_status store_load_slot(void *user, device_block *to, const visit *v, const visits *rest, block_when when,
                           nib_error *err);
/* Copies the matrices of block b, which only the device has, back to RAM. */
nib_status store_return(device_store *s, int b, nib_error *err);
/* Tells the pager which pages block b's visits fetch: those with matrices that come. */
void store_tell_pager(const device_store *s, int b);
/* Page-locks, or unlocks, the pages in RAM that block b needs; b < 0: of all blocks. */
void store_lock(device_store *s, int b);
void store_unlock(device_store *s, int b);

#endif
