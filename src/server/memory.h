/* memory.h - planned and actual memory as JSON. */
#ifndef NIB_SERVER_MEMORY_H
#define NIB_SERVER_MEMORY_H

#include "nib.h"

#include <jansson.h>

extern const char *const memory_owner_names[NIB_N_OWNER], *const memory_tier_names[NIB_N_TIER];

/* {"tiers": {"ram": {"cap", "planned", "peak"}, ...}, "rss_peak", "owners": {"weights", ...}, "kv":
 * [{"layers", "format"}]}, in bytes; a missing cap is null, and "kv" of an engine without weights. NULL: out
 * of memory. */
json_t *memory_json(const nib_engine *engine);

#endif
