/* packed_quota.c - the folder of packed files within what the user's disk is allowed to hold. */
#include "base/mem.h"
#include "base/num.h"
#include "tiers/packed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A writer changes its file all the time; one that stood still for this long was killed. If it was only
 * stopped, it finds its file gone and says so. */
#define ABANDONED_S 600

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), e = strlen(end);
    return n > e && !strcmp(name + n - e, end);
}

typedef struct folder_state {
    uint64_t total;   /* of packed files but `keep` */
    char oldest[256]; /* the least recently used one of them; "": none */
    struct timespec used;
} folder_state;

static bool before(struct timespec a, struct timespec b) {
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

static nib_status look(const char *folder, const char *keep, folder_state *s, nib_error *err) {
    DIR *dir = opendir(folder);
    if (!dir)
        return nib_fail_errno(err, "cannot list", folder, errno);
    memset(s, 0, sizeof *s);
    for (struct dirent *e; (e = readdir(dir));) {
        struct stat info;
        bool left = strstr(e->d_name, ".nibpack.") && ends_with(e->d_name, ".tmp");
        if ((!left && !ends_with(e->d_name, ".nibpack")) || !strcmp(e->d_name, keep) ||
            fstatat(dirfd(dir), e->d_name, &info, AT_SYMLINK_NOFOLLOW) || !S_ISREG(info.st_mode))
            continue;
        if (left && time(NULL) - info.st_mtim.tv_sec > ABANDONED_S) {
            (void)unlinkat(dirfd(dir), e->d_name, 0);
            continue;
        }
        s->total += (uint64_t)info.st_size;
        if (!left && (!s->oldest[0] || before(info.st_mtim, s->used)) &&
            strlen(e->d_name) < sizeof s->oldest) {
            strcpy(s->oldest, e->d_name);
            s->used = info.st_mtim;
        }
    }
    closedir(dir);
    return NIB_OK;
}

static nib_status refuse_cap(uint64_t max, uint64_t n_byte, uint64_t others, nib_error *err) {
    char cap[32], need[32], taken[32], beside[64] = "";
    if (others)
        snprintf(beside, sizeof beside, ", and %s are there that cannot be removed",
                 num_format_size(others, taken));
    return nib_fail(err, NIB_E_NOFIT, "disk: the cap of %s (--disk) is too small: the file takes %s%s",
                    num_format_size(max, cap), num_format_size(n_byte, need), beside);
}

static nib_status refuse_disk(const char *folder, uint64_t n_byte, uint64_t left, nib_error *err) {
    char need[32], have[32];
    return nib_fail(err, NIB_E_NOFIT,
                    "%s: the file takes %s, and the file system has room for %s (a tenth of it stays free)",
                    folder, num_format_size(n_byte, need), num_format_size(left, have));
}

/* The least recently used packed file goes; false: there is none, or it cannot be removed. */
static bool remove_oldest(const char *folder, const folder_state *s, const logger *log) {
    char *path = s->oldest[0] ? path_join(folder, s->oldest) : NULL;
    const bool gone = path && (unlink(path) == 0 || !path_exists(path));
    if (gone)
        log_line(log, "%s: removed, to make room for another packed file", path);
    mem_free(path);
    return gone;
}

nib_status packed_evict(const char *folder, uint64_t max, uint64_t n_byte, const char *keep,
                        const logger *log, nib_error *err) {
    folder_state s;
    if (n_byte > max)
        return refuse_cap(max, n_byte, 0, err);
    NIB_TRY(path_make_folders(keep, err));
    const char *name = strrchr(keep, '/');
    name = name ? name + 1 : keep;
    for (;;) {
        NIB_TRY(look(folder, name, &s, err));
        const uint64_t left = path_disk_left(folder);
        const bool within = s.total <= max - n_byte;
        if (within && n_byte <= left)
            return NIB_OK;
        if (!remove_oldest(folder, &s, log))
            return within ? refuse_disk(folder, n_byte, left, err) : refuse_cap(max, n_byte, s.total, err);
    }
}
