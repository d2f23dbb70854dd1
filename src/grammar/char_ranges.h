/* char_ranges.h - sets of code points as ranges. */
#ifndef NIB_GRAMMAR_CHAR_RANGES_H
#define NIB_GRAMMAR_CHAR_RANGES_H

#include <stddef.h>
#include <stdint.h>

enum { CHAR_LAST = 0x10ffff, CHAR_FIRST_SURROGATE = 0xd800, CHAR_LAST_SURROGATE = 0xdfff };

typedef struct char_range {
    uint32_t lo, hi; /* lo <= hi */
} char_range;

/* Sorts n ranges in place and joins those that overlap or touch; returns their new number. */
size_t char_ranges_merge(char_range *ranges, size_t n);
/* Writes the complement of n merged ranges to out [n + 1]; returns the number of its ranges. */
size_t char_ranges_gaps(const char_range *ranges, size_t n, char_range *out);

#endif
