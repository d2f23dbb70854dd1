/* split.h - the pre-tokenizer: cuts a normalised text into the pieces that the model encodes one by one. A
 * list of steps, each of which cuts the pieces of the one before it; made when the tokenizer opens, then
 * read-only. */
#ifndef NIB_TOKENIZER_SPLIT_H
#define NIB_TOKENIZER_SPLIT_H

#include "tokenizer/normalize.h"
#include "tokenizer/regex.h"
#include "tokenizer/scan.h"

/* X(kind, its common name in tokenizer.json) */
#define SPLIT_KINDS(X)                                                                                       \
    X(RULE, "Split")          /* a regular expression of a well-known shape (scan.h) */                      \
    X(REGEX, "Split")         /* any other */                                                                \
    X(STRING, "Split")        /* a plain string */                                                           \
    X(CLASS, "Split")         /* runs (or single characters) of some classes */                              \
    X(LINE_END, "Split")      /* \s+$ on a text without newlines; as a regular expression it is quadratic */ \
    X(THREES, "Split")        /* (?=(\d{3})+(?!\d)), likewise: threes of digits, from the right */           \
    X(WORDS, "Whitespace")    /* words, and runs of neither word characters nor spaces; removes spaces */    \
    X(PREFIX, "ByteLevel")    /* no cut: adds a leading space if there is none */                            \
    X(METASPACE, "Metaspace") /* spaces become a sign, one may be put in front, cut before each */

typedef enum split_kind {
#define SPLIT_X(id, name) SPLIT_##id,
    SPLIT_KINDS(SPLIT_X)
#undef SPLIT_X
} split_kind;

/* The treatment of matches, named as in the `tokenizers` library. */
typedef enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS
} split_behavior;

typedef enum split_prepend { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } split_prepend;

typedef struct split_step {
    split_kind kind;
    split_behavior behavior;
    bool invert; /* matches and gaps change roles */
    scan_rule rule;
    regex *pattern;
    char *string; /* SPLIT_STRING, SPLIT_METASPACE's sign; owned */
    size_t n_string;
    unsigned classes;      /* SPLIT_CLASS: unicode_class bits */
    bool single;           /* SPLIT_CLASS: each character is a match of its own */
    bool ascii_punct;      /* SPLIT_CLASS: $+<=>^`|~ count as UNI_PUNCT */
    split_prepend prepend; /* SPLIT_METASPACE */
    bool cut;              /* SPLIT_METASPACE: cuts before each sign */
} split_step;

#define SPLIT_STEPS 16
typedef struct splitter {
    split_step step[SPLIT_STEPS];
    size_t n_step;
} splitter;

/* Appends a step, zeroed except its kind and SPLIT_ISOLATED. NIB_E_MODEL: too many steps. */
nib_status splitter_add(splitter *z, split_kind kind, split_step **out, nib_error *err);
/* Appends a step for a regular expression: a scan rule if its shape is known, else PCRE2. NIB_E_MODEL: the
 * pattern is not supported. */
nib_status splitter_add_regex(splitter *z, const char *pattern, size_t n_byte, split_behavior behavior,
                              bool invert, nib_error *err);
/* Appends the steps that tokenizer.ggml.pre names; *known false: an unknown name. */
nib_status splitter_add_named(splitter *z, const char *name, bool *known, nib_error *err);
/* Whether no step needs valid UTF-8. */
bool splitter_takes_bytes(const splitter *z);
void splitter_deinit(splitter *z);
size_t splitter_heap_bytes(const splitter *z);

typedef struct split_scratch { /* working memory for the pieces of one text */
    regex_run run;
    text_buffer text[SPLIT_STEPS];
    size_t left[SPLIT_STEPS]; /* bytes that a step may still write */
} split_scratch;
void split_scratch_init(split_scratch *s, text_work *work);
void split_scratch_deinit(split_scratch *s);

/* Calls take(user, piece) for each piece in order, none of them empty. `first`: the text begins where the
 * whole input begins. NIB_E_MODEL names the step that exceeds the bounds on growth or work (work.h).
 */
typedef nib_status (*split_take)(void *user, const char *piece, size_t n_byte, nib_error *err);
nib_status splitter_run(const splitter *z, split_scratch *s, const char *text, size_t n_byte, bool first,
                        split_take take, void *user, nib_error *err);

#endif
