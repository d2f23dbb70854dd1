/* key_set.h - the keys of a batch file's lines, with a flag and a value for each. A key is stored as a hash
 * of 126 bits with a secret seed: the probability that two of a billion keys have the same one is below
 * 1e-19. */
#ifndef NIB_SERVER_KEY_SET_H
#define NIB_SERVER_KEY_SET_H

#include "nib.h"

typedef struct key_set {
    uint64_t (*slots)[3]; /* [cap] hash and value; zero: free. The flag is in the lowest bit */
    size_t cap, n;
    uint64_t seed;
    bool fixed; /* it does not grow */
} key_set;

/* Bytes of a set of n keys. */
uint64_t key_set_bytes(uint64_t n);
/* Makes an empty set with memory for n keys; fixed: it never grows. False: out of memory. */
bool key_set_open(key_set *s, uint64_t n, bool fixed);
void key_set_close(key_set *s);
/* The value of the key text [n_byte] of a kind, 0: none. *seen: its flag is set. Keys of different kinds
 * differ.
 */
uint64_t key_set_value(const key_set *s, char kind, const char *text, size_t n_byte, bool *seen);
/* Sets a key's value, or its flag. False: out of memory, or the set is full. */
bool key_set_put(key_set *s, char kind, const char *text, size_t n_byte, uint64_t value);
bool key_set_see(key_set *s, char kind, const char *text, size_t n_byte);

#endif
