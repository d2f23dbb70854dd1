/* find.h - from what a person types to a path: a file, a folder, or a name in the models folder. */
#ifndef NIB_MODEL_FIND_H
#define NIB_MODEL_FIND_H

#include "base/status.h"

/* $NIBBLE_MODELS, else $XDG_DATA_HOME/nibble/models. Caller frees with mem_free; NULL: out of memory. */
char *model_folder(void);

/* `name` as a path when there is such a file or folder, else NAME, NAME.gguf in the models folder (letter
 * case ignored). *path: caller frees with mem_free. NIB_E_NOTFOUND says where it looked. */
nib_status model_find(const char *name, char **path, nib_error *err);

#endif
