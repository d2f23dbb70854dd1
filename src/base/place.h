/* place.h - the table of places: the memories in which bytes have their homes. A place is RAM, a disk or a
 * GPU; a tier of the public interface (NIB_TIER_) is a kind of place. The ledger counts by place, devices are
 * opened from the table, and pages of weights have a home in it. A value without pointers. */
#ifndef NIB_BASE_PLACE_H
#define NIB_BASE_PLACE_H

#include "base/status.h"

/* Every table has the same first places, so these are constants. A device knows its own (device.place). */
enum { PLACE_RAM, PLACE_DISK, PLACE_GPU, PLACES };
/* The number of the GPU that an engine uses if no other is named: the first that the CUDA runtime shows.
 * CUDA_VISIBLE_DEVICES selects it. */
enum { PLACE_GPU_INDEX = 0 };

typedef struct memory_place {
    int kind;          /* NIB_TIER_ */
    int index;         /* among the places of this kind in the machine: the number of a GPU */
    uint64_t capacity; /* bytes that may be used; NIB_AUTO: no cap */
} memory_place;

typedef struct memory_places {
    memory_place of[PLACES];
} memory_places;

/* The table for caps in bytes (NIB_AUTO: none). */
memory_places places_of(const uint64_t caps[NIB_N_TIER]);
extern const int place_of_kind[NIB_N_TIER];   /* the table's first place of a kind */
extern const char *const place_names[PLACES]; /* for messages: "RAM" */

#endif
