/* journal.h - OUT.part.log: the finished part of OUT.part, so that interrupted work can continue.
 *
 * The first 8 bytes are the key of the output (settings and sources); then, for each finished tensor in
 * order, 8 bytes of checksum. A log with another key counts as empty; half an entry at its end is ignored.
 * One thread; the lock on OUT.part keeps other processes out. */
#ifndef NIB_QUANTIZE_JOURNAL_H
#define NIB_QUANTIZE_JOURNAL_H

#include "base/status.h"

typedef struct journal {
    char *path; /* mem_free */
    int fd;
    uint64_t *sums; /* [n]: found when it was opened */
    size_t n;
    bool other; /* a log of another key was there */
} journal;

nib_status journal_open(journal *j, const char *out, uint64_t key, nib_error *err);
/* Only the first n entries count; called once, before the first journal_add. */
nib_status journal_keep(journal *j, size_t n, nib_error *err);
nib_status journal_add(journal *j, uint64_t sum, nib_error *err);
void journal_close(journal *j, bool finished); /* finished: the log is removed. Zeroed with fd -1 is fine */

#endif
