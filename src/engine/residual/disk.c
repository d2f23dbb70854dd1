/* disk.c - see disk.h. */
#include "engine/residual/disk.h"

#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static char *own_path(const char *folder) {
    static atomic_int made;
    char name[64];
    snprintf(name, sizeof name, "residuals-%ld-%d.tmp", (long)getpid(), atomic_fetch_add(&made, 1));
    return path_join(folder, name);
}

nib_status residual_disk_open(residual_disk *d, const engine_core *e, uint64_t n_byte, uint64_t largest,
                              nib_error *err) {
    NIB_TRY(ledger_charge(e->ledger, PLACE_DISK, NIB_OWNER_WEIGHTS, n_byte, err));
    d->ledger = e->ledger;
    d->charged = n_byte;
    d->path = own_path(e->requested.scratch);
    if (!d->path)
        return nib_fail_nomem(err, 64, "a file of residuals");
    NIB_TRY(memory_region_open(&d->staging, device_host(), e->ledger, NIB_OWNER_STAGING, largest, false,
                               "residuals of one matrix", err));
    NIB_TRY(path_make_folders(d->path, err));
    return file_writer_open(d->path, &d->out, err);
}

nib_status residual_disk_add(residual_disk *d, residual *r, uint64_t *at, nib_error *err) {
    const uint64_t n_byte = (uint64_t)r->step * (uint64_t)r->k;
    *at = d->written;
    d->written += n_byte;
    NIB_TRY(file_writer_write(d->out, r->rows, (size_t)n_byte, err));
    r->rows = NULL;
    return NIB_OK;
}

static nib_status open_readers(residual_disk *d, int n_thread, int64_t n_channel, int64_t k, nib_error *err) {
    const uint64_t each = residual_reader_bytes(n_channel, k);
    d->readers = mem_calloc((size_t)n_thread, sizeof(residual_reader *));
    if (!d->readers)
        return nib_fail_nomem(err, (uint64_t)n_thread * sizeof(residual_reader *), "readers of residuals");
    NIB_TRY(memory_region_open(&d->gather, device_host(), d->ledger, NIB_OWNER_STAGING,
                               (uint64_t)n_thread * each, false, "channels of residuals", err));
    for (; d->n_reader < n_thread; d->n_reader++)
        NIB_TRY(residual_reader_open(d->file, (uint8_t *)d->gather.at + (uint64_t)d->n_reader * each,
                                     n_channel, k, &d->readers[d->n_reader], err));
    return NIB_OK;
}

nib_status residual_disk_finish(residual_disk *d, residual_use *use, int n_thread, int64_t n_channel,
                                int64_t k, nib_error *err) {
    file_writer *out = d->out;
    d->out = NULL;
    memory_region_close(&d->staging);
    NIB_TRY(file_writer_commit(out, err));
    const nib_status status = file_open(d->path, 0, &d->file, err);
    (void)unlink(d->path);
    NIB_TRY(status);
    NIB_TRY(open_readers(d, n_thread, n_channel, k, err));
    use->readers = d->readers;
    return NIB_OK;
}

nib_status residual_disk_read(residual_disk *d, file *f, ledger *l, residual_use *use, int n_thread,
                              int64_t n_channel, int64_t k, nib_error *err) {
    d->ledger = l;
    d->file = f;
    NIB_TRY(open_readers(d, n_thread, n_channel, k, err));
    use->readers = d->readers;
    return NIB_OK;
}

void residual_disk_close(residual_disk *d) {
    file_writer_abort(d->out);
    for (int i = 0; i < d->n_reader; i++)
        residual_reader_close(d->readers[i]);
    mem_free(d->readers);
    if (d->file)
        file_close(d->file);
    memory_region_close(&d->staging);
    memory_region_close(&d->gather);
    if (d->charged)
        ledger_release(d->ledger, PLACE_DISK, NIB_OWNER_WEIGHTS, d->charged);
    mem_free(d->path);
    memset(d, 0, sizeof *d);
}
