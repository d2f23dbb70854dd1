/* kv_disk_write.c - the thread that writes pages; see kv_disk.h. */
#include "state/kv_disk_parts.h"

#include "base/mem.h"
#include "base/thread.h"

#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define PAUSE_S 60.0 /* seconds without writing after the disk was full or a write failed */

/* Copies the page's bytes from the pool to the file, and writes their checksum. *gone: the pool has dropped
 * the page or its part. */
static nib_status put_page(kv_disk *d, file_writer *w, int64_t first, int64_t end, uint64_t bytes, bool *gone,
                           nib_error *err) {
    uint64_t mark = 0;
    XXH3_state_t h;
    XXH3_64bits_reset(&h);
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = NUM_MIN(bytes - at, (uint64_t)KV_DISK_PIECE);
        *gone = !kv_pool_copy(d->pool, d->now.tokens, first, end, at, d->piece, (size_t)n, &mark);
        if (*gone)
            return nib_fail(err, NIB_E_NOTFOUND, "expected the page in the pool, it was reused meanwhile");
        XXH3_64bits_update(&h, d->piece, (size_t)n);
        NIB_TRY(file_writer_write(w, d->piece, (size_t)n, err));
    }
    const uint64_t sum = XXH3_64bits_digest(&h);
    return file_writer_write(w, &sum, sizeof sum, err);
}

static nib_status put_file(kv_disk *d, file_writer *w, int64_t first, int64_t end, uint64_t bytes, bool *gone,
                           nib_error *err) {
    const int32_t *tokens = d->now.tokens;
    const kv_disk_head head = kv_disk_head_of(d, bytes, tokens, end);
    NIB_TRY(file_writer_write(w, &head, sizeof head, err));
    NIB_TRY(file_writer_write(w, tokens, (size_t)end * sizeof *tokens, err));
    return put_page(d, w, first, end, bytes, gone, err);
}

static uint64_t file_bytes(int64_t end, uint64_t bytes) {
    return sizeof(kv_disk_head) + (uint64_t)end * sizeof(int32_t) + bytes + sizeof(uint64_t);
}

static nib_status write_file(kv_disk *d, const char *path, int64_t first, int64_t end, uint64_t bytes,
                             bool *gone, nib_error *err) {
    file_writer *w;
    NIB_TRY(kv_disk_quota_make(&d->quota, file_bytes(end, bytes), err));
    NIB_TRY(file_writer_open_private(path, &w, err));
    return file_writer_end(w, put_file(d, w, first, end, bytes, gone, err), err);
}

static void count(kv_disk *d, bool written) {
    pthread_mutex_lock(&d->lock);
    d->counts.n_written += written;
    d->counts.n_missed += !written;
    d->counts.bytes = d->quota.total;
    pthread_mutex_unlock(&d->lock);
}

/* Whether the path must not be written: a whole page exists with at least so many bytes, or something that is
 * not a regular file. A tail is always written, because the existing one may belong to another sequence. */
static bool is_there(const char *path, bool tail, uint64_t bytes) {
    struct stat info;
    return lstat(path, &info) == 0 && !(S_ISREG(info.st_mode) && (tail || (uint64_t)info.st_size < bytes));
}

static void write_page(kv_disk *d, int64_t first, int64_t end, bool tail) {
    char name[KV_DISK_NAME];
    nib_error err;
    bool gone = false;
    kv_disk_name(d, d->now.tokens, first, tail, name);
    char *path = path_join(d->folder, name);
    if (!path)
        return;
    const uint64_t bytes = kv_pool_copyable(d->pool, d->now.tokens, first, end);
    const bool there = is_there(path, tail, bytes ? file_bytes(end, bytes) : 0);
    if (!there && time_now() < d->paused) {
        count(d, false);
    } else if (!there) {
        const nib_status status = write_file(d, path, first, end, bytes, &gone, &err);
        if (status != NIB_OK && !gone) {
            log_line(&d->options.log, "keys and values are not written to disk for the next minute: %s",
                     err.message);
            d->paused = time_now() + PAUSE_S;
        }
        count(d, status == NIB_OK);
    }
    kv_disk_note_use(path, d->now.begun, first / KV_BLOCK);
    mem_free(path);
}

/* Makes pages [first, end) readable for the host. After an error they are missed when they are written. */
static void fetch(kv_disk *d, int64_t first, int64_t end) {
    if (kv_pool_host_reads(d->pool))
        return;
    for (; first < end; first += KV_BLOCK)
        kv_pool_save(d->pool, d->now.tokens, first, NUM_MIN(first + KV_BLOCK, end));
    (void)d->options.settle(d->options.user, d->pool, NULL);
}

static void write_task(kv_disk *d) {
    enum { AT_ONCE = KV_DISK_STAGED * KV_BLOCK };
    const kv_disk_task *t = &d->now;
    const bool tails = t->tails && !kv_formats_any_coded(kv_pool_paging(d->pool)->formats);
    const int64_t prompt = t->n_prompt / KV_BLOCK * KV_BLOCK, end = t->n / KV_BLOCK * KV_BLOCK;
    for (int64_t first = t->first; first < t->n; first += AT_ONCE) {
        fetch(d, first, NUM_MIN(first + AT_ONCE, tails ? t->n : end));
        for (int64_t i = first; i < NUM_MIN(first + AT_ONCE, end); i += KV_BLOCK) {
            write_page(d, i, i + KV_BLOCK, false);
            if (tails && i == prompt && prompt < t->n_prompt)
                write_page(d, i, i + KV_BLOCK, true);
        }
    }
    if (tails && end < t->n)
        write_page(d, end, t->n, true);
}

/* Waits for a task and moves it to d->now; false: the folder is being closed and no task is left. */
static bool next_task(kv_disk *d) {
    pthread_mutex_lock(&d->lock);
    pthread_cond_broadcast(&d->changed);
    while (d->n_waiting == 0 && !d->ends)
        pthread_cond_wait(&d->changed, &d->lock);
    const bool found = d->n_waiting > 0;
    if (found) {
        const kv_disk_task next = d->waiting[0];
        memmove(d->waiting, d->waiting + 1, (size_t)--d->n_waiting * sizeof *d->waiting);
        d->waiting[d->n_waiting] = d->now;
        d->now = next;
    }
    pthread_mutex_unlock(&d->lock);
    return found;
}

void *kv_disk_writes(void *disk) {
    while (next_task(disk))
        write_task(disk);
    return NULL;
}
