/* shared.h - memory that the ranks of one host share, for their sums (exec/sums.h). It has no name in a file
 * system, and is gone with its last process. */
#ifndef NIB_CLUSTER_SHARED_H
#define NIB_CLUSTER_SHARED_H

#include "exec/sums.h"

enum { SHARED_PATH = 40 };

typedef struct shared_sums {
    rank_sums *of; /* NULL: the ranks add nothing */
    void *at;
    uint64_t n_byte;
    int file;               /* of the first rank; below 0: none */
    char path[SHARED_PATH]; /* of the first rank: where others open it */
} shared_sums;

/* Makes the memory, all of which is resident afterwards, and opens the first rank's sums of rows of `width`.
 * gone: as in sums_open. The caller closes it in any case. */
nib_status shared_make(shared_sums *s, int n_rank, int64_t width, const canceller *gone, nib_error *err);
/* The same of another rank. NIB_E_FAILED: the memory is not there. */
nib_status shared_join(shared_sums *s, const char *path, int rank, int n_rank, int64_t width,
                       const canceller *gone, nib_error *err);
void shared_close(shared_sums *s); /* zeroed is fine */

#endif
