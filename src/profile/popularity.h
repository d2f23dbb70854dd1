/* popularity.h - how often the router of each layer chooses each expert: measured once for a model's weights
 * (measure/measure.h) and stored beside the layers' importance; or counted in runs (engine/popular.h). When a
 * model is opened that does not fit, the most popular experts of each layer are in memory first
 * (engine/weights.c). */
#ifndef NIB_PROFILE_POPULARITY_H
#define NIB_PROFILE_POPULARITY_H

#include "base/status.h"

#include <stdint.h>

typedef struct popularity {
    char content[40], prompts[40];
    int n_layer, n_expert;
    int64_t n_token;
    double *share; /* [n_layer, n_expert]: of the tokens that chose it; a layer without experts has zeros */
} popularity;

void popularity_clear(popularity *p); /* zeroed is fine */
/* All shares are 0. */
nib_status popularity_begin(popularity *p, int n_layer, int n_expert, nib_error *err);

/* $XDG_CACHE_HOME/nibble/importance/<content>-<prompts>-experts.json; caller frees. NULL: no memory. */
char *popularity_path(const char *content, const char *prompts);
char *popularity_find(const char *content); /* as importance_find */
/* The file of what runs have counted, in the same folder; caller frees. NULL: no memory. */
char *popularity_runs_path(const char *content);
/* Adds what a run has counted: both weigh by their tokens, but the earlier runs by POPULARITY_OLD at most, so
 * old ones are forgotten. Layers for which `run` has only zeros keep their shares. */
enum { POPULARITY_OLD = 4096 };
void popularity_add(popularity *p, const popularity *run);
nib_status popularity_print(const popularity *p, char **text, nib_error *err); /* caller frees: mem_free */
/* As importance_load. */
nib_status popularity_load(const char *path, const char *content, popularity *out, nib_error *err);
nib_status popularity_save(const char *path, const popularity *p, nib_error *err);

#endif
