/* normalize.h - what is done to a text before it is cut: Unicode normal forms, replacements, prefixes, the
 * character maps that SentencePiece compiles into a model. A list of steps, made when the tokenizer opens,
 * read-only afterwards. */
#ifndef NIB_TEXT_NORMALIZE_H
#define NIB_TEXT_NORMALIZE_H

#include "text/charsmap.h"
#include "text/regex.h"
#include "text/tokenizer.h"

typedef enum normal_kind {
    NORMAL_NFC,
    NORMAL_NFD,
    NORMAL_NFKC,
    NORMAL_NFKD,
    NORMAL_LOWERCASE,
    NORMAL_STRIP,         /* left, right: white space goes */
    NORMAL_STRIP_ACCENTS, /* marks go */
    NORMAL_REPLACE,       /* from (or regex) -> to */
    NORMAL_PREPEND,       /* `to`, unless the text is empty */
    NORMAL_CHARSMAP,      /* as the `tokenizers` library applies it: by grapheme */
    NORMAL_SENTENCEPIECE  /* as SentencePiece does it: longest match, spaces joined, U+2581 for a space */
} normal_kind;

typedef struct normal_step {
    normal_kind kind;
    bool left,
        right; /* NORMAL_STRIP; NORMAL_SENTENCEPIECE: left = add a space in front, right = join spaces */
    char *from, *to; /* owned */
    size_t n_from, n_to;
    regex *pattern; /* NULL: from is plain text */
    charsmap *map;  /* NULL: none */
} normal_step;

#define NORMAL_STEPS 16
typedef struct normalizer {
    normal_step step[NORMAL_STEPS];
    size_t n_step;
} normalizer;

/* A new step at the end, zeroed but for its kind; NIB_E_MODEL when there are too many. */
nib_status normalizer_add(normalizer *z, normal_kind kind, normal_step **out, nib_error *err);
void normalizer_deinit(normalizer *z);

/* True when no step needs valid UTF-8. */
bool normalizer_takes_bytes(const normalizer *z);
/* *text and *n_byte: valid UTF-8 in, valid UTF-8 out, in one of the two buffers (or still the input). */
nib_status normalizer_run(const normalizer *z, text_buffer buffer[2], const char **text, size_t *n_byte,
                          nib_error *err);

nib_status text_append(text_buffer *b, const char *text, size_t n_byte, nib_error *err);

#endif
