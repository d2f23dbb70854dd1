/* sums.h - rows added over all ranks of a host that share every layer (OP_REDUCE), through memory that their
 * processes share.
 *
 * Each rank writes its rows to a place of its own and says so; when all have, each adds all of them, in the
 * order of the ranks. So all ranks have the same bits, whichever comes first. There are two places for each
 * rank, used in turn: a rank that writes one again has seen that all others have left it, since they have
 * written the other one after it.
 *
 * Sums have numbers that all ranks count alike: the pass's, and that of the sum in the pass. What a rank adds
 * has a tag, and unequal tags are an error, so that ranks which compute different rows cannot go unnoticed. A
 * rank waits a few microseconds without the system and then in it; it returns with an error when a rank has
 * failed in the pass, or has ended. */
#ifndef NIB_EXEC_SUMS_H
#define NIB_EXEC_SUMS_H

#include "base/cancel.h"
#include "base/status.h"

typedef struct rank_sums rank_sums;

/* Bytes of the shared memory, which is zeroed when the first rank opens it. Ranks add rows of `width`. */
uint64_t sums_bytes(int n_rank, int64_t width);
/* memory: sums_bytes, mapped by all ranks, page-aligned, the caller's. gone: polled while a rank waits; true:
 * another rank has ended. */
nib_status sums_open(void *memory, int rank, int n_rank, int64_t width, const canceller *gone,
                     rank_sums **out, nib_error *err);
void sums_close(rank_sums *s); /* NULL is fine */
int sums_n_rank(const rank_sums *s);

/* Before a pass, whose number is above those before. No rank is in an earlier one. */
void sums_begin(rank_sums *s, int64_t pass);
/* The rank's pass has failed: no rank waits for it any more. */
void sums_fail(rank_sums *s, int64_t pass);

/* For sums that are computed elsewhere: the pass's number; the number of the last pass that has failed, in
 * the first page of the shared memory; and, when the pass has ended, the errors of sums_wait. */
int64_t sums_pass(const rank_sums *s);
int64_t *sums_failed_at(const rank_sums *s);
nib_status sums_check(const rank_sums *s, nib_error *err);
int sums_rank(const rank_sums *s);

/* One sum, by all threads of a rank at the same time; each adds some columns. The threads copy to sums_own;
 * then, behind a barrier, one calls sums_publish; then each calls sums_wait, and reads sums_of. */
int64_t sums_max_rows(const rank_sums *s);         /* rows that can be added at a time */
uint64_t sums_now(const rank_sums *s);             /* the sum's number; to be read before the barrier */
float *sums_own(const rank_sums *s, uint64_t now); /* [max_rows, width] */
const float *sums_of(const rank_sums *s, uint64_t now, int rank); /* likewise, of any rank */
void sums_publish(rank_sums *s, uint64_t now, uint64_t tag);
/* NIB_E_CANCELLED: another rank has failed in this pass; NIB_E_IO: one has ended; NIB_E_FAILED: the tags
 * differ. */
nib_status sums_wait(const rank_sums *s, uint64_t now, uint64_t tag, nib_error *err);

#endif
