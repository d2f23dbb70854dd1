/* grammar_parts.h - a compiled grammar, for grammar.c (its memory and its masks) and constraint.c (answers).
 */
#ifndef NIB_GRAMMAR_GRAMMAR_PARTS_H
#define NIB_GRAMMAR_GRAMMAR_PARTS_H

#include "grammar/automaton.h"
#include "grammar/grammar.h"

struct grammar {
    grammar_store *store;
    grammar *next;
    int refs; /* number of users; under store->lock */
    char *text;
    size_t n_byte;
    pda pda;
    uint64_t charged, n_state_byte, n_mask_byte;
    pthread_mutex_t lock; /* protects the fields below */
    automaton automaton;
    uint64_t *masks;    /* [n_slot, n_word] */
    uint32_t *mask_of;  /* [n_slot]: the state whose mask is in the slot */
    bool *used;         /* [n_slot]: used since the clock hand passed */
    uint64_t *of_epoch; /* [n_slot]: the epoch of mask_of */
    uint32_t n_slot, n_word, hand;
    uint32_t *path; /* [max_depth + 1]: states on the way down the tree */
};

/* The mask of a state: a bit for each token that may come next, those that end a text excluded. Computed now
 * if it is not cached. The lock is held; valid until it is released. NULL: the automaton failed. */
const uint64_t *grammar_mask(grammar *g, uint32_t state);

#endif
