/* disk.h - residuals whose codes are in a file of their own or under --scratch, used when RAM cannot hold
 * them beside all weights (engine/idle.h). Their scales stay in RAM, and the channels of a row are read while
 * its products are computed (exec/residual_reader.h). The file is unlinked once it is complete, so nothing is
 * left of it. */
#ifndef NIB_ENGINE_RESIDUAL_DISK_H
#define NIB_ENGINE_RESIDUAL_DISK_H

#include "base/file.h"
#include "engine/core.h"

typedef struct residual_disk {
    file *file; /* the complete file, open for reading */
    file_writer *out;
    char *path;
    ledger *ledger;
    uint64_t charged;          /* bytes of disk */
    uint64_t written;          /* bytes so far */
    memory_region staging;     /* codes of one matrix while residuals are made */
    memory_region gather;      /* destination of the channels that threads read */
    residual_reader **readers; /* [n_reader], NULL: not opened */
    int n_reader;
} residual_disk;

/* Creates the file before the first residual is made, and charges n_byte to the disk. largest: bytes of the
 * largest matrix's residual. */
nib_status residual_disk_open(residual_disk *d, const engine_core *e, uint64_t n_byte, uint64_t largest,
                              nib_error *err);
/* Writes r's codes, which are in d->staging, and removes them from r. *at: their offset in the file. */
nib_status residual_disk_add(residual_disk *d, residual *r, uint64_t *at, nib_error *err);
/* After all were written: frees the staging, opens the file, and opens a reader for each thread
 * (use->readers), for rows of k channels that choose at most n_channel. */
nib_status residual_disk_finish(residual_disk *d, residual_use *use, int n_thread, int64_t n_channel,
                                int64_t k, nib_error *err);
/* The same for codes in an existing file that is kept (file.h). Takes ownership of f, also after an
 * error. */
nib_status residual_disk_read(residual_disk *d, file *f, ledger *l, residual_use *use, int n_thread,
                              int64_t n_channel, int64_t k, nib_error *err);
void residual_disk_close(residual_disk *d); /* zeroed is fine */

#endif
