/* from_disk.h - layers whose keys and values are on a disk (state/kv_stage.h): their pages come to RAM before
 * attention, and pages that rows have filled go to the disk after it. A page that is incomplete is in RAM
 * (kv_table.tail). The calling thread acquires and releases; it waits for the disk only when the reads ahead
 * have not been fast enough. */
#ifndef NIB_EXEC_CPU_FROM_DISK_H
#define NIB_EXEC_CPU_FROM_DISK_H

#include "exec/backend.h"
#include "state/kv_stage.h"

typedef struct from_disk {
    kv_stage *stage; /* NULL: the keys and values of all layers are in RAM */
    bool now;        /* the pass has such layers; those of measurements do not */
    const segment *segments;
    int n_segment;
    kv_view *views;  /* [n_segment]: of the acquired part's layer, in its slot */
    uint8_t **pages; /* of all segments, one after the other; those of the acquired part are set */
    int64_t *first;  /* [n_segment]: where a segment's pages begin in `pages` */
    size_t max_views, max_first, max_pages;
} from_disk;

/* Bytes of the stage in RAM. 0: no layer is on a disk. */
uint64_t from_disk_bytes(const backend_setup *s);
nib_status from_disk_open(from_disk *k, const backend_setup *s, nib_error *err);
void from_disk_close(from_disk *k);

nib_status from_disk_begin(from_disk *k, const backend_pass *p, nib_error *err);
nib_status from_disk_end(from_disk *k, nib_error *err);

/* Whether an attention op's layer is one of them. */
bool from_disk_has(const from_disk *k, const op *o);
/* Makes the views those of a layer for row `row` of the pass and the ones after it, up to row *end. */
nib_status from_disk_acquire(from_disk *k, int layer, int64_t row, int64_t *end, nib_error *err);
/* To be called when the last of these rows has been attended to. */
nib_status from_disk_release(from_disk *k, nib_error *err);

#endif
