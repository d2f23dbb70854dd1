/* pack_round.h - rounds values to the codes of a uniform format, to nearest. Groups with f16 scales of their
 * own get the best scale of a few (pack_scale.h). Used by pack.c only. */
#ifndef NIB_NUMBERS_PACK_ROUND_H
#define NIB_NUMBERS_PACK_ROUND_H

#include "numbers/pack_isa.h"

/* The loops of `by` without the search: a group's scale reaches its largest value. */
pack_rounder pack_round_plainly(const pack_rounder *by);

/* Values [at, at + n) of a row of k in file_type, to out [n] in f32, transformed if f is rotated. They are
 * one chunk of the row (PACK_CHUNK), which has whole blocks of the transform. */
void pack_round_values(const pack_rounder *by, const pack_format *f, type_id file_type, const void *row,
                       int64_t k, int64_t at, float *out, int64_t n);

/* What all groups of a row share: the scale and the minimum of PACK_GROUP_ROW, or the first level of
 * PACK_SCALE_TWO. */
typedef struct pack_whole {
    uint16_t scale, min; /* halves */
} pack_whole;

/* Computes it from the whole row (k elements of file_type). values: scratch of 256 floats. Formats whose
 * groups share nothing give zeros. */
pack_whole pack_round_whole(const pack_rounder *by, const pack_format *f, type_id file_type, const void *row,
                            int64_t k, float *values);

/* Rounds len values (one chunk of a row, at most 256) to one code a byte, and writes the scales of their
 * groups to the chunk's scales, for row r of the panel. A group with a NaN or an infinity gets a NaN as its
 * scale. imatrix: pack_from.imatrix from the chunk's first column on, or NULL. */
void pack_round_chunk(const pack_rounder *by, const pack_format *f, const float *values, const float *imatrix,
                      int len, const pack_whole *whole, uint8_t *codes, uint8_t *scales, int r);
/* Subtracts from the values what pack_round_chunk would round them to. What remains is the second slice's. */
void pack_round_leave(const pack_rounder *by, const pack_format *f, float *values, const float *imatrix,
                      int len);
/* Writes what the groups of row r share to the panel's tail (tile.h). */
void pack_round_tail(const pack_format *f, const pack_whole *whole, uint8_t *tail, int r);

#endif
