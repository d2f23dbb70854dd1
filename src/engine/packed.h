/* packed.h - the packed file of an engine (tiers/packed.h): whether it may be used or written, and its
 * folder. */
#ifndef NIB_ENGINE_PACKED_H
#define NIB_ENGINE_PACKED_H

#include "engine/core.h"

/* Where packed weights are kept; NULL: nowhere. Caller frees with mem_free. */
char *engine_packed_folder(const engine_core *e);
/* One is written when disk may be used, or that is asked for. */
bool engine_packed_may_write(const engine_core *e);
/* Whether what is streamed would come from a packed file: one that is there, or one that may be written. */
bool engine_packed_expected(const engine_core *e);

#endif
