/* similar.c - see similar.h. */
#include "base/similar.h"

#include "base/num.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static int lower(char c) {
    return tolower((unsigned char)c);
}

size_t similar_distance(const char *a, const char *b) {
    const size_t n = strlen(a), m = strlen(b);
    if (n > SIMILAR_LONGEST || m > SIMILAR_LONGEST)
        return SIMILAR_LONGEST + 1;
    size_t rows[3][SIMILAR_LONGEST + 1]; /* the row before the last one, the last one, this one */
    size_t *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= m; j++)
        last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            const bool same = lower(a[i - 1]) == lower(b[j - 1]);
            row[j] = NUM_MIN(NUM_MIN(last[j], row[j - 1]) + 1, last[j - 1] + !same);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]))
                row[j] = NUM_MIN(row[j], before[j - 2] + 1);
        }
        size_t *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[m];
}

similar similar_to(const char *typed) {
    return (similar){.typed = typed, .distance = SIMILAR_LONGEST + 1};
}

void similar_offer(similar *s, const char *word) {
    const size_t n = strlen(s->typed);
    size_t distance = similar_distance(s->typed, word);
    if (n >= 3 && distance <= SIMILAR_LONGEST && !strncasecmp(word, s->typed, n))
        distance = NUM_MIN(distance, 1);
    if (distance > NUM_MAX(n / 3, 1) || distance + 1 >= n || distance >= s->distance)
        return;
    s->distance = distance;
    snprintf(s->best, sizeof s->best, "%s", word);
}
