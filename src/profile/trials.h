/* trials.h - what plans of many requests have reached in trial runs: a file for each model, machine, caps and
 * class of workload. */
#ifndef NIB_PROFILE_TRIALS_H
#define NIB_PROFILE_TRIALS_H

#include "base/status.h"

#include <jansson.h>

/* A plan, as far as it decides how requests are computed. */
typedef struct trial {
    int64_t n_sequence, kv_on_disk;
    double tok_s; /* measured */
} trial;

enum { TRIALS_MAX = 16 };

typedef struct trials {
    trial list[TRIALS_MAX];
    int n;
} trials;

/* The file with this key, whose reference it takes; caller frees. NULL: no memory, or no cache folder. */
char *trials_path(json_t *key);
/* Without a file, or with one that is damaged, there are none. */
void trials_load(const char *path, trials *out);
/* Measured tokens a second of this plan; 0: none. */
double trials_find(const trials *t, int64_t n_sequence, int64_t kv_on_disk);
/* Adds one, or replaces that of the same plan, or the oldest. */
nib_status trials_keep(const char *path, const trial *t, nib_error *err);

#endif
