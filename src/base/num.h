/* num.h - checked arithmetic and sizes. Inputs from files go through these. */
#ifndef NIB_BASE_NUM_H
#define NIB_BASE_NUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NUM_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define NUM_MAX(a, b)    ((a) > (b) ? (a) : (b))
#define NUM_COUNT(array) (sizeof(array) / sizeof((array)[0]))

static inline bool num_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline bool num_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
/* yes ? a : b without a branch, so that compilers vectorize loops over it. */
static inline float num_either(bool yes, float a, float b) {
    const int32_t mask = -(int32_t)yes;
    int32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    x = (x & mask) | (y & ~mask);
    memcpy(&a, &x, sizeof a);
    return a;
}
/* The value of the n hexadecimal digits that text begins with, n at most 8; -1: it has fewer. */
static inline int64_t num_hex(const char *text, int n) {
    int64_t value = 0;
    for (; n > 0; n--, text++) {
        const char c = *text;
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')))
            return -1;
        value = value * 16 + (c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return value;
}
/* a is 0 or more; no overflow. */
static inline int64_t num_div_up(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}
static inline int64_t num_round_up(int64_t a, int64_t to) {
    return num_div_up(a, to) * to;
}

/* "512M", "2G", "1.5GiB", "100000", "auto" -> bytes (auto: UINT64_MAX). K M G T are powers of 1024, with or
 * without iB; kB MB GB TB are powers of 1000. False when it is not a size. */
bool num_parse_size(const char *text, uint64_t *bytes);
/* 138412032 -> "132.0 MiB"; out holds at least 32 bytes; returns out. */
const char *num_format_size(uint64_t bytes, char *out);
/* The same for a cap that works: shows a little more than `bytes`, rounded up, because a process's memory at
 * its start varies by up to 0.9 MiB from run to run. */
const char *num_format_cap(uint64_t bytes, char *out);
/* A number for people, with at most this many significant digits (at most 15) and neither exponent nor
 * trailing zeros: 1180, 0.05, 0.00013. All digits before the point are written (below 10^21); a value below
 * 10^-9 is 0. The decimal point does not depend on the locale. The returned text is valid in this thread
 * until the eighth call after this one. */
const char *num_text(double x, int digits);

#endif
