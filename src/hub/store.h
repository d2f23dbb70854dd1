/* store.h - the models stored on this machine, and their names: in the models folder, and in the cache of
 * Hugging Face's own programs, of which the main revision is used. Only names are read; no model is opened.
 */
#ifndef NIB_HUB_STORE_H
#define NIB_HUB_STORE_H

#include "base/status.h"

typedef struct stored {
    char *
        name; /* "smollm2.gguf", "folder", "user/repo/file.gguf"; in the cache also "user/repo" of a folder */
    char *path;
    bool cached; /* in the cache: other programs share it */
} stored;

typedef struct model_store {
    char *folder;   /* $NIBBLE_MODELS, else $XDG_DATA_HOME/nibble/models */
    char *cache;    /* $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub */
    stored *models; /* by name, those of the cache after the others */
    size_t n, cap;
} model_store;

/* Missing folders are empty. The caller closes *out in any case. The only error is NIB_E_NOMEM. */
nib_status model_store_open(model_store *out, nib_error *err);
void model_store_close(model_store *s);

/* The model with this name, ignoring letter case and .gguf: a whole name, its last part, or user/repo[:QUANT]
 * (hub/names.h). NULL: none, or no memory. */
const stored *model_store_find(const model_store *s, const char *name);

char *model_folder(void); /* as above; the caller frees with mem_free; NULL: out of memory */
char *hf_home(void);      /* $HF_HOME, else $XDG_CACHE_HOME/huggingface; as above */

#endif
