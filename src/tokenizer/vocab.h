/* vocab.h - the tokens' texts and flags, and the map from a text to its id, in compact tables: 4 bytes a
 * token for the place of its text, 1 for its flags, 6 to 8 for the hash, and the texts once. Built by one
 * thread, then read-only. */
#ifndef NIB_TOKENIZER_VOCAB_H
#define NIB_TOKENIZER_VOCAB_H

#include "base/status.h"

#define MAX_VOCAB (1 << 20) /* ids have 22 bits in the hash; the largest published vocabulary has 19 */

enum {
    VOCAB_CONTROL = 1, /* special: printed and parsed only on request */
    VOCAB_ADDED = 2,   /* found in the text before any other step (user-defined or special) */
    VOCAB_UNKNOWN = 4,
    VOCAB_BYTE = 8,    /* "<0x41>" */
    VOCAB_LSTRIP = 16, /* LSTRIP, RSTRIP: strips the white space before, after it */
    VOCAB_RSTRIP = 32,
    VOCAB_WORD = 64,       /* matches only if it is not part of a longer word */
    VOCAB_NORMALIZED = 128 /* found in the normalised text */
};

typedef struct vocab {
    char *blob; /* for each token: its length in 2 bytes, then its text */
    size_t n_blob, cap_blob;
    uint32_t *offset; /* [n] into blob; VOCAB_HOLE: no token has this id */
    uint8_t *flags;   /* [n] */
    int32_t n;
    int32_t n_model; /* ids from here on are added tokens, which the model does not produce; n if unknown */
    uint32_t *slot;  /* [n_slot]: 10 bits of the hash, 22 bits of id + 1; 0 is free */
    uint32_t mask;
    uint64_t seed; /* of the hash */
} vocab;
#define VOCAB_HOLE UINT32_MAX

/* Allocates n ids without tokens. text_bytes: estimated length of all texts. */
nib_status vocab_init(vocab *v, int64_t n, size_t text_bytes, nib_error *err);
void vocab_deinit(vocab *v);
/* Sets the text of a token; of two ids with the same text vocab_find returns the later one. NIB_E_MODEL: id
 * >= n, or it has a text. */
nib_status vocab_set(vocab *v, int32_t id, const char *text, size_t n_byte, nib_error *err);
int32_t vocab_find(const vocab *v, const char *text, size_t n_byte); /* -1: none */
/* As vocab_find, among the model's own tokens. */
static inline int32_t vocab_find_model(const vocab *v, const char *text, size_t n_byte) {
    int32_t id = vocab_find(v, text, n_byte);
    return id < v->n_model ? id : -1;
}
const char *vocab_text(const vocab *v, int32_t id, size_t *n_byte); /* NULL: no such token */
int vocab_byte_value(const char *text, size_t n_byte);              /* "<0x41>" -> 65, else -1 */
size_t vocab_heap_bytes(const vocab *v);
uint64_t vocab_bytes(uint64_t n, uint64_t text_bytes); /* memory for n tokens with this much text */

#endif
