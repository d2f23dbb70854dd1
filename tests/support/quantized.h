/* quantized.h - a small model and its file in a smaller format, for tests of `quantize`. */
#ifndef NIB_TESTS_QUANTIZED_H
#define NIB_TESTS_QUANTIZED_H

#include "formats/container.h"
#include "nib_tools.h"
#include "support/tinymodel.h"

#include <stddef.h>

/* Paths of the original, of the result, and of what an unfinished run leaves. */
extern struct small_paths { char model[512], out[512], part[600], log[600]; } small;

/* Makes the original, of two layers, whose matrices have rows of 256 and 288, and removes the other files. */
void small_choose(void);
/* Quantizes small.model; o NULL: engine_usual(). */
nib_status small_make(const nib_quantize_options *q, const nib_engine_options *o, nib_quantize_report *r,
                      nib_error *err);
/* The same with the usual options; fails the test on an error, or if an unfinished file stays. */
void small_must_make(const nib_quantize_options *q, nib_quantize_report *r);
/* The contents of a file; mem_free() them. */
char *small_read(const char *path, size_t *n);
/* The values of a tensor, row by row; free() them. Fails the test if there is none. */
float *small_values(const container *c, const char *name, int64_t *n);
/* relative_error of a tensor's values in b. */
double small_distance(const container *a, const container *b, const char *name);

#endif
