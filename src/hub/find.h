/* find.h - resolves the MODEL argument to a path: a file, a folder, or the name of a stored model. */
#ifndef NIB_HUB_FIND_H
#define NIB_HUB_FIND_H

#include "base/status.h"

/* `name` as a path when there is such a file or folder, else what the store (hub/store.h) has by that name.
 * *path: caller frees with mem_free. NIB_E_NOTFOUND says where it looked, and which name may be meant. */
nib_status model_find(const char *name, char **path, nib_error *err);

#endif
