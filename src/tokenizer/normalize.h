/* normalize.h - the normalizer: Unicode normal forms, replacements, prefixes, the character maps that
 * SentencePiece compiles into a model. A list of steps, made when the tokenizer opens, read-only afterwards.
 */
#ifndef NIB_TOKENIZER_NORMALIZE_H
#define NIB_TOKENIZER_NORMALIZE_H

#include "tokenizer/charsmap.h"
#include "tokenizer/regex.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/work.h"

/* X(kind, name in tokenizer.json, units of work a byte) */
#define NORMAL_KINDS(X)                                                                                      \
    X(NFC, "NFC", 8)                                                                                         \
    X(NFD, "NFD", 8)                                                                                         \
    X(NFKC, "NFKC", 8)                                                                                       \
    X(NFKD, "NFKD", 8)                                                                                       \
    X(LOWERCASE, "Lowercase", 4)                                                                             \
    X(STRIP, "Strip", 1)                 /* left, right: removes white space */                              \
    X(STRIP_ACCENTS, "StripAccents", 4)  /* removes marks */                                                 \
    X(REPLACE, "Replace", 1)             /* from (or regex) -> to */                                         \
    X(PREPEND, "Prepend", 1)             /* `to`, unless the text is empty */                                \
    X(CHARSMAP, "Precompiled", 8)        /* as the `tokenizers` library applies it: by grapheme */           \
    X(SENTENCEPIECE, "SentencePiece", 8) /* longest match, spaces joined, U+2581 for a space */

typedef enum normal_kind {
#define NORMAL_X(id, name, units) NORMAL_##id,
    NORMAL_KINDS(NORMAL_X)
#undef NORMAL_X
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

/* Appends a step, zeroed except its kind. NIB_E_MODEL: too many steps. */
nib_status normalizer_add(normalizer *z, normal_kind kind, normal_step **out, nib_error *err);
void normalizer_deinit(normalizer *z);

/* Whether no step needs valid UTF-8. */
bool normalizer_takes_bytes(const normalizer *z);
typedef struct normal_scratch { /* working memory for the sections of one text */
    text_buffer buffer[2];
    regex_run run;
    size_t left[NORMAL_STEPS]; /* bytes that a step may still write */
} normal_scratch;
void normal_scratch_init(normal_scratch *s, text_work *work);
void normal_scratch_deinit(normal_scratch *s);

/* Runs all steps. *text and *n_byte: valid UTF-8; the result is in one of the two buffers, or is the
 * unchanged input. NIB_E_MODEL names the step that exceeds the bounds on growth or work. */
nib_status normalizer_run(const normalizer *z, normal_scratch *s, const char **text, size_t *n_byte,
                          nib_error *err);

/* Appends to a buffer. NIB_E_MODEL: more than *b->left bytes. */
nib_status text_append(text_buffer *b, const char *text, size_t n_byte, nib_error *err);

#endif
