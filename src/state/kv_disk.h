/* kv_disk.h - KV pages in a folder: the common prefix of a prompt is read instead of computed, also by
 * another process.
 *
 *     FOLDER/<key>-<prefix>.nibkv     a whole page: <prefix> is a hash of all tokens up to its end
 *     FOLDER/<key>-<prefix>t.nibkv    a page that ends in the middle: a hash of the tokens before it
 *
 * Pages of layers with a window have parts that are dropped early (kv_pool.h). A file has the part if it was
 * there when the file was written.
 *
 * <key> is a hash of everything that keys and values depend on except the tokens (kv_disk_options.key). No
 * file is trusted: its header and size must be what this program would write, all its tokens must be the
 * sequence's, and the page has a checksum. A file that fails a check is removed and logged, and counts as
 * absent. A file appears under its name only when it is whole. Several processes may use one folder.
 *
 * A thread writes the files, so that passes do not wait for the disk. It copies a page from the pool piece by
 * piece, and drops it if the page is reused meanwhile. Pages of a device that the host cannot read go through
 * RAM in both directions: the thread copies a few pages to the pool's tier in RAM between two passes and then
 * writes them; a file is read into a page in RAM, which the next pass copies to the device. All files of the
 * folder, whatever their key, stay within `max` bytes; the least recently used are removed first, and a tenth
 * of the file system stays free. They are charged to the ledger's disk tier.
 *
 * kv_disk_begin, kv_disk_find and kv_disk_read: one thread at a time. Other functions: any thread. */
#ifndef NIB_STATE_KV_DISK_H
#define NIB_STATE_KV_DISK_H

#include "base/log.h"
#include "state/kv_pool.h"

typedef struct kv_disk kv_disk;

typedef struct kv_disk_options {
    const char *folder; /* created if it does not exist, readable by its owner only */
    uint64_t max;       /* maximum bytes of all its files */
    uint64_t key[2];    /* hash of all that keys and values depend on, except tokens */
    int64_t n_ctx;      /* the longest sequence */
    /* Calls kv_pool_settle while no pass runs; from any thread. Used if the host cannot read the pool's
     * device. */
    nib_status (*settle)(void *user, kv_pool *pool, nib_error *err);
    void *user;
    logger log;
} kv_disk_options;

/* Opens the folder and starts the writing thread. If the host cannot read the pool's device, the pool has a
 * tier in RAM (kv_pool_keep). NIB_E_IO: the folder cannot be created or read; NIB_E_NOFIT: the ledger has no
 * space for the buffers. */
nib_status kv_disk_open(const kv_disk_options *o, kv_pool *pool, ledger *l, kv_disk **out, nib_error *err);
/* Completes the queued writes first. To be called before the pool is closed; NULL is fine. */
void kv_disk_close(kv_disk *d);

/* Queues the pages of positions [first, n) of a sequence for writing: whole pages and, with `tails`, the
 * partial pages at the end of its prompt (n_prompt positions) and of the sequence. A page that is there
 * without its part is written again. Skipped if too many writes are queued. n <= n_ctx. */
void kv_disk_save(kv_disk *d, const int32_t *tokens, int64_t n_prompt, int64_t first, int64_t n, bool tails);

/* Whether the folder has a page that begins at position `first` (a multiple of KV_BLOCK) of the sequence
 * tokens[0..n) and shares more than n_min positions with it. *n_same: the number of shared positions. Checks
 * the page's tokens only. kv_disk_read must follow. */
bool kv_disk_find(kv_disk *d, const int32_t *tokens, int64_t first, int64_t n, int64_t n_min,
                  int64_t *n_same);
/* Whether the found file has the page's part too. */
bool kv_disk_has_part(const kv_disk *d);
/* Reads the found file into a page of the pool and its part (NULL: the file has none). False: it is damaged;
 * their memory is then undefined. */
bool kv_disk_read(kv_disk *d, kv_page *page, kv_page *part);
/* To be called before some pages are read. Returns how many can be read, at most n; 0 after an error of the
 * device. */
int64_t kv_disk_begin(kv_disk *d, int64_t n);

typedef struct kv_disk_counts {
    uint64_t bytes;               /* of all files of the folder, at the last listing */
    uint64_t n_read, n_written;   /* pages */
    uint64_t n_damaged, n_missed; /* files that failed a check; pages that were not written */
} kv_disk_counts;
void kv_disk_count(kv_disk *d, kv_disk_counts *out);

#endif
