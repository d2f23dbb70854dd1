/* schema_class.h - converts character classes of a regular expression to GBNF over the JSON of a text.
 * Quotation marks, backslashes and control characters are written as JSON escapes. */
#ifndef NIB_GRAMMAR_SCHEMA_CLASS_H
#define NIB_GRAMMAR_SCHEMA_CLASS_H

#include "grammar/char_ranges.h"
#include "grammar/schema_parts.h"

enum { CLASS_MAX_RANGES = 512 };

typedef struct char_class {
    char_range of[CLASS_MAX_RANGES];
    size_t n;
    bool full; /* CLASS_MAX_RANGES was exceeded: some ranges are missing */
} char_class;

void char_class_add(char_class *c, uint32_t lo, uint32_t hi); /* hi < lo: nothing */
/* Adds \d, \w, \s or their complements, by the letter. False: it is none of them. */
bool char_class_add_named(char_class *c, char name);
void char_class_invert(char_class *c); /* replaces the class by its complement */
/* Writes the class as one expression in parentheses, and merges its ranges. A control character that has no
 * name in JSON is written only if the class has no plain character. False: the class has no characters. */
bool char_class_put(writer *w, char_class *c);
/* Writes one character as an expression. */
void char_put(writer *w, uint32_t c);

#endif
