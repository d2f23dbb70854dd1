/* stop.c - see stop.h. */
#include "sequence/stop.h"

#include "base/num.h"

#include <string.h>

size_t stop_find(const stop_list *stop, const char *text, size_t from, size_t n) {
    size_t first = SIZE_MAX;
    for (size_t i = 0; i < stop->n; i++) {
        size_t length = strlen(stop->strings[i]);
        const char *at = n - from >= length ? memmem(text + from, n - from, stop->strings[i], length) : NULL;
        if (at)
            first = NUM_MIN(first, (size_t)(at - text));
    }
    return first;
}

size_t stop_held(const stop_list *stop, const char *text, size_t from, size_t n) {
    size_t held = 0;
    for (size_t i = 0; i < stop->n; i++) {
        size_t length = strlen(stop->strings[i]);
        for (size_t k = NUM_MIN(length - 1, n - from); k > held; k--)
            if (memcmp(text + n - k, stop->strings[i], k) == 0)
                held = k;
    }
    while (held > 0 && held < n - from && ((unsigned char)text[n - held] & 0xc0) == 0x80)
        held++;
    return held;
}
