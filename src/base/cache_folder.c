/* cache_folder.c - the listing of a shared cache folder. */
#include "base/cache_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define ABANDONED_S 600

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), e = strlen(end);
    return n > e && !strcmp(name + n - e, end);
}

/* NAME.SUFFIX.ID.tmp */
static bool is_unfinished(const char *name, const char *suffix) {
    const char *at = strstr(name, suffix);
    return at && at[strlen(suffix)] == '.' && ends_with(name, ".tmp");
}

bool cache_file_before(struct timespec a, struct timespec b) {
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

nib_status cache_folder_list(const char *folder, const char *suffix, cache_file_fn each, void *user,
                             nib_error *err) {
    DIR *dir = opendir(folder);
    nib_status status = NIB_OK;
    if (!dir)
        return nib_fail_errno(err, "cannot list", folder, errno);
    for (struct dirent *e; status == NIB_OK && (e = readdir(dir));) {
        struct stat info;
        const bool unfinished = is_unfinished(e->d_name, suffix);
        if ((!unfinished && !ends_with(e->d_name, suffix)) ||
            fstatat(dirfd(dir), e->d_name, &info, AT_SYMLINK_NOFOLLOW) || !S_ISREG(info.st_mode))
            continue;
        if (unfinished && time(NULL) - info.st_mtim.tv_sec > ABANDONED_S)
            (void)unlinkat(dirfd(dir), e->d_name, 0);
        else
            status = each(user, e->d_name, &info, unfinished, err);
    }
    closedir(dir);
    return status;
}
