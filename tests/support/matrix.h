/* matrix.h - random matrices in any number format, packed, for tests and benchmarks. */
#ifndef NIB_TESTS_MATRIX_H
#define NIB_TESTS_MATRIX_H

#include "guard.h"
#include "numbers/pack.h"

uint64_t random_next(uint64_t *state);                    /* xorshift64*; state must not be 0 */
float random_float(uint64_t *state);                      /* uniform in -1..1 */
float *random_rows(int64_t n, uint64_t seed, float size); /* n floats in -size..size; free() */

typedef enum matrix_kind {
    MATRIX_RANDOM,  /* random codes, ordinary scales */
    MATRIX_LARGEST, /* all codes and scales as large as they can be */
    MATRIX_ZERO,    /* random codes, scales zero */
    MATRIX_TINY,    /* random codes, subnormal scales */
    MATRIX_UNIT     /* random codes, scales one (and minima) */
} matrix_kind;

typedef struct matrix {
    type_id type;
    int64_t n, k;
    uint8_t *raw; /* n rows as in a file */
    size_t raw_row_bytes;
    guarded packed; /* pack_bytes(), read-only */
    view view;
    int act_bits; /* bits of the activations that it is multiplied with; 8 unless changed */
} matrix;

matrix matrix_open(type_id type, int64_t n, int64_t k, matrix_kind kind, uint64_t seed);
/* A uniform format by its name, "u4g128a" (pack_from_name), made from floats. */
matrix matrix_open_uniform(const char *name, int64_t n, int64_t k, matrix_kind kind, uint64_t seed);
/* The same codes of a file type's matrix in the planes packing. */
matrix matrix_open_planes(type_id type, int64_t n, int64_t k, matrix_kind kind, uint64_t seed);
/* The same in the format that pack_widen makes of it. */
matrix matrix_open_wide(type_id type, int64_t n, int64_t k, matrix_kind kind, uint64_t seed);
void matrix_close(matrix *m);
/* Row r by the file type's own dequantizer; for a uniform format by its codes. */
void matrix_row(const matrix *m, int64_t r, float *out);

#endif
