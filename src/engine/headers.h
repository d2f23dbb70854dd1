/* headers.h - a core from headers alone: container and model without the vocabulary, its predicted memory,
 * and sizes, in a ledger without a RAM cap. */
#ifndef NIB_ENGINE_HEADERS_H
#define NIB_ENGINE_HEADERS_H

#include "engine/core.h"

/* Opens the core. internal: its plan and formats apply; NULL: none. The caller calls core_close in any case.
 */
nib_status headers_open(engine_core *e, const char *name, const nib_engine_options *options,
                        const engine_internal *internal, nib_error *err);

#endif
