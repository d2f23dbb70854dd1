/* sequence.h - the tokens of one sequence, and how many of them are computed. Shared by sessions and batches.
 *
 * tokens[0..n_token) are known; tokens[0..n) are computed: their keys and values are in the table. A sequence
 * that decodes has one known token more than computed ones; a sequence with a new prompt has many.
 *
 * One thread at a time. */
#ifndef NIB_SEQUENCE_SEQUENCE_H
#define NIB_SEQUENCE_SEQUENCE_H

#include "tiers/kv_table.h"
#include "tiers/visits.h"

/* Where keys and values are kept. All of it is borrowed. */
typedef struct sequence_memory {
    kv_pool *pages;
    const layout *layout;
    device *device; /* the back end's */
    ledger *ledger;
} sequence_memory;

typedef struct sequence {
    const model *m; /* borrowed */
    kv_table kv;
    int64_t n_ctx;
    int32_t *tokens; /* [n_ctx], borrowed */
    int64_t n_token, n;
    int64_t longest; /* n_token in the passes that the table comes from, at most */
} sequence;

/* tokens: room for n_ctx of them. reserved: as kv_table_open has it. */
nib_status sequence_open(sequence *s, const sequence_memory *memory, int64_t n_ctx, int32_t *tokens,
                         bool reserved, nib_error *err);
void sequence_close(sequence *s); /* zeroed is fine */

/* NIB_E_USAGE: no tokens, more than n_ctx, or an id outside the vocabulary. */
nib_status sequence_check(const sequence *s, const int32_t *tokens, size_t n_token, nib_error *err);
/* The sequence is tokens[0..n_token), which were checked. What is computed of it stays: its own prefix, and
 * pages of other sequences that hold more. At most the first n_reuse tokens count as computed. */
void sequence_set(sequence *s, const int32_t *tokens, int64_t n_token, int64_t n_reuse);
/* Pages of other sequences that hold more of it than is computed, all but the last token at most. */
void sequence_adopt(sequence *s);
/* The same from disk, at most n_page pages. True: there may be others. */
bool sequence_load(sequence *s, kv_disk *from, int64_t n_page);
/* One token more, which is not computed; there is room. */
void sequence_add(sequence *s, int32_t token);
/* The same, of n tokens that are proposed to follow: rows of the next pass, and forgotten after it. There is
 * room. */
void sequence_propose(sequence *s, const int32_t *tokens, int64_t n);
/* How many of n_max may be proposed, the sequence having n_end positions at most: what is written for them is
 * written again when others follow, so with kv8 and kv4 none may complete a block. 0 where keys depend on the
 * length of their sequence. */
int64_t sequence_can_propose(const sequence *s, int64_t n_max, int64_t n_end);
/* Before a pass: settles where it goes on, which may be before s->n (kv_table_keep, rotary frequencies that
 * depend on the length). */
void sequence_resume(sequence *s);
/* The next n_row tokens as rows of a pass, from `row` of it on; logits from head_row of them on. */
segment sequence_rows(sequence *s, int64_t row, int64_t n_row, int64_t head_row);
/* They were computed. */
void sequence_advance(sequence *s, int64_t n_row);

#endif
