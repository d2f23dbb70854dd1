/* plan.c - nib_plan: a plan from headers and profiles, without an engine. */
#include "engine/headers.h"
#include "engine/planning/planning.h"
#include "tiers/device.h"

#include "nib_tools.h"
#include "profile/machine.h"

#include <stdio.h>

enum { FREE_SHARE = 8 /* an eighth of the system's free memory stays free */ };

/* Opens the device, so that the RAM which it takes is resident before the rest is counted. Without a device a
 * plan needs a cap. */
static nib_status look_for_device(const engine_core *e, nib_error *err) {
    device *gpu = NULL;
    nib_error why;
    if (e->kind->tier != NIB_TIER_VRAM)
        return NIB_OK;
    const nib_status status = device_open(NIB_TIER_VRAM, 0, &gpu, &why);
    device_close(gpu);
    if (status == NIB_OK || (status != NIB_E_NOMEM && e->resolved.cap[NIB_TIER_VRAM] != NIB_AUTO))
        return NIB_OK;
    return nib_fail(err, status == NIB_E_NOMEM ? status : NIB_E_DEVICE,
                    "backend '%s': %s; --vram SIZE plans for one of that size", e->kind->name, why.message);
}

static nib_status make(const char *name, const nib_engine_options *options, const nib_plan_options *how,
                       plan *p, nib_error *err) {
    static const nib_plan_options defaults = {0};
    engine_core e;
    nib_engine_options o;
    nib_engine_options_init(&o);
    o = options ? *options : o;
    o.vocab_only = false;
    nib_status status = headers_open(&e, name, &o, NULL, err);
    if (status == NIB_OK)
        status = look_for_device(&e, err);
    if (status == NIB_OK)
        status = planning_make(&e, how ? how : &defaults, p, err);
    if (status == NIB_OK)
        status = cancel_check(&e.cancel, err);
    core_close(&e);
    return status;
}

nib_status nib_plan(const char *name, const nib_engine_options *options, const nib_plan_options *how,
                    char **json, nib_error *err) {
    plan p = {0};
    nib_status status = make(name, options, how, &p, err);
    if (how && p.cap[NIB_TIER_RAM] != NIB_AUTO)
        p.cap[NIB_TIER_RAM] += how->ram_beside;
    if (status == NIB_OK)
        status = plan_print(&p, json, err);
    plan_clear(&p);
    return status;
}

nib_status nib_residuals_fit(const char *name, const nib_engine_options *options, const nib_plan_options *how,
                             bool *fit, nib_error *err) {
    plan p = {0};
    machine here;
    nib_error why;
    *fit = false;
    const nib_status status = make(name, options, how, &p, &why);
    machine_detect(&here);
    if (status == NIB_OK)
        *fit = p.predicted.disk_bytes == 0 &&
               (p.cap[NIB_TIER_RAM] != NIB_AUTO || !here.ram_free ||
                p.predicted.ram_peak <= here.ram_free - here.ram_free / FREE_SHARE);
    plan_clear(&p);
    if (status != NIB_OK && status != NIB_E_NOFIT) {
        if (err)
            *err = why;
        return status;
    }
    return NIB_OK;
}
