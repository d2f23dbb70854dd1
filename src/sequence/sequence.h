/* sequence.h - the tokens of one sequence and its computed part. Used by sessions and batches.
 *
 * tokens[0..n_token) are known; tokens[0..n) are computed: their keys and values are in the table. A sequence
 * that decodes has one known token more than computed ones; a sequence with a new prompt has many.
 *
 * One thread at a time. */
#ifndef NIB_SEQUENCE_SEQUENCE_H
#define NIB_SEQUENCE_SEQUENCE_H

#include "state/kv_calls.h"
#include "schedule/visits.h"

/* The memory of keys and values. Everything is borrowed. */
typedef struct sequence_memory {
    kv_pool *pages;
    const layout *layout;
    device *device; /* of the back end */
    ledger *ledger;
    bool goes_back; /* a recurrent state can, so that tokens may be proposed */
} sequence_memory;

typedef struct sequence {
    const model *m; /* borrowed */
    kv_table kv;
    int64_t n_ctx;
    int32_t *tokens; /* [n_ctx], borrowed */
    int64_t n_token, n;
    int64_t reached; /* positions that were computed before proposals were dropped: rows up to there are
                        computed again, because a recurrent state went back further (kv_table_advance) */
    int64_t longest; /* largest n_token in the passes that computed the table (rotary frequencies may depend
                        on it) */
    /* Pages are shared with other sequences up to this position. Rows after it are generated, and the back
     * end has other kernels for them than for prompt rows (backend.by_role): as prompt rows of another
     * sequence, the same tokens would have other bits. */
    int64_t n_shared;
} sequence;

/* tokens: [n_ctx], borrowed. reserved: as in kv_table_open. */
nib_status sequence_open(sequence *s, const sequence_memory *memory, int64_t n_ctx, int32_t *tokens,
                         const kv_amount *reserved, nib_error *err);
void sequence_close(sequence *s); /* zeroed is fine */

/* NIB_E_USAGE: no tokens, more than n_ctx, or an id outside the vocabulary. */
nib_status sequence_check(const sequence *s, const int32_t *tokens, size_t n_token, nib_error *err);
/* Sets the sequence to tokens[0..n_token), which were checked. Computed tokens are reused: its own prefix,
 * and pages of other sequences with a longer one. At most the first n_reuse tokens count as computed. */
void sequence_set(sequence *s, const int32_t *tokens, int64_t n_token, int64_t n_reuse);
/* Drops all pages and tokens. */
void sequence_clear(sequence *s);
/* Number of full pages, from the first one of `from` on, that another sequence with tokens[0..n) may share:
 * their tokens are the same. 0 with a recurrent state (sequence_adopt finds pages with a checkpoint). */
int64_t sequence_shareable(const sequence *from, const int32_t *tokens, int64_t n);
/* Gives s, which has no pages, the first n_page pages of `from` with their tokens, which count as computed.
 * Both sequences have the same pool. */
void sequence_share(sequence *s, const sequence *from, int64_t n_page);
/* How many of its full pages a walk over sequences has met in others (kv_pool_walk). The sum over some of
 * them does not fall before one is cleared. */
int64_t sequence_met(const sequence *s, uint64_t walk);
/* Shares pages of other sequences with a longer prefix than the computed one, at most all but the last token.
 */
void sequence_adopt(sequence *s);
/* Reads such pages from disk, at most n_page. True: the disk may have more. */
bool sequence_load(sequence *s, kv_disk *from, int64_t n_page);
/* With backend.by_role: marks the rows from position n on as generated. */
void sequence_generates(sequence *s, int64_t n);
/* Neither uses pages of other sequences from now on, nor lets them use its own. */
void sequence_keeps_apart(sequence *s);
/* Number of computed positions whose pages are found by content: no generated ones with backend.by_role. */
int64_t sequence_described(const sequence *s);
/* Appends one token, which is not computed; n_token < n_ctx. */
void sequence_add(sequence *s, int32_t token);
/* Appends n proposed tokens: they are rows of the next pass and are removed after it. n_token + n <= n_ctx.
 */
void sequence_propose(sequence *s, const int32_t *tokens, int64_t n);
/* Number of tokens, at most n_max, that may be proposed in a sequence of at most n_end positions. Positions
 * of rejected tokens are written again, so with kv8 and kv4 no proposal may complete a block. 0 if keys
 * depend on the sequence length, or if there is a recurrent state that cannot go back. */
int64_t sequence_can_propose(const sequence *s, int64_t n_max, int64_t n_end);
/* Before a pass: sets the position where it continues, which may be before s->n (kv_table_keep, rotary
 * frequencies that depend on the length). */
void sequence_resume(sequence *s);
/* The segment of the next n_row tokens, with logits from their row head_row on. It is the pass's only one, or
 * segments_number follows. */
segment sequence_rows(sequence *s, int64_t n_row, int64_t head_row);
/* Marks these n_row tokens as computed. Fewer may count, if proposed ones were rejected (reached). */
void sequence_advance(sequence *s, int64_t n_row);
/* Positions that were computed, and known tokens that never were. */
int64_t sequence_reached(const sequence *s);
int64_t sequence_left(const sequence *s);

#endif
