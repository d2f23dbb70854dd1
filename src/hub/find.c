/* find.c - see find.h. */
#include "hub/find.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/similar.h"
#include "hub/names.h"
#include "hub/store.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The stored model with the most similar name: the whole name or its last part, without .gguf. */
static similar nearest(const model_store *s, const char *name) {
    similar meant = similar_to(name);
    for (size_t i = 0; i < s->n; i++) {
        char word[SIMILAR_LONGEST + 1];
        const char *slash = strrchr(s->models[i].name, '/');
        snprintf(word, sizeof word, "%s", slash && !strchr(name, '/') ? slash + 1 : s->models[i].name);
        const size_t n = strlen(word);
        if (n > 5 && !strcasecmp(word + n - 5, ".gguf"))
            word[n - 5] = 0;
        similar_offer(&meant, word);
    }
    return meant;
}

static nib_status not_found(const model_store *s, const char *name, nib_error *err) {
    hub_name hub;
    const similar meant = nearest(s, name);
    if (meant.best[0])
        return nib_fail(err, NIB_E_NOTFOUND,
                        "no model '%s'; did you mean '%s'? ('nibble models' lists those in %s)", name,
                        meant.best, s->folder);
    if (hub_parse_name(name, &hub))
        return nib_fail(
            err, NIB_E_NOTFOUND,
            "no model '%s': there is no such file or folder; 'nibble pull %s' downloads it if the Hugging "
            "Face hub has it",
            name, name);
    return nib_fail(
        err, NIB_E_NOTFOUND,
        "no model '%s': there is no such file or folder, nor that name in %s (see 'nibble models')", name,
        s->folder);
}

/* Finds the stored model of that name, or a file or folder that is not a model, whose error comes when it is
 * opened. */
static nib_status find_kept(const model_store *s, const char *name, char **path, nib_error *err) {
    const stored *found = model_store_find(s, name);
    char *plain = path_join(s->folder, name);
    nib_status status = NIB_OK;
    if (found)
        *path = mem_strdup(found->path);
    else if (plain && *name && path_exists(plain))
        *path = mem_strdup(plain);
    else
        status = plain ? not_found(s, name, err) : nib_fail_nomem(err, 256, "a path");
    mem_free(plain);
    return status || *path ? status : nib_fail_nomem(err, 256, "a path");
}

nib_status model_find(const char *name, char **path, nib_error *err) {
    if (path_exists(name)) {
        *path = mem_strdup(name);
        return *path ? NIB_OK : nib_fail_nomem(err, strlen(name) + 1, "a path");
    }
    model_store store;
    nib_status status = model_store_open(&store, err);
    if (status == NIB_OK)
        status = find_kept(&store, name, path, err);
    model_store_close(&store);
    return status;
}
