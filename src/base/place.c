/* place.c - see place.h. */
#include "base/place.h"

const char *const place_names[PLACES] = {[PLACE_RAM] = "RAM", [PLACE_DISK] = "disk", [PLACE_GPU] = "VRAM"};

memory_places places_of(const uint64_t caps[NIB_N_TIER]) {
    return (memory_places){{
        [PLACE_RAM] = {.kind = NIB_TIER_RAM, .capacity = caps[NIB_TIER_RAM]},
        [PLACE_DISK] = {.kind = NIB_TIER_DISK, .capacity = caps[NIB_TIER_DISK]},
        [PLACE_GPU] = {.kind = NIB_TIER_VRAM, .index = PLACE_GPU_INDEX, .capacity = caps[NIB_TIER_VRAM]},
    }};
}

int places_find(const memory_places *t, int kind) {
    int i = 0;
    while (i < PLACES - 1 && t->of[i].kind != kind)
        i++;
    return i;
}
