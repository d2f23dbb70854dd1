/* places.h - where the ranks of a pipeline compute: the list that a user gives. */
#ifndef NIB_CLUSTER_PLACES_H
#define NIB_CLUSTER_PLACES_H

#include "base/status.h"

enum { CLUSTER_MAX_RANK = 256 };

typedef struct cluster_place {
    char backend[16]; /* "cuda" for a GPU, else a back end's name */
    int gpu;          /* its number; -1: none */
    uint64_t cap;     /* of its memory; NIB_AUTO: that of the options */
} cluster_place;

typedef struct cluster_places {
    int n;
    cluster_place place[CLUSTER_MAX_RANK];
} cluster_places;

/* Reads "cpu,cpu", "0,1", or with caps "0:16G,1:8G". All ranks have one back end, because answers depend on
 * it. NIB_E_USAGE names the part that is wrong. */
nib_status cluster_places_parse(const char *text, cluster_places *out, nib_error *err);
/* Replaces the options' cap on the memory of the place's device by that of the place, if it has one. */
void cluster_place_cap(const cluster_place *place, nib_engine_options *o);

#endif
