/* kv_disk_quota.c - keeps the folder of KV pages within its size, the disk cap and the file system. */
#include "state/kv_disk_parts.h"

#include "base/mem.h"
#include "base/cache_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LIST_EVERY = 64 }; /* files written between listings: other processes may write and remove files too */

struct kv_disk_entry {
    struct timespec used;
    uint64_t bytes;
    char name[KV_DISK_NAME];
};

typedef struct listing {
    kv_disk_entry *files;
    size_t n, cap;
    uint64_t total; /* bytes of the files, unfinished ones included */
} listing;

static nib_status add_file(void *user, const char *name, const struct stat *info, bool unfinished,
                           nib_error *err) {
    listing *l = user;
    if (!unfinished && strlen(name) >= KV_DISK_NAME)
        return NIB_OK; /* not one of ours */
    l->total += (uint64_t)info->st_size;
    if (unfinished)
        return NIB_OK;
    if (mem_grow((void **)&l->files, &l->cap, l->n + 1, sizeof *l->files))
        return nib_fail_nomem(err, (l->n + 1) * sizeof *l->files, "a list of files");
    kv_disk_entry *e = &l->files[l->n++];
    *e = (kv_disk_entry){.used = info->st_mtim, .bytes = (uint64_t)info->st_size};
    strcpy(e->name, name);
    return NIB_OK;
}

static int by_use(const void *a, const void *b) {
    const struct timespec x = ((const kv_disk_entry *)a)->used, y = ((const kv_disk_entry *)b)->used;
    return cache_file_before(y, x) - cache_file_before(x, y);
}

/* Removes the least recently used files until `limit` bytes are left. */
static void remove_oldest(const char *folder, listing *l, uint64_t limit) {
    if (l->n > 0)
        qsort(l->files, l->n, sizeof *l->files, by_use);
    const int at = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; at >= 0 && i < l->n && l->total > limit; i++)
        if (unlinkat(at, l->files[i].name, 0) == 0 || errno == ENOENT)
            l->total -= l->files[i].bytes;
    if (at >= 0)
        close(at);
}

/* Charges the known size of the folder to the ledger, if it fits. */
static void charge(kv_disk_quota *r, uint64_t total) {
    if (total < r->total)
        ledger_release(r->ledger, PLACE_DISK, NIB_OWNER_KV, r->total - total);
    else if (ledger_charge(r->ledger, PLACE_DISK, NIB_OWNER_KV, total - r->total, NULL) != NIB_OK)
        return;
    r->total = total;
}

/* The maximum size of the folder: by its own limit, the ledger's cap, and the file system. */
static uint64_t limit_of(const kv_disk_quota *r, uint64_t total) {
    const uint64_t free = ledger_free(r->ledger, PLACE_DISK);
    uint64_t limit = r->max;
    if (free != NIB_AUTO)
        limit = NUM_MIN(limit, r->total + free);
    return NUM_MIN(limit, total + path_disk_left(r->folder));
}

/* Lists the folder and removes files so that n_byte more fit. If it removes any, it removes a tenth of all,
 * so that this does not happen for every file. */
static nib_status update(kv_disk_quota *r, uint64_t n_byte, nib_error *err) {
    listing l = {0};
    const nib_status status = cache_folder_list(r->folder, KV_DISK_SUFFIX, add_file, &l, err);
    const uint64_t limit = limit_of(r, l.total);
    if (status == NIB_OK && (n_byte > limit || l.total > limit - n_byte))
        remove_oldest(r->folder, &l, n_byte > limit ? limit : NUM_MIN(limit - n_byte, limit / 10 * 9));
    if (status == NIB_OK)
        charge(r, l.total);
    r->n_change = 0;
    mem_free(l.files);
    return status;
}

nib_status kv_disk_quota_open(kv_disk_quota *r, nib_error *err) {
    struct stat info;
    NIB_TRY(path_make_folders(r->folder, err));
    if (mkdir(r->folder, 0700) && errno != EEXIST)
        return nib_fail_errno(err, "cannot make the folder", r->folder, errno);
    if (stat(r->folder, &info) || !S_ISDIR(info.st_mode))
        return nib_fail(err, NIB_E_IO, "%s: expected a folder", r->folder);
    return update(r, 0, err);
}

void kv_disk_quota_close(kv_disk_quota *r) {
    if (r->ledger)
        ledger_release(r->ledger, PLACE_DISK, NIB_OWNER_KV, r->total);
}

nib_status kv_disk_quota_make(kv_disk_quota *r, uint64_t n_byte, nib_error *err) {
    uint64_t limit = limit_of(r, r->total);
    if (++r->n_change >= LIST_EVERY || n_byte > limit || r->total > limit - n_byte) {
        NIB_TRY(update(r, n_byte, err));
        limit = limit_of(r, r->total);
    }
    if (n_byte > limit || r->total > limit - n_byte) {
        char need[32], have[32];
        return nib_fail(err, NIB_E_NOFIT, "%s: expected space for a page of %s, found %s", r->folder,
                        num_format_size(n_byte, need),
                        num_format_size(limit > r->total ? limit - r->total : 0, have));
    }
    charge(r, r->total + n_byte);
    return NIB_OK;
}

int64_t kv_disk_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void kv_disk_note_use(const char *path, int64_t begun, int64_t i) {
    enum { MS = 1000, NS = 1000000 };
    const int64_t ms = NUM_MAX(begun - i, 0);
    const struct timespec at = {.tv_sec = ms / MS, .tv_nsec = ms % MS * NS};
    const struct timespec both[2] = {at, at};
    (void)utimensat(AT_FDCWD, path, both, AT_SYMLINK_NOFOLLOW);
}
