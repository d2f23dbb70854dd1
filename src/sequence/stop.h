/* stop.h - stop strings in a text that arrives piece by piece. */
#ifndef NIB_SEQUENCE_STOP_H
#define NIB_SEQUENCE_STOP_H

#include <stdbool.h>
#include <stddef.h>

typedef struct stop_list {
    const char *const *strings; /* none of them empty */
    size_t n;
} stop_list;

/* Offset of the first stop string that is wholly in text[from..n); SIZE_MAX: none. The caller knows that none
 * begins before `from`. */
size_t stop_find(const stop_list *stop, const char *text, size_t from, size_t n);

/* Number of bytes at the end of text[from..n) that may still become a stop string and must not be shown yet.
 * Never cuts a UTF-8 character. */
size_t stop_held(const stop_list *stop, const char *text, size_t from, size_t n);

#endif
