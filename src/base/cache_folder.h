/* cache_folder.h - lists the files of a cache folder that several processes share: finished files
 * NAME.SUFFIX, and unfinished ones (NAME.SUFFIX.ID.tmp) of running writers. Used for packed files
 * (packed_file_quota.c) and KV pages (kv_disk_quota.c). */
#ifndef NIB_BASE_CACHE_FOLDER_H
#define NIB_BASE_CACHE_FOLDER_H

#include "base/status.h"

#include <sys/stat.h>
#include <time.h>

/* Called for each regular file. An error ends the listing. */
typedef nib_status (*cache_file_fn)(void *user, const char *name, const struct stat *info, bool unfinished,
                                    nib_error *err);

/* Lists the files of `folder` with `suffix` (".nibpack"), in any order. Removes unfinished files that have
 * not changed for ten minutes: a writer changes its file all the time, so their writer was killed. A writer
 * that was only stopped finds its file missing and reports it. NIB_E_IO: the folder cannot be read. */
nib_status cache_folder_list(const char *folder, const char *suffix, cache_file_fn each, void *user,
                             nib_error *err);

/* Whether a is earlier than b. */
bool cache_file_before(struct timespec a, struct timespec b);

#endif
