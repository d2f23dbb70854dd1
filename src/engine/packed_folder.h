/* packed_folder.h - the packed file of an engine (weights/packed_file.h): whether it may be used or written,
 * and its folder. */
#ifndef NIB_ENGINE_PACKED_FOLDER_H
#define NIB_ENGINE_PACKED_FOLDER_H

#include "engine/core.h"

/* The folder of packed files; NULL: none. Caller frees with mem_free. */
char *engine_packed_folder(const engine_core *e);
/* Whether a packed file may be written: disk is allowed, or it was requested. */
bool engine_packed_may_write(const engine_core *e);
/* Whether pages would be streamed from a packed file: an existing one, or one that may be written. */
bool engine_packed_expected(const engine_core *e);

#endif
