/* archs.c - see archs.h. */
#include "support/archs.h"

#include "base/file.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

void archs_each(const char *root, void (*look)(void *user, const char *path, const char *name), void *user) {
    DIR *dir = opendir(root);
    assert_non_null(dir);
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", root, d->d_name);
        if (d->d_name[0] != '.' && (path_is_dir(path) || strstr(path, ".gguf")))
            look(user, path, d->d_name);
    }
    closedir(dir);
}
