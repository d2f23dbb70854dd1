/* rates.c - see rates.h. */
#include "engine/rates.h"

#include "base/mem.h"
#include "profile/hardware.h"

void rates_here(const logger *log, int n_thread, uint64_t page, uint64_t part, plan_rates *out) {
    machine here;
    hardware measured;
    nib_error why;
    machine_detect(&here);
    char *path = hardware_path(&here);
    const nib_status status = path ? hardware_load(path, &here, &measured, &why) : NIB_E_NOTFOUND;
    if (status != NIB_OK && status != NIB_E_NOTFOUND)
        log_line(log, "hardware profile: %s", why.message);
    plan_rates_of(status == NIB_OK ? &measured : NULL, &here, n_thread, page, part, out);
    mem_free(path);
}

void engine_rates(const engine_core *e, uint64_t page, uint64_t part, plan_rates *out) {
    rates_here(&e->log, e->resolved.n_thread, page, part, out);
}
