/* alloc_limit.h - limits heap memory around code whose memory use is unknown in advance, to the bytes that
 * are free under the cap on RAM. */
#ifndef NIB_ENGINE_ALLOC_LIMIT_H
#define NIB_ENGINE_ALLOC_LIMIT_H

#include "base/mem.h"
#include "memory/ledger.h"

/* Begins the limit, on the calling thread. */
void engine_alloc_limit_set(const ledger *l, mem_bound *b);
/* Converts a refused allocation to NIB_E_NOFIT, which names `what`; otherwise returns the status unchanged.
 */
nib_status engine_alloc_limit_end(const ledger *l, mem_bound *b, const char *what, nib_status status,
                                  nib_error *err);

#endif
