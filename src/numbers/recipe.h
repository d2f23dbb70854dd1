/* recipe.h - the names of the formats of a matrix in memory.
 *
 *     file          the file's own format, packed without rounding
 *     u4g64         a uniform format (pack_from_name): 4 bits in groups of 64; a: also a minimum
 *     u4g64h        rotated (pack_format.rotated): large inputs are spread over their block before they are
 *                   quantized, and the columns of the matrix likewise
 *     u4g64w        weighted: the same format, its scales searched for with an importance matrix
 *                   (pack_from.imatrix)
 *     u4g64+u4g64   a stack of two slices: the second is the rounding residual of the first, rounded.
 *                   The first alone is a valid matrix of its own precision; both together are their
 *                   sum. Both have groups with scales of their own, and both use an imatrix or
 *                   neither.
 *     +u4g64        the second slice of a stack, where slices are listed one by one
 */
#ifndef NIB_NUMBERS_RECIPE_H
#define NIB_NUMBERS_RECIPE_H

#include "numbers/pack.h"

enum { RECIPE_SLICES = 2 };

typedef struct recipe {
    pack_format slice[RECIPE_SLICES];
    int n_slice;       /* 0: "file" */
    bool uses_imatrix; /* w */
} recipe;

/* Parses a name. False: the name is unknown, or rows of k cannot have the format. */
bool recipe_parse(const char *name, int64_t k, recipe *out);
/* Writes the name of a slice in a list: its format, with w for an imatrix, and + before a second slice. */
void recipe_slice_name(const pack_format *f, bool uses_imatrix, bool second, char out[PACK_NAME]);
/* Whether a slice in a list is a second one (+). */
bool recipe_is_second(const char *slice_name);
/* Writes the recipe of a first and a second slice as listed (second "": none). False: it is too long. */
bool recipe_join(const char *first, const char *second, char out[PACK_NAME]);

#endif
