/* idle.c - see idle.h. */
#include "engine/idle.h"

#include "engine/residual/residual.h"
#include "engine/sizes.h"

nib_status idle_residuals(engine_core *e, bool plans, uint64_t *bytes, nib_error *err) {
    settings *s = &e->resolved;
    uint64_t in_ram, on_disk;
    bool may_stream;
    if (bytes)
        *bytes = 0;
    if (!residuals_requested(e))
        return NIB_OK;
    NIB_TRY(residuals_size(e, &in_ram, &on_disk, err));
    NIB_TRY(residuals_may_stream(e, &may_stream, err));
    s->residuals_on_disk = may_stream && !sizes_hold_all(e, in_ram);
    s->residuals_in_ram = !s->residuals_on_disk;
    /* a GPU's weights come through RAM, so streaming evicts nothing there */
    if (s->residuals_in_ram && !plans && e->kind->tier == NIB_TIER_RAM)
        s->stream = false;
    if (bytes)
        *bytes = s->residuals_on_disk ? on_disk : in_ram;
    return NIB_OK;
}
