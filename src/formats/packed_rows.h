/* packed_rows.h - a run of rows of a packed matrix (packed_matrix.h). Shared by the files that read it. */
#ifndef NIB_FORMATS_PACKED_ROWS_H
#define NIB_FORMATS_PACKED_ROWS_H

#include "formats/packed_matrix.h"

/* Rows [first, first + n) while they are read. Arrays are owned by the caller. */
typedef struct packed_rows {
    const container *c;
    const container_tensor *t;
    const packed_matrix *m;
    int64_t first, n;
    float *scale;   /* [n, n_group] */
    int16_t *zero;  /* [n, n_group] */
    int32_t *order; /* [k]: each column's group; NULL: groups are runs of columns */
    uint8_t *raw;   /* bytes as read from the file */
} packed_rows;

/* Reads n_byte bytes of one of its tensors, from byte `at`; NIB_E_MODEL: it has fewer. */
nib_status packed_read_part(const packed_rows *r, const container_tensor *t, uint64_t at, void *out,
                            uint64_t n_byte, nib_error *err);
/* Scale i of raw scales of this type. */
float packed_scale_at(type_id type, const uint8_t *raw, int64_t i);

/* Computes the rows in F32, F16 or BF16; reads c, t, m, first and n of r. */
nib_status packed_read_nf4(const packed_rows *r, type_id as, uint8_t *out, nib_error *err);
/* As MXFP4 or F32. */
nib_status packed_read_mxfp4(const packed_rows *r, type_id as, uint8_t *out, nib_error *err);
/* As F32. */
nib_status packed_read_heads(const packed_rows *r, float *out, nib_error *err);
nib_status packed_read_fp8(const packed_rows *r, type_id as, uint8_t *out, nib_error *err);
nib_status packed_read_nvfp4(const packed_rows *r, type_id as, uint8_t *out, nib_error *err);

#endif
