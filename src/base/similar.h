/* similar.h - "did you mean ...?": the word of a list that is most similar to a misspelt one.
 *
 * The distance is that of Damerau and Levenshtein in its restricted form (optimal string alignment): letters
 * changed, added, omitted, or two neighbours swapped. Case is ignored. Plain data, no memory. */
#ifndef NIB_BASE_SIMILAR_H
#define NIB_BASE_SIMILAR_H

#include <stddef.h>

enum { SIMILAR_LONGEST = 127 }; /* bytes; longer words match nothing */

typedef struct similar {
    const char *typed;
    char best[SIMILAR_LONGEST + 1]; /* "": no word is near enough */
    size_t distance;                /* of best */
} similar;

size_t similar_distance(const char *a, const char *b); /* number of edits */

similar similar_to(const char *typed); /* typed is not copied */
/* Keeps `word` if it is closer than the kept one and close enough: at most one edit for each three typed
 * letters, with two letters unchanged; or a longer word that begins with the three or more typed letters. */
void similar_offer(similar *s, const char *word);

#endif
