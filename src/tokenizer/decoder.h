/* decoder.h - the steps that convert a token's piece back to text: a list that is made when the tokenizer
 * opens. */
#ifndef NIB_TOKENIZER_DECODER_H
#define NIB_TOKENIZER_DECODER_H

#include "tokenizer/tokenizer.h"

/* X(kind, name in tokenizer.json) */
#define DECODE_KINDS(X)                                                                                      \
    X(BYTE_LEVEL, "ByteLevel")       /* the byte alphabet back to bytes */                                   \
    X(BYTE_FALLBACK, "ByteFallback") /* "<0x41>" is a byte */                                                \
    X(REPLACE, "Replace")            /* from -> to, in each token */                                         \
    X(METASPACE, "Metaspace")        /* from -> a space; in the first token -> nothing where `first` */      \
    X(STRIP, "Strip") /* from, a character, `start` times at the front and `stop` times at the back: of each \
                         token, or of the whole text behind a fuse (front only) */                           \
    X(FUSE, "Fuse")

typedef enum decode_kind {
#define DECODE_X(id, name) DECODE_##id,
    DECODE_KINDS(DECODE_X)
#undef DECODE_X
} decode_kind;

typedef struct decode_step {
    decode_kind kind;
    char *from, *to; /* owned */
    size_t n_from, n_to;
    bool first;
    int64_t start, stop;
} decode_step;

#define DECODE_STEPS 16
typedef struct decoder {
    decode_step step[DECODE_STEPS];
    size_t n_step;
    bool join_with_spaces; /* the tokenizer has no decoder: tokens are joined with spaces */
    bool raw_added;        /* steps do not change added tokens */
} decoder;

/* Appends a step, zeroed except its kind; the caller sets its fields. NIB_E_MODEL: too many steps. */
nib_status decoder_add(decoder *d, decode_kind kind, decode_step **out, nib_error *err);
nib_status decoder_add_replace(decoder *d, const char *from, const char *to, nib_error *err);
void decoder_deinit(decoder *d);

#endif
