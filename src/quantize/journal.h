/* journal.h - OUT.part.log: the finished part of OUT.part, so that interrupted work can continue.
 *
 * The first 8 bytes are the key of the output (settings and sources); then, for each finished tensor in
 * order, 8 bytes of checksum. A log with another key counts as empty; half an entry at its end is ignored.
 * One thread; the lock on OUT.part keeps other processes out. */
#ifndef NIB_QUANTIZE_JOURNAL_H
#define NIB_QUANTIZE_JOURNAL_H

#include "base/status.h"

typedef struct journal {
    char *path; /* owned */
    int fd;
    uint64_t *sums; /* [n]: checksums that the log had when it was opened; owned */
    size_t n;
    bool other; /* the existing log had another key */
} journal;

/* Reads OUT.part.log, or creates it with this key. out: the path of OUT. NIB_E_IO; NIB_E_NOMEM. Call
 * journal_close after an error too. */
nib_status journal_open(journal *j, const char *out, uint64_t key, nib_error *err);
/* Drops all entries but the first n; called once, before the first journal_add. NIB_E_IO. */
nib_status journal_keep(journal *j, size_t n, nib_error *err);
/* Adds the checksum of one more tensor, whose data is in OUT.part. NIB_E_IO: the disk is full, say. */
nib_status journal_add(journal *j, uint64_t sum, nib_error *err);
/* finished: the log is not needed and is removed, as an empty one is. Zeroed with fd -1 is fine. */
void journal_close(journal *j, bool finished);

#endif
