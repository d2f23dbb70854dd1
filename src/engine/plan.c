/* plan.c - nib_plan: a plan from headers and profiles, without an engine. */
#include "base/mem.h"
#include "engine/headers.h"
#include "engine/planning.h"

nib_status nib_plan(const char *name, const nib_engine_options *options, const nib_plan_options *how,
                    char **json, nib_error *err) {
    static const nib_plan_options defaults = {0};
    engine_core e;
    plan p = {0};
    nib_engine_options o;
    nib_engine_options_init(&o);
    o = options ? *options : o;
    o.vocab_only = false;
    nib_status status = headers_open(&e, name, &o, NULL, err);
    if (status == NIB_OK)
        status = planning_make(&e, how ? how : &defaults, &p, err);
    if (status == NIB_OK)
        status = cancel_check(&e.cancel, err);
    core_close(&e);
    if (status == NIB_OK)
        status = plan_print(&p, json, err);
    plan_clear(&p);
    return status;
}
