/* merges.h - byte-pair encoding: a piece of text begins as a list of bytes or characters, and the best
 * adjacent pair is joined until no pair is left. The best pair is the one of lowest rank (BPE: the order of
 * the merge list; SentencePiece: the joined token's score), the leftmost among equals. */
#ifndef NIB_TOKENIZER_MERGES_H
#define NIB_TOKENIZER_MERGES_H

#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"
#include "tokenizer/work.h"

typedef enum merges_kind {
    MERGES_BYTES, /* byte-level: symbols are bytes, pairs are listed */
    MERGES_CHARS, /* symbols are characters, pairs are listed */
    MERGES_SCORES /* symbols are characters, a pair is joined when the joined text is a token */
} merges_kind;

typedef struct merge_pair {
    uint32_t left, right, rank, joined;
} merge_pair;

typedef struct merges {
    merges_kind kind;
    merge_pair *pair; /* [n_slot], hashed by (left, right); left == MERGE_FREE is a free slot */
    uint32_t n_slot;
    uint64_t seed;        /* of the hash */
    float *score;         /* [n_vocab], MERGES_SCORES */
    int32_t byte_id[256]; /* token of each byte that is not part of a character; -1: none */
    bool byte_fallback;   /* unknown characters become the tokens of their bytes, if all exist */
    bool fuse_unk;        /* adjacent unknown tokens become one */
    bool keeps_unknown;   /* MERGES_BYTES: a byte without a token still separates its neighbours */
    bool whole_first;     /* a piece that is a token is not merged (ignore_merges) */
    int32_t unk;          /* -1: none */
    uint8_t no_cut[32];   /* MERGES_SCORES: set of bytes that precede U+2581 inside some token */
} merges;
#define MERGE_FREE UINT32_MAX

/* Allocates the table for n pairs. */
nib_status merges_init_pairs(merges *m, size_t n, nib_error *err);
void merges_deinit(merges *m);
/* Adds a pair. If a pair is added twice, the later rank applies. */
void merges_put(merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t joined);
/* MERGES_SCORES: computes at which spaces a text may be cut without changing its tokens. */
void merges_find_cuts(merges *m, const vocab *v);
size_t merges_heap_bytes(const merges *m);
uint64_t merges_bytes(uint64_t n); /* memory of a table for n pairs */

/* Memory of one encoding, reused from piece to piece: set work, zero the rest. */
typedef struct merge_scratch {
    text_work *work;
    int32_t *id, *joined;
    uint32_t *start, *next, *prev, *rank;
    uint64_t *heap;
    size_t cap, cap_heap;
    struct merge_cache_entry *cache; /* NULL: the text is too short for one */
} merge_scratch;
nib_status merge_scratch_cache(merge_scratch *s, nib_error *err); /* for long texts: remembers words */
void merge_scratch_deinit(merge_scratch *s);

/* Appends the tokens of one piece of any bytes. A byte that does not begin a character is a symbol of its
 * own; a lead byte takes as many bytes as its character would have, whatever they are. */
nib_status merges_encode(const merges *m, const vocab *v, merge_scratch *s, const char *text, size_t n_byte,
                         token_list *out, nib_error *err);

#endif
