/* decimal.h - exact decimal numbers of any size, as JSON writes them. */
#ifndef NIB_GRAMMAR_DECIMAL_H
#define NIB_GRAMMAR_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DECIMAL_DIGITS = 1024 };

/* (-1)^negative * 0.DIGITS * 10^point. The digits neither begin nor end with zeros; zero has none, and no
 * sign. */
typedef struct decimal {
    bool negative;
    int64_t point;
    size_t n;
    char digits[DECIMAL_DIGITS + 1];
} decimal;

/* The length of the JSON number at the beginning of the text; 0: there is none. */
size_t decimal_length(const char *text, size_t n_byte);
/* Reads a JSON number. False: it has more than DECIMAL_DIGITS significant digits. */
bool decimal_read(const char *number, decimal *out);
int decimal_compare(const decimal *a, const decimal *b); /* below, at or above 0 */
bool decimal_is_whole(const decimal *d);
/* A whole number that is not negative; beyond INT64_MAX: INT64_MAX. False: it is none. */
bool decimal_count(const decimal *d, int64_t *out);

#endif
