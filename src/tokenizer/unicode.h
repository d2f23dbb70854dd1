/* unicode.h - UTF-8, the character classes in the rules of vocabularies, and the byte alphabet of byte-level
 * vocabularies. Pure functions over read-only tables: any thread. */
#ifndef NIB_TOKENIZER_UNICODE_H
#define NIB_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    UNI_LETTER = 1,  /* \p{L} */
    UNI_NUMBER = 2,  /* \p{N} */
    UNI_SPACE = 4,   /* \s: the property White_Space */
    UNI_MARK = 8,    /* \p{M} */
    UNI_PUNCT = 16,  /* \p{P} */
    UNI_SYMBOL = 32, /* \p{S} */
    UNI_DIGIT = 64,  /* \p{Nd} */
    UNI_WORD = 128   /* \w: letters, marks, decimal digits, letter numbers, connectors, circled letters */
};

unsigned unicode_class_wide(uint32_t c); /* any character */
extern const uint8_t unicode_class_ascii[128];
static inline unsigned unicode_class(uint32_t c) {
    return c < 128 ? unicode_class_ascii[c] : unicode_class_wide(c);
}

/* \w as in Rust's regex crate: includes the two joiners. */
static inline bool unicode_is_word(uint32_t c) {
    return unicode_class(c) & UNI_WORD || c == 0x200C || c == 0x200D;
}
/* The i-th range of characters that may be newer than the libraries' Unicode version. Returns its category;
 * -1: no more. */
int unicode_new_range(size_t i, uint32_t *first, uint32_t *last);

/* The next character of VALID UTF-8 at *p; moves *p past it. */
static inline uint32_t utf8_next(const char **p) {
    const unsigned char *s = (const unsigned char *)*p;
    if (s[0] < 0x80) {
        *p += 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *p += 2;
        return (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
    }
    if (s[0] < 0xF0) {
        *p += 3;
        return (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
    }
    *p += 4;
    return (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
}
/* Bytes of the character that a lead byte begins; 1 for a byte that does not begin one. */
static inline size_t utf8_length(unsigned char lead) {
    return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}
/* Bytes of the valid character at s[0..n); 0: invalid (surrogate, overlong, or cut off). */
size_t utf8_check(const char *s, size_t n);
/* As utf8_check, but checks only the pattern of bytes, like llama.cpp: accepts surrogates, overlong forms and
 * code points above U+10FFFF. *c: the code point. */
size_t utf8_check_shape(const char *s, size_t n, uint32_t *c);
/* Number of bytes of s[0..n) that form one damaged character (1..3), which a decoder replaces by one U+FFFD.
 */
size_t utf8_damaged(const char *s, size_t n);
/* Whether s[0..n), n < 4, can be the beginning of a character. */
bool utf8_unfinished(const char *s, size_t n);
size_t utf8_valid_prefix(const char *s, size_t n); /* length of the longest valid prefix */
size_t utf8_put(uint32_t c, char out[4]);          /* bytes written; c is a scalar value */

/* The alphabet of byte-level vocabularies: printable Latin-1 bytes represent themselves, the others are
 * mapped to U+0100.. (Radford et al. 2019, the published GPT-2 vocabulary). */
uint32_t byte_to_char(unsigned char b);
int char_to_byte(uint32_t c); /* -1: not in the alphabet */

#endif
