/* suggest_cap.h - the smallest cap on RAM that works, for an engine whose cap was refused. */
#ifndef NIB_ENGINE_SUGGEST_CAP_H
#define NIB_ENGINE_SUGGEST_CAP_H

#include "engine/parts.h"

/* Returns NIB_E_NOFIT and sets *err to a message with the smallest cap on RAM that works, if one is found.
 * *err is unchanged if the cap is not the reason. start: resident bytes of the process before the refused
 * engine was opened; that engine is closed. */
nib_status engine_suggest_cap(const char *model, const nib_engine_options *options,
                              const engine_internal *internal, uint64_t start, nib_error *err);

#endif
