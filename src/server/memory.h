/* memory.h - planned and actual memory as JSON. */
#ifndef NIB_SERVER_MEMORY_H
#define NIB_SERVER_MEMORY_H

#include "nib.h"

#include <jansson.h>

extern const char *const memory_owner_names[NIB_N_OWNER], *const memory_tier_names[NIB_N_TIER];

/* An engine, and a draft model beside it under the same caps. */
typedef struct memory_use {
    const nib_engine *engine, *draft; /* draft NULL: none */
    uint64_t
        beside; /* of the cap on RAM: what others may still make resident, which the engine does not have */
} memory_use;

/* As nib_engine_memory, with the caps and planned bytes of both and of others. `owner` is the engine's: what
 * the draft model has is a part of its runtime. */
void memory_read(memory_use of, nib_memory *out);
/* {"tiers": {"ram": {"cap", "planned", "peak"}, ...}, "rss_peak", "owners": {"weights", ...}, "draft":
 * {"weights", ...}, "kv": [{"layers", "format"}]}, in bytes; a missing cap is null, and so are "draft"
 * without a draft model and "kv" of an engine without weights. NULL: out of memory. */
json_t *memory_json(memory_use of);
/* {"weights": n, ...}: bytes by owner, without those of the runtime, of which engines have a part each. */
json_t *memory_owners(const nib_memory *m);

#endif
