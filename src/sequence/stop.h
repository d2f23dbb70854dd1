/* stop.h - stop strings in a text that arrives piece by piece. */
#ifndef NIB_SEQUENCE_STOP_H
#define NIB_SEQUENCE_STOP_H

#include <stdbool.h>
#include <stddef.h>

typedef struct stop_list {
    const char *const *strings; /* none of them empty */
    size_t n;
} stop_list;

/* The first place in text[from..n) where a stop string begins and ends; SIZE_MAX: none. No stop string begins
 * before `from`. */
size_t stop_find(const stop_list *stop, const char *text, size_t from, size_t n);

/* Bytes at the end of text[from..n) that may still become a stop string: they are not to be shown yet. Never
 * cuts a UTF-8 character. */
size_t stop_held(const stop_list *stop, const char *text, size_t from, size_t n);

#endif
