/* refuse.h - which cap on RAM would do, for an engine that was refused one. */
#ifndef NIB_ENGINE_REFUSE_H
#define NIB_ENGINE_REFUSE_H

#include "engine/parts.h"

/* NIB_E_NOFIT with the smallest cap on RAM that works, where that is known; *err as it was where the cap is
 * not what refused it. start: bytes that the process had before it was opened, which is closed again. */
nib_status engine_refuse(const char *model, const nib_engine_options *options, const engine_want *want,
                         uint64_t start, nib_error *err);

#endif
