/* work.h - bounds the work of a tokenizer for one text. Its steps and its vocabulary come from a file, so a
 * stage whose cost is more than a small multiple of the text's length charges its work first, and ends with
 * NIB_E_MODEL if it exceeds the bound for a text of that length. The bounds are far above the work of
 * published tokenizers (the comments say how far), and small enough that a megabyte ends within seconds for
 * every file. */
#ifndef NIB_TOKENIZER_WORK_H
#define NIB_TOKENIZER_WORK_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    /* Units of work for a byte of the text, and for any text. A unit takes a few nanoseconds: a comparison in
       a sorted list, or a character that a regular expression consumes. Published tokenizers take fewer than
       200 units a byte, and fewer than 450 for texts of U+FDFA, the character that normalisation extends
       most. */
    WORK_UNITS = 1024,
    WORK_UNITS_FREE = 16 << 20,
    /* Factor by which one step may extend a text, and additional bytes for any text. NFKC with a sign for
       each space extends a text at most 13 times (U+FDFA). */
    WORK_GROWTH = 16,
    WORK_GROWTH_FREE = 4096
};

typedef struct text_work { /* the bound of one call */
    size_t n_byte;         /* of the text */
    uint64_t left;         /* units that are left */
} text_work;

static inline text_work work_of(size_t n_byte) {
    return (text_work){n_byte, (uint64_t)n_byte * WORK_UNITS + WORK_UNITS_FREE};
}

/* Maximum bytes that a step may write for a text of n_byte bytes. */
static inline size_t work_growth(size_t n_byte) {
    return n_byte * WORK_GROWTH + WORK_GROWTH_FREE;
}

/* Charges units of work; false: fewer are left. */
static inline bool work_take(text_work *w, uint64_t units) {
    const bool enough = units <= w->left;
    w->left = enough ? w->left - units : 0;
    return enough;
}

/* Returns NIB_E_MODEL for a stage (who) that has used up its units. */
nib_status work_over(const text_work *w, const char *who, nib_error *err);

/* Prefixes an error with the file's step that failed, counted from 1: "normalizer 2 (Replace)". Only for
 * NIB_E_MODEL, which is the file's fault. */
nib_status work_fail_in(nib_status status, const char *what, size_t i, const char *name, nib_error *err);

#endif
