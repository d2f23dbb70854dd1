/* grammar.h - finds the tokens that may come next, so that an answer matches a grammar. A *grammar* is one
 * text of GBNF, compiled, with its lazily built automaton and the masks (a bit for each token) of visited
 * states. Several answers, on several threads, share one. A *constraint* is the state of one answer in a
 * grammar. A *grammar_store* holds the grammars of an engine by their texts, and the vocabulary's trie. It
 * keeps some unused grammars, because the same schema is often sent again. A mask is computed by walking the
 * trie and the automaton together, once for each state, and cached. A mask that was evicted is computed
 * again. All memory is charged. */
#ifndef NIB_GRAMMAR_GRAMMAR_H
#define NIB_GRAMMAR_GRAMMAR_H

#include "grammar/trie.h"

#include <pthread.h>

typedef struct grammar grammar;

enum {
    GRAMMAR_IDLE = 4, /* maximum number of unused grammars that are kept */
    GRAMMAR_ENDS = 64 /* tokens that end a text; published models have up to eight */
};

typedef struct grammar_store {
    ledger *ledger;
    const tokenizer *tokenizer; /* NULL: no grammar can be used */
    int64_t n_vocab;            /* logits */
    int32_t ends[GRAMMAR_ENDS]; /* [n_end]: tokens that end a text */
    int n_end;
    pthread_mutex_t lock; /* protects the fields below */
    trie trie;            /* made for the first grammar */
    bool has_trie;
    grammar *first; /* list, the most recently used one first */
} grammar_store;

void grammar_store_open(grammar_store *s, ledger *l, const tokenizer *t, int64_t n_vocab);
void grammar_store_close(grammar_store *s); /* no grammar is in use; zeroed is fine */
/* Memory of a first grammar under this cap on RAM (NIB_AUTO: none). */
uint64_t grammar_bytes(uint64_t cap, int64_t n_vocab);

/* Returns the compiled grammar of this text (GBNF; see pda.h), which the caller releases. NIB_E_USAGE: the
 * text is not a valid grammar; the message has the line and the reason. NIB_E_NOFIT: it exceeds the memory.
 * Any thread. */
nib_status grammar_acquire(grammar_store *s, const char *text, size_t n_byte, grammar **out, nib_error *err);
void grammar_release(grammar *g); /* NULL is fine */

typedef struct constraint {
    grammar *of; /* holds a reference; NULL: none */
    uint64_t epoch;
    uint32_t state;
    uint8_t *read; /* the answer's bytes, to find the state again after the automaton was reset */
    size_t n, cap;
} constraint;

nib_status constraint_open(constraint *c, grammar_store *s, const char *text, nib_error *err);
void constraint_close(constraint *c); /* zeroed is fine */

typedef enum constraint_next {
    CONSTRAINT_TOKENS, /* the answer must continue */
    CONSTRAINT_EITHER, /* it may continue or end */
    CONSTRAINT_END     /* it is complete, and nothing can follow */
} constraint_next;
/* Sets the logits [n_vocab] of tokens that cannot come next to minus infinity, and those of tokens that end a
 * text, unless `ends` is set and the answer may end here. NIB_E_USAGE: no token can follow and the answer is
 * not complete, or the grammar is too ambiguous. */
nib_status constraint_apply(constraint *c, float *logits, bool ends, constraint_next *next, nib_error *err);
/* Returns `token` if it can come next, else the first token that can (needed if all allowed logits are minus
 * infinity). */
int32_t constraint_allowed(constraint *c, int32_t token, bool ends);
/* Appends one token to the answer, which constraint_apply has allowed. */
nib_status constraint_accept(constraint *c, int32_t token, nib_error *err);
/* Sets *next as constraint_apply does, regardless of the vocabulary. */
nib_status constraint_state(constraint *c, constraint_next *next, nib_error *err);

#endif
