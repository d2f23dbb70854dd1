/* key_set.h - the keys of a batch file's lines, with flags for each. A key is stored as a hash of 125 bits
 * with a secret seed: the probability that two of a billion keys have the same one is below 1e-19. */
#ifndef NIB_CLI_KEY_SET_H
#define NIB_CLI_KEY_SET_H

#include "nib.h"

enum { KEY_DONE = 1 /* its answer is in the output */, KEY_SEEN = 2 /* the input had it in this run */ };

typedef struct key_set {
    uint64_t (*slots)[2]; /* [cap]; zero: free. The flags are in the low bits */
    size_t cap, n;
    uint64_t seed;
    bool fixed; /* it does not grow */
} key_set;

/* Bytes of a set of n keys. */
uint64_t key_set_bytes(uint64_t n);
/* Makes an empty set with memory for n keys; fixed: it never grows. False: out of memory. */
bool key_set_open(key_set *s, uint64_t n, bool fixed);
void key_set_close(key_set *s);
/* The flags of the key text [n_byte] of a kind; keys of different kinds differ. */
unsigned key_set_flags(const key_set *s, char kind, const char *text, size_t n_byte);
/* Adds flags to a key. False: out of memory, or the set is full. */
bool key_set_add(key_set *s, char kind, const char *text, size_t n_byte, unsigned flags);

#endif
