/* path.c - names of files and folders; see file.h. */
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

bool path_is_dir(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool path_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

uint64_t path_disk_left(const char *folder) {
    struct statvfs v;
    char *at = mem_strdup(folder), *slash;
    int code = at ? statvfs(at, &v) : -1;
    while (code && at && (slash = strrchr(at, '/'))) {
        *slash = 0;
        code = statvfs(*at ? at : "/", &v);
    }
    if (code && at) /* it is relative, and missing */
        code = statvfs(".", &v);
    mem_free(at);
    if (code)
        return 0;
    const uint64_t left = (uint64_t)v.f_bavail * v.f_frsize, tenth = (uint64_t)v.f_blocks * v.f_frsize / 10;
    return left > tenth ? left - tenth : 0;
}

nib_status path_make_folders(const char *path, nib_error *err) {
    char *copy = mem_strdup(path);
    nib_status status = copy ? NIB_OK : nib_fail_nomem(err, strlen(path), "a path");
    for (char *slash = copy && *copy ? strchr(copy + 1, '/') : NULL; slash && status == NIB_OK;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        const int code = mkdir(copy, 0777) ? errno : 0;
        if (code && code != EEXIST && !path_is_dir(copy)) /* path_is_dir changes errno, so code holds it */
            status = nib_fail_errno(err, "cannot make the folder", copy, code);
        *slash = '/';
    }
    mem_free(copy);
    return status;
}

char *path_join(const char *folder, const char *name) {
    size_t a = strlen(folder), b = strlen(name);
    while (a > 1 && folder[a - 1] == '/')
        a--;
    bool slash = a > 0 && folder[a - 1] != '/';
    char *path = mem_alloc(a + b + 2);
    if (!path)
        return NULL;
    memcpy(path, folder, a);
    if (slash)
        path[a] = '/';
    memcpy(path + a + slash, name, b + 1);
    return path;
}

/* XDG base directory specification: a relative path in the variable counts as not set. */
static char *xdg_dir(const char *variable, const char *under_home) {
    const char *base = getenv(variable);
    if (base && base[0] == '/')
        return path_join(base, "nibble");
    const char *home = getenv("HOME");
    if (!home || home[0] != '/') {
        const struct passwd *user = getpwuid(getuid());
        home = user && user->pw_dir ? user->pw_dir : "/";
    }
    char *folder = path_join(home, under_home);
    char *path = folder ? path_join(folder, "nibble") : NULL;
    mem_free(folder);
    return path;
}

char *path_cache_dir(void) {
    return xdg_dir("XDG_CACHE_HOME", ".cache");
}

char *path_data_dir(void) {
    return xdg_dir("XDG_DATA_HOME", ".local/share");
}

char *path_state_dir(void) {
    return xdg_dir("XDG_STATE_HOME", ".local/state");
}
