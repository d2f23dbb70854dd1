/* backend.c - look-ups in the list of back ends. */
#include "exec/backend.h"

#include "base/num.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

#define BACKEND_KIND(name) &backend_##name,
static const backend_kind *const kinds[] = {BACKENDS(BACKEND_KIND)};
#undef BACKEND_KIND

nib_status backend_find(const char *name, const backend_kind **out, nib_error *err) {
    char known[128] = "";
    size_t at = 0;
    for (size_t i = 0; i < NUM_COUNT(kinds); i++) {
        if (!name || !strcmp(name, kinds[i]->name)) {
            *out = kinds[i];
            return NIB_OK;
        }
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", kinds[i]->name);
    }
    return nib_fail(err, NIB_E_DEVICE, "backend '%s' is not available; this build has: %s", name, known);
}

const backend_kind *backend_of_tier(int tier) {
    for (size_t i = 0; i < NUM_COUNT(kinds); i++)
        if (kinds[i]->tier == tier)
            return kinds[i];
    return NULL;
}
