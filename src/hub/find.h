/* find.h - resolves the MODEL argument to a path: a file, a folder, or the name of a stored model. */
#ifndef NIB_HUB_FIND_H
#define NIB_HUB_FIND_H

#include "base/status.h"

/* `name` as a path if that file or folder exists, else the stored model of that name (hub/store.h). *path:
 * caller frees with mem_free. NIB_E_NOTFOUND lists the searched places and a similar name. */
nib_status model_find(const char *name, char **path, nib_error *err);

#endif
