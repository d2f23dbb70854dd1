/* plan_names.h - names of tiers and owners in a plan's JSON, for reading and writing. */
#ifndef NIB_PLAN_NAMES_H
#define NIB_PLAN_NAMES_H

#include "nib.h"

extern const char *const plan_tier_names[NIB_N_TIER + 1];   /* "ram", ...; NULL after the last */
extern const char *const plan_owner_names[NIB_N_OWNER + 1]; /* "weights", ... */

#endif
