/* kv_disk_parts.h - shared by kv_disk.c, kv_disk_write.c and kv_disk_quota.c only. */
#ifndef NIB_STATE_KV_DISK_PARTS_H
#define NIB_STATE_KV_DISK_PARTS_H

#include "base/file.h"
#include "base/num.h"
#include "state/kv_disk.h"

#include <pthread.h>

#define KV_DISK_SUFFIX ".nibkv"
enum {
    KV_DISK_NAME = 96,
    KV_DISK_WAITING = 16,
    KV_DISK_PIECE = 256 << 10,
    KV_DISK_STAGED = 8 /* pages of a device that go through RAM together */
};

/* A file: head, tokens [n_token], the page, XXH3 of the page. Numbers are the machine's own. */
typedef struct kv_disk_head {
    char magic[8];
    uint64_t key[2], page_bytes;
    uint64_t n_token; /* tokens of the sequence up to the page's end; the page begins at the last multiple of
                         KV_BLOCK below */
    uint64_t zero[2];
    uint64_t hash; /* of the head before this, and of the tokens */
} kv_disk_head;
_Static_assert(sizeof(kv_disk_head) == 64, "no padding");

/* Pages of one sequence to be written. */
typedef struct kv_disk_task {
    int32_t *tokens;            /* [n_ctx] */
    int64_t n_prompt, first, n; /* first: a multiple of KV_BLOCK */
    bool tails;
    int64_t begun; /* kv_disk_now */
} kv_disk_task;

/* A file of the folder. */
typedef struct kv_disk_entry kv_disk_entry;

/* The folder and its limits. Used by the writing thread. */
typedef struct kv_disk_quota {
    const char *folder; /* borrowed */
    ledger *ledger;
    uint64_t max;
    uint64_t total;   /* at the last listing, plus later writes; charged to the ledger */
    int64_t n_change; /* files written since */
} kv_disk_quota;

nib_status kv_disk_quota_open(kv_disk_quota *r, nib_error *err); /* creates and lists the folder */
void kv_disk_quota_close(kv_disk_quota *r);
/* Makes space for n_byte more bytes, removing old files if necessary, and charges them. NIB_E_NOFIT,
 * NIB_E_IO.
 */
nib_status kv_disk_quota_make(kv_disk_quota *r, uint64_t n_byte, nib_error *err);
/* Records the use of page i of a sequence; begun: time of use of the sequence's first page, in ms since 1970.
 * Pages at the end of a sequence are removed first, so each page counts as used slightly earlier than its
 * predecessor. */
void kv_disk_note_use(const char *path, int64_t begun, int64_t i);
int64_t kv_disk_now(void); /* ms since 1970 */

struct kv_disk {
    kv_disk_options options; /* folder: its own copy */
    char *folder;
    char *path; /* of the file that was found, for kv_disk_read */
    kv_pool *pool;
    ledger *ledger;
    uint64_t charged;    /* bytes of RAM charged to the ledger */
    uint64_t page_bytes; /* of a page on disk with its part (kv_pool_page_bytes) */
    uint64_t part_bytes; /* of the part */
    kv_page
        *staged[KV_DISK_STAGED]; /* pages in RAM that files are read into; NULL: the host reads the pages */
    int n_staged;                /* of them used since kv_disk_begin */
    file *found;
    uint64_t found_at; /* offset of the page in the found file, and its bytes */
    uint64_t found_bytes;
    int64_t found_page;  /* index of the page in its sequence */
    int64_t found_begun; /* when the first page of its sequence was looked for */
    uint8_t *piece;      /* [KV_DISK_PIECE], the writing thread's */
    kv_disk_quota quota; /* likewise */
    double paused;       /* time before which nothing is written; likewise */
    kv_disk_task now;    /* the task that is being written; likewise */
    pthread_t thread;
    bool runs;            /* the thread was started */
    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t changed;
    bool ends;
    int n_waiting;
    kv_disk_task waiting[KV_DISK_WAITING];
    kv_disk_counts counts;
};

/* Writes the file name of the page that begins at `first` of a sequence: a whole page or (tail) a partial
 * one. */
void kv_disk_name(const kv_disk *d, const int32_t *tokens, int64_t first, bool tail, char out[KV_DISK_NAME]);
kv_disk_head kv_disk_head_of(const kv_disk *d, uint64_t page_bytes, const int32_t *tokens, int64_t n);
void *kv_disk_writes(void *disk); /* body of the writing thread */

#endif
