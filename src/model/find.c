/* find.c - see find.h. */
#include "model/find.h"

#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

char *model_folder(void) {
    const char *set = getenv("NIBBLE_MODELS");
    if (set && *set)
        return mem_strdup(set);
    char *data = path_data_dir();
    char *folder = data ? path_join(data, "models") : NULL;
    mem_free(data);
    return folder;
}

static bool same_name(const char *entry, const char *name) {
    size_t n = strlen(name);
    return !strncasecmp(entry, name, n) && (!entry[n] || !strcasecmp(entry + n, ".gguf"));
}

/* The entry of the folder that `name` means; NULL: none (or no memory for it). */
static char *find_in(const char *folder, const char *name) {
    DIR *dir = opendir(folder);
    char *found = NULL;
    const struct dirent *entry;
    while (dir && !found && (entry = readdir(dir)))
        if (entry->d_name[0] != '.' && same_name(entry->d_name, name))
            found = path_join(folder, entry->d_name);
    if (dir)
        closedir(dir);
    return found;
}

nib_status model_find(const char *name, char **path, nib_error *err) {
    if (path_exists(name)) {
        *path = mem_strdup(name);
        return *path ? NIB_OK : nib_fail_nomem(err, strlen(name) + 1, "a path");
    }
    char *folder = model_folder();
    if (!folder)
        return nib_fail_nomem(err, 256, "a path");
    char *found = *name && !strchr(name, '/') ? find_in(folder, name) : NULL;
    nib_status status = NIB_OK;
    if (found)
        *path = found;
    else
        status = nib_fail(err, NIB_E_NOTFOUND,
                          "no model '%s': there is no such file or folder, nor that name in %s "
                          "(see 'nibble models')",
                          name, folder);
    mem_free(folder);
    return status;
}
