/* engine.c - see engine.h. */
#include "engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

nib_engine_options engine_usual(void) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    o.n_thread = 2;
    o.n_batch = 16;
    o.packed = NIB_PACKED_OFF;
    return o;
}

nib_engine *engine_must_open(const char *path, const nib_engine_options *o, const plan *p) {
    nib_engine *e = NULL;
    nib_error err = {0};
    if (engine_open(path, o, &(engine_want){.plan = p}, &e, &err))
        fail_msg("%s: %s", path, err.message);
    return e;
}

nib_session *session_must_open(nib_engine *e) {
    nib_session *s = NULL;
    nib_error err = {0};
    if (nib_session_open(e, NULL, &s, &err))
        fail_msg("%s", err.message);
    return s;
}
