/* packed_file_quota.c - keeps the folder of packed files within the disk cap and the file system. */
#include "base/mem.h"
#include "base/num.h"
#include "base/cache_folder.h"
#include "weights/packed_file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct folder_state {
    const char *keep; /* name of the file that is kept and not counted */
    uint64_t total;   /* bytes of the other packed files */
    char oldest[256]; /* name of the least recently used one; "": none */
    struct timespec used;
} folder_state;

static nib_status add_file(void *user, const char *name, const struct stat *info, bool unfinished,
                           nib_error *err) {
    folder_state *s = user;
    (void)err;
    if (!strcmp(name, s->keep))
        return NIB_OK;
    s->total += (uint64_t)info->st_size;
    if (!unfinished && (!s->oldest[0] || cache_file_before(info->st_mtim, s->used)) &&
        strlen(name) < sizeof s->oldest) {
        strcpy(s->oldest, name);
        s->used = info->st_mtim;
    }
    return NIB_OK;
}

static nib_status refuse_cap(uint64_t max, uint64_t n_byte, uint64_t others, nib_error *err) {
    char cap[32], need[32], taken[32], kept[64] = "";
    if (others)
        snprintf(kept, sizeof kept, ", and %s of other files cannot be removed",
                 num_format_size(others, taken));
    return nib_fail(err, NIB_E_NOFIT, "disk: the cap of %s (--disk) is too small: the file takes %s%s",
                    num_format_size(max, cap), num_format_size(n_byte, need), kept);
}

static nib_status refuse_disk(const char *folder, uint64_t n_byte, uint64_t left, nib_error *err) {
    char need[32], have[32];
    return nib_fail(err, NIB_E_NOFIT,
                    "%s: the file takes %s, and the file system has %s available (a tenth of it stays free)",
                    folder, num_format_size(n_byte, need), num_format_size(left, have));
}

/* Removes the least recently used packed file; false: there is none, or it cannot be removed. */
static bool remove_oldest(const char *folder, const folder_state *s, const logger *log) {
    char *path = s->oldest[0] ? path_join(folder, s->oldest) : NULL;
    const bool gone = path && (unlink(path) == 0 || !path_exists(path));
    if (gone)
        log_line(log, "%s: removed, to free space for another packed file", path);
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
        s = (folder_state){.keep = name};
        NIB_TRY(cache_folder_list(folder, ".nibpack", add_file, &s, err));
        const uint64_t left = path_disk_left(folder);
        const bool within = s.total <= max - n_byte;
        if (within && n_byte <= left)
            return NIB_OK;
        if (!remove_oldest(folder, &s, log))
            return within ? refuse_disk(folder, n_byte, left, err) : refuse_cap(max, n_byte, s.total, err);
    }
}
