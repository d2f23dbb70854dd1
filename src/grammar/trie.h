/* trie.h - the vocabulary as a tree of bytes in one array: each node is followed by its descendants. So an
 * automaton reads each common prefix of tokens once, and skips all tokens after a byte that it cannot read.
 *
 * Tokens are their bytes within a text, as the decoder gives them. Control tokens, and ids without a text,
 * are not in the tree. Read-only after construction. */
#ifndef NIB_GRAMMAR_TRIE_H
#define NIB_GRAMMAR_TRIE_H

#include "text/tokenizer.h"
#include "tiers/ledger.h"

typedef struct trie {
    uint8_t *byte;   /* [n_node] that leads to it; the root's is none */
    uint16_t *depth; /* [n_node]: bytes from the root */
    uint32_t *skip;  /* [n_node]: the next node that is not below it */
    uint32_t *first; /* [n_node + 1]: order[first[i]..first[i + 1]) are the tokens that end at node i */
    int32_t *order;  /* [n_token] */
    uint32_t n_node, n_token, max_depth;
    /* the same by token, to read the bytes of one: */
    uint32_t *node_of; /* [n_vocab]; 0: in no tree */
    uint32_t *parent;  /* [n_node] */
    int32_t n_vocab;
    ledger *ledger;
    uint64_t n_byte; /* charged */
} trie;

enum { TRIE_MAX_TOKEN = 1024 /* bytes; longer ones are in no tree */ };

/* Of the ids below n_vocab. */
nib_status trie_open(trie *t, const tokenizer *of, int64_t n_vocab, ledger *l, nib_error *err);
void trie_close(trie *t); /* zeroed is fine */
/* Memory while it is made, estimated from the size of the vocabulary. */
uint64_t trie_bytes(int64_t n_vocab);
/* The token's bytes; 0: it has none here. out holds TRIE_MAX_TOKEN. */
uint32_t trie_token(const trie *t, int32_t token, uint8_t *out);

#endif
