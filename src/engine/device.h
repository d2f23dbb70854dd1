/* device.h - the weights on a device whose kernels cannot read host memory: what is asked of the back end,
 * decided (plan/homes.h) and opened (weights/device_store.h). */
#ifndef NIB_ENGINE_DEVICE_H
#define NIB_ENGINE_DEVICE_H

#include "engine/core.h"

typedef struct engine_device {
    homes_question share; /* cleared: the whole device is free, as the check back end's */
    homes_split split;
    bool *apart;     /* [n_block]: device_store_setup.apart, and its places; NULL: the split has none */
    int16_t *places; /* [n_block, n_place] */
    int n_place;
    device_store *store; /* NULL: the back end computes in host memory */
} engine_device;

/* Gathers the facts for homes_split_make, with `cap` bytes of the device's memory (NIB_AUTO: no cap). open:
 * the open back end; NULL: one that is not open, with this setup. Errors as backend_kind.share. */
nib_status engine_device_ask(const engine_core *e, backend *open, const backend_setup *setup,
                             const backend_rows *rows, uint64_t cap, homes_question *out, nib_error *err);

/* Decides for an open back end, beside the memory for these rows, and gives it the decision and the store
 * (backend.share, split, kept, store), whose memory is not taken yet. The message of NIB_E_NOFIT has the
 * memory that is needed at least. */
nib_status engine_device_decide(const engine_core *e, backend *by, const backend_rows *rows, engine_device *d,
                                nib_error *err);
/* Takes the store's memory, after the back end has taken its own. */
nib_status engine_device_take(const engine_core *e, const backend *by, engine_device *d, nib_error *err);
void engine_device_close(engine_device *d); /* before the back end is closed; zeroed is fine */

#endif
