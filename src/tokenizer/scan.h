/* scan.h - hand-written matchers for the regular expressions of common vocabularies. They are lists of a few
 * dozen alternatives ("'s|'t", " ?\p{L}+", "\s+(?!\S)", ...), so a pattern whose alternatives are all known
 * becomes a list of small matchers, several times faster than a regex engine and never more than linear. */
#ifndef NIB_TOKENIZER_SCAN_H
#define NIB_TOKENIZER_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCAN_PARTS 16
typedef struct scan_rule {
    uint8_t part[SCAN_PARTS];
    int n;
} scan_rule;

bool scan_compile(const char *pattern, size_t n_byte, scan_rule *out); /* false: not of a known shape */

/* The last scanned run of spaces. It is valid for every position within the run. */
typedef struct scan_spaces {
    const char *stop;    /* its end */
    const char *newline; /* the end of the last newline in it, or NULL */
    const char *last;    /* the last of the spaces */
} scan_spaces;

/* The length of the match at p (valid UTF-8 up to end, p < end); 0: none there. Nothing before p matters.
 * *seen is zeroed first, and kept between calls at increasing positions of one text. */
size_t scan_match(const scan_rule *rule, const char *p, const char *end, scan_spaces *seen);

#endif
