/* suggest_cap.c - finds the smallest cap on RAM that works, for an engine whose cap was refused. Uses the
 * headers only, which are read under the refused cap. */
#include "base/mem.h"
#include "base/num.h"
#include "engine/headers.h"
#include "engine/planning/planning.h"
#include "engine/suggest_cap.h"

#include <malloc.h>
#include <string.h>

/* Reserves under the cap for code pages that become resident before the answer, and during this search. */
#define CODE      (UINT64_C(3) << 19)
#define LAST_CODE (UINT64_C(384) << 10)

/* NIB_OK: by the estimate, the cap is large enough. */
static nib_status check_cap(const engine_core *e, const engine_internal *internal, nib_error *err) {
    planning f;
    plan p = {0};
    if (e->requested.planning && !internal->plan) {
        const nib_status status = planning_make(e, e->requested.planning, &p, err);
        plan_clear(&p);
        return status;
    }
    nib_status status = planning_gather(&f, e, &(planning_of){.internal = internal}, err);
    if (status == NIB_OK)
        status = plan_check_cap(&f.q, err);
    planning_close(&f);
    return status;
}

/* Checks the cap for opening the vocabulary only; using it may take more. */
static nib_status check_vocabulary(const engine_core *e, nib_error *err) {
    char cap[32], min[32];
    const uint64_t need = ledger_promised(e->ledger, PLACE_RAM) + LEDGER_RUNTIME_MARGIN + e->text.need.peak;
    if (need <= e->resolved.cap[NIB_TIER_RAM])
        return NIB_OK;
    return nib_fail(err, NIB_E_NOFIT,
                    "RAM: the cap of %s is too small; %s is the smallest that holds the vocabulary",
                    num_format_size(core_cap_of(e, e->resolved.cap[NIB_TIER_RAM]), cap),
                    num_format_cap(core_cap_of(e, need), min));
}

static uint64_t cap_of(const nib_engine_options *o, const plan *p) {
    return NUM_MIN(o ? o->ram : NIB_AUTO, p ? p->cap[NIB_TIER_RAM] : NIB_AUTO);
}

/* The caller's cap that leaves an engine `ram` bytes. */
static uint64_t named_by(const nib_engine_options *o, uint64_t ram) {
    return o && o->cap_of ? o->cap_of(o->user, ram) : ram;
}

static nib_status try_cap(const char *name, const nib_engine_options *options,
                          const engine_internal *internal, nib_error *err) {
    nib_engine_options o;
    engine_core e;
    nib_engine_options_init(&o);
    o = options ? *options : o;
    o.log = NULL; /* the same lines have been logged already */
    nib_status status = headers_open(&e, name, &o, internal, err);
    if (status == NIB_OK)
        status = e.m ? check_cap(&e, internal, err) : check_vocabulary(&e, err);
    core_close(&e);
    return status;
}

/* The estimate was slightly too low, because the refused cap passed it: suggests a larger cap. */
static nib_status name_more(const nib_engine_options *o, uint64_t cap, nib_error *err) {
    char size[32], more[32];
    if (strncmp(err->message, "RAM:", 4))
        return NIB_E_NOFIT;
    return nib_fail(err, NIB_E_NOFIT, "RAM: the cap of %s is too small; %s is the smallest that works",
                    num_format_size(named_by(o, cap), size), num_format_cap(named_by(o, cap + CODE), more));
}

/* Bytes that the search itself may take. A cap below the process's current size is exceeded in any case. */
static uint64_t bytes_under(uint64_t cap, uint64_t start) {
    const uint64_t now = ledger_process_usage().now, grown = now > start ? now - start : 0;
    const uint64_t code = LAST_CODE + (CODE > grown ? CODE - grown : 0);
    if (cap <= now)
        return UINT64_MAX;
    return cap - now > code ? cap - now - code : 0;
}

nib_status engine_suggest_cap(const char *name, const nib_engine_options *options,
                              const engine_internal *internal, uint64_t start, nib_error *err) {
    const uint64_t cap = cap_of(options, internal->plan);
    char size[32];
    nib_error why;
    mem_bound b;
    if (cap == NIB_AUTO || !err)
        return NIB_E_NOFIT;
    malloc_trim(0); /* returns the memory of the closed engine */
    mem_bound_set(&b, bytes_under(cap, start));
    const nib_status status = try_cap(name, options, internal, &why);
    mem_bound_end(&b);
    if (status == NIB_OK)
        return name_more(options, cap, err);
    if (status == NIB_E_NOFIT)
        *err = why;
    else if (b.refused)
        return nib_fail(err, NIB_E_NOFIT,
                        "RAM: the cap of %s does not hold the process and the model's headers; 'nibble plan' "
                        "shows the smallest cap that works",
                        num_format_size(named_by(options, cap), size));
    return NIB_E_NOFIT;
}
