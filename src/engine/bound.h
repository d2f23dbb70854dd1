/* bound.h - around what takes memory before it is known how much: no more than is free under the cap on RAM.
 */
#ifndef NIB_ENGINE_BOUND_H
#define NIB_ENGINE_BOUND_H

#include "base/mem.h"
#include "tiers/ledger.h"

void engine_bound_set(const ledger *l, mem_bound *b);
/* Turns a refusal into NIB_E_NOFIT, which says `what` was too large; gives the status otherwise. */
nib_status engine_bound_end(const ledger *l, mem_bound *b, const char *what, nib_status status,
                            nib_error *err);

#endif
