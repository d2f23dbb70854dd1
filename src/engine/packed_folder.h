/* packed_folder.h - the files that an engine writes: whether it may, and their folders. Those of weights are
 * packed files (weights/packed_file.h). */
#ifndef NIB_ENGINE_PACKED_FOLDER_H
#define NIB_ENGINE_PACKED_FOLDER_H

#include "engine/core.h"

/* The folder of that name under --scratch or, without one, in the user's cache; NULL: no memory. Caller frees
 * with mem_free. */
char *engine_disk_folder(const engine_core *e, const char *name);
/* Whether files of the disk tier were asked for: a scratch folder, or a cap on the disk. */
bool engine_has_disk(const engine_core *e);
/* The folder of packed files; NULL: none. Caller frees with mem_free. */
char *engine_packed_folder(const engine_core *e);
/* Whether a packed file may be written: disk is allowed, or it was requested. */
bool engine_packed_may_write(const engine_core *e);
/* Whether pages would be streamed from a packed file: an existing one, or one that may be written. */
bool engine_packed_expected(const engine_core *e);

#endif
