/* place.c - see place.h. */
#include "base/place.h"

const int place_of_kind[NIB_N_TIER] = {
    [NIB_TIER_RAM] = PLACE_RAM, [NIB_TIER_DISK] = PLACE_DISK, [NIB_TIER_VRAM] = PLACE_GPU};
const char *const place_names[PLACES] = {[PLACE_RAM] = "RAM", [PLACE_DISK] = "disk", [PLACE_GPU] = "VRAM"};

memory_places places_of(const uint64_t caps[NIB_N_TIER]) {
    return (memory_places){{
        [PLACE_RAM] = {.kind = NIB_TIER_RAM, .capacity = caps[NIB_TIER_RAM]},
        [PLACE_DISK] = {.kind = NIB_TIER_DISK, .capacity = caps[NIB_TIER_DISK]},
        [PLACE_GPU] = {.kind = NIB_TIER_VRAM, .index = PLACE_GPU_INDEX, .capacity = caps[NIB_TIER_VRAM]},
    }};
}
