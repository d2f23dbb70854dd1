/* decimal.c - see decimal.h. */
#include "grammar/decimal.h"

#include "base/num.h"

#include <string.h>

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static size_t count_digits(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && is_digit(text[i]))
        i++;
    return i;
}

size_t decimal_length(const char *text, size_t n) {
    size_t i = n > 0 && text[0] == '-', k = count_digits(text + i, n - i);
    if (k == 0 || (k > 1 && text[i] == '0'))
        return 0;
    i += k;
    if (i < n && text[i] == '.') {
        k = count_digits(text + i + 1, n - i - 1);
        if (k == 0)
            return 0;
        i += 1 + k;
    }
    if (i < n && (text[i] == 'e' || text[i] == 'E')) {
        const size_t sign = i + 1 < n && (text[i + 1] == '-' || text[i + 1] == '+');
        k = count_digits(text + i + 1 + sign, n - i - 1 - sign);
        if (k == 0)
            return 0;
        i += 1 + sign + k;
    }
    return i;
}

/* The exponent after 'e', bounded: beyond that a number is as good as zero or endless. */
static int64_t read_exponent(const char *at) {
    const int64_t most = 1000000000;
    const bool negative = *at == '-';
    int64_t e = 0;
    for (at += *at == '-' || *at == '+'; is_digit(*at); at++)
        e = NUM_MIN(e * 10 + (*at - '0'), most);
    return negative ? -e : e;
}

bool decimal_read(const char *number, decimal *out) {
    const char *at = number;
    bool fraction = false;
    *out = (decimal){.negative = *at == '-'};
    for (at += out->negative; is_digit(*at) || *at == '.'; at++) {
        if (*at == '.') {
            fraction = true;
        } else if (out->n == 0 && *at == '0') {
            out->point -= fraction;
        } else {
            if (out->n < DECIMAL_DIGITS)
                out->digits[out->n] = *at;
            else if (*at != '0')
                return false;
            out->n += out->n < DECIMAL_DIGITS;
            out->point += !fraction;
        }
    }
    if (*at)
        out->point += read_exponent(at + 1);
    while (out->n > 0 && out->digits[out->n - 1] == '0')
        out->n--;
    out->digits[out->n] = 0;
    if (out->n == 0)
        *out = (decimal){0};
    return true;
}

/* Without the signs. */
static int compare_size(const decimal *a, const decimal *b) {
    if (a->n == 0 || b->n == 0)
        return (a->n > 0) - (b->n > 0);
    if (a->point != b->point)
        return a->point < b->point ? -1 : 1;
    return strcmp(a->digits, b->digits);
}

int decimal_compare(const decimal *a, const decimal *b) {
    if (a->negative != b->negative)
        return a->negative ? -1 : 1;
    return a->negative ? compare_size(b, a) : compare_size(a, b);
}

bool decimal_is_whole(const decimal *d) {
    return d->point >= (int64_t)d->n;
}

bool decimal_count(const decimal *d, int64_t *out) {
    int64_t x = 0;
    if (d->negative || !decimal_is_whole(d))
        return false;
    for (int64_t i = 0; i < d->point && x < INT64_MAX; i++) {
        const int64_t digit = (size_t)i < d->n ? d->digits[i] - '0' : 0;
        x = x > (INT64_MAX - digit) / 10 ? INT64_MAX : x * 10 + digit;
    }
    *out = x;
    return true;
}
