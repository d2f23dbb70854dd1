/* unigram.h - the Unigram model: a piece becomes the sequence of tokens with the highest sum of scores
 * (Viterbi; Kudo 2018). Built once, then read-only. */
#ifndef NIB_TOKENIZER_UNIGRAM_H
#define NIB_TOKENIZER_UNIGRAM_H

#include "tokenizer/text_key.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"
#include "tokenizer/work.h"

typedef struct unigram {
    double *score;  /* [n_vocab]: log-probabilities */
    text_keys keys; /* the tokens by text; the vocabulary owns the texts */
    double unk_score;
    int32_t unk;          /* -1: a text with an unknown character cannot be encoded */
    int32_t byte_id[256]; /* -1: none */
    bool byte_fallback, fuse_unk;
} unigram;

/* Computes all other fields from score, unk and the flags, which the caller has set. The vocabulary's texts
 * must not move afterwards. */
nib_status unigram_init(unigram *u, const vocab *v, nib_error *err);
void unigram_deinit(unigram *u);
size_t unigram_heap_bytes(const unigram *u, const vocab *v);
/* Bytes of memory for n tokens: while open, and the maximum while it is built. */
uint64_t unigram_bytes(uint64_t n);
uint64_t max_unigram_bytes(uint64_t n);

typedef struct unigram_scratch { /* set work, zero the rest */
    text_work *work;
    struct unigram_node *node;
    size_t cap;
} unigram_scratch;
void unigram_scratch_deinit(unigram_scratch *s);

/* Appends the tokens of one piece, which has the shape of UTF-8 (utf8_check_shape). NIB_E_MODEL: an unknown
 * character without an unknown token, or the bound on work is reached. */
nib_status unigram_encode(const unigram *u, unigram_scratch *s, const char *text, size_t n_byte,
                          token_list *out, nib_error *err);

#endif
