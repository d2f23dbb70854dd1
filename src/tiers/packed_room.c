/* packed_room.c - the folder of packed files within what the user's disk is allowed to hold. */
#include "base/mem.h"
#include "base/num.h"
#include "tiers/packed.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* A writer changes its file all the time; one that stood still for this long was killed. If it was only
 * stopped, it finds its file gone and says so. */
#define ABANDONED_S 600

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), e = strlen(end);
    return n > e && !strcmp(name + n - e, end);
}

/* The folder and those above it. */
static bool make_folder(const char *folder) {
    char *path = mem_strdup(folder);
    for (char *at = path; at && *at; at++)
        if (*at == '/' && at > path) {
            *at = 0;
            (void)mkdir(path, 0777);
            *at = '/';
        }
    mem_free(path);
    return mkdir(folder, 0777) == 0 || path_is_dir(folder);
}

typedef struct folder_state {
    uint64_t total;   /* of packed files but `keep` */
    char oldest[256]; /* the least recently used one of them; "": none */
    struct timespec used;
} folder_state;

static bool before(struct timespec a, struct timespec b) {
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

static bool look(const char *folder, const char *keep, folder_state *s) {
    DIR *dir = opendir(folder);
    if (!dir)
        return false;
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
    return true;
}

/* n_byte more would leave the file system a tenth of its size. */
static bool disk_has(const char *folder, uint64_t n_byte) {
    struct statvfs v;
    if (statvfs(folder, &v))
        return false;
    uint64_t left = (uint64_t)v.f_bavail * v.f_frsize, tenth = (uint64_t)v.f_blocks * v.f_frsize / 10;
    return left > tenth && left - tenth >= n_byte;
}

bool packed_make_room(const char *folder, uint64_t most, uint64_t n_byte, const char *keep,
                      const logger *log) {
    folder_state s;
    if (n_byte > most || !make_folder(folder))
        return false;
    const char *name = strrchr(keep, '/');
    name = name ? name + 1 : keep;
    while (look(folder, name, &s)) {
        if (s.total <= most - n_byte && disk_has(folder, n_byte))
            return true;
        char *path = s.oldest[0] ? path_join(folder, s.oldest) : NULL;
        if (!path)
            return false;
        bool gone = unlink(path) == 0 || !path_exists(path);
        if (gone)
            log_line(log, "%s: removed, to make room for another packed file", path);
        mem_free(path);
        if (!gone)
            return false;
    }
    return false;
}
