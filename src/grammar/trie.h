/* trie.h - the vocabulary as a trie over bytes in one array: each node is followed by its descendants. So an
 * automaton reads each common prefix of tokens once, and skips all tokens after a byte that it cannot read.
 * Tokens are their bytes within a text, as the decoder gives them. Control tokens, and ids without a text,
 * are not in the trie. Read-only after construction. */
#ifndef NIB_GRAMMAR_TRIE_H
#define NIB_GRAMMAR_TRIE_H

#include "tokenizer/tokenizer.h"
#include "memory/ledger.h"

typedef struct trie {
    uint8_t *byte;   /* [n_node]: the byte that leads to the node; unused for the root */
    uint16_t *depth; /* [n_node]: bytes from the root */
    uint32_t *skip;  /* [n_node]: the next node that is not a descendant */
    uint32_t *first; /* [n_node + 1]: order[first[i]..first[i + 1]) are the tokens that end at node i */
    int32_t *order;  /* [n_token]: token ids by node */
    uint32_t n_node, n_token, max_depth;
    /* to find the bytes of a token: */
    uint32_t *node_of; /* [n_vocab]: the node at which the token ends; 0: it is not in the trie */
    uint32_t *parent;  /* [n_node] */
    int32_t n_vocab;
    ledger *ledger;
    uint64_t n_byte; /* charged */
} trie;

enum { TRIE_MAX_TOKEN = 1024 /* bytes; longer tokens are not in the trie */ };

/* Builds the trie of the ids below n_vocab, charged to l. NIB_E_NOMEM, NIB_E_NOFIT. */
nib_status trie_open(trie *t, const tokenizer *of, int64_t n_vocab, ledger *l, nib_error *err);
void trie_close(trie *t); /* zeroed is fine */
/* Peak memory while it is built, estimated from the size of the vocabulary. */
uint64_t trie_bytes(int64_t n_vocab);
/* Writes the token's bytes to out [TRIE_MAX_TOKEN]; returns their number. 0: the token is not in the trie. */
uint32_t trie_token(const trie *t, int32_t token, uint8_t *out);

#endif
