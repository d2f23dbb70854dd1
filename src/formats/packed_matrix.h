/* packed_matrix.h - matrices that a checkpoint of the hub stores quantized, in a format of another project:
 * AWQ (GEMM order), GPTQ (versions 1 and 2; 2, 3, 4 and 8 bits), both also of AutoRound, compressed-tensors
 * (pack-quantized and int-quantized, float-quantized), bitsandbytes (nf4 and fp4, with or without a quantized
 * absmax), fp8 (e4m3 and e5m2, with a scale for the tensor, for each row or for blocks of both), nvfp4 (e2m1,
 * an e4m3 scale for 16 and a float for the tensor; of modelopt, which multiplies by the float, and of
 * compressed-tensors, which divides; in GGUF NAME.weight in the type NVFP4 beside the factors NAME.scale [1]
 * or [experts]), mxfp4 (matrices of compressed-tensors and quark; the experts of gpt-oss: one tensor
 * [experts, rows, cols]). The absorbed form of latent attention in GGUF files is listed in the same way:
 * blk.N.attn_kv_b.weight [heads * (plain + values), low], whose rows are columns of attn_k_b [heads, low,
 * plain] and rows of attn_v_b [heads, values, low].
 *
 * A container lists such a matrix as one tensor [rows, cols] under its unquantized name
 * ("....q_proj.weight"), with `packed` set and without a place in a file. Its parts stay listed, with
 * `source` set. Its bytes are computed here, row by row, in a type with exactly the same values: scale *
 * (code - zero) of integer forms (for files Q4_0, Q5_0 or Q8_0, whose blocks repeat the scale of a larger
 * group, for models also blocks of whole groups; F32 if f16 cannot hold a scale, or act-order gives
 * neighbours different scales), and for bitsandbytes, fp8 and nvfp4 the values rounded to the dtype that they
 * compute with (fp8 and nvfp4 as F32: not rounded). Read-only, for any thread. */
#ifndef NIB_FORMATS_PACKED_MATRIX_H
#define NIB_FORMATS_PACKED_MATRIX_H

#include "formats/container.h"

typedef enum packed_kind {
    PACKED_AWQ,
    PACKED_GPTQ,
    PACKED_ROWS,
    PACKED_INT8,
    PACKED_NF4,
    PACKED_FP8,
    PACKED_NVFP4,
    PACKED_MXFP4,
    PACKED_HEADS
} packed_kind;

typedef struct packed_matrix {
    packed_kind kind;
    int bits;
    int64_t n, k, n_group;          /* rows, columns, groups of a row */
    container_tensor codes, scales; /* PACKED_NF4: scales is absmax; PACKED_HEADS: keys and values */
    container_tensor zeros, order;  /* name NULL: there is none; order: [k], each column's group */
    bool zeros_less_one;            /* GPTQ version 1 stores zero - 1 */
    int8_t symmetric;               /* integers: 1: all zeros are half of the range; -1: not known */
    container_tensor whole; /* PACKED_NVFP4: a factor for block_rows rows, or its inverse; without `scales`
                               the codes are GGUF's blocks */
    bool whole_inverse;
    /* PACKED_NF4 */
    container_tensor map, nested_absmax, nested_map; /* nested name NULL: absmax is f32 */
    int64_t block, nested_block; /* PACKED_FP8: block columns and block_rows rows share a scale */
    int64_t block_rows;
    double nested_offset;
    type_id dtype;
} packed_matrix;

/* Codes minus zeros, with scales. */
static inline bool packed_is_integer(const packed_matrix *m) {
    return m->kind <= PACKED_INT8;
}
/* *out: the type in which a model holds it, with exactly the matrix's values: integers in S4G64, S4G128, Q4_0
 * or Q8_0, with zero points in N4G32 to N4G128, with scales that f16 cannot hold in F8G64, else F32; the
 * dtype of bitsandbytes; MXFP4; F8G64 or F4G64, F32 for what these cannot hold. Reads scales and zeros where
 * types of tensors and the configuration are not enough to know it. */
nib_status packed_runs_as(const container *c, const container_tensor *t, type_id *out, nib_error *err);
/* The type that holds the values of both of these: of matrices of one form, all experts of a layer. */
type_id packed_join(type_id a, type_id b);
/* *out: the smallest type that holds the matrix's values exactly. Reads its scales and zeros. */
nib_status packed_type(const container *c, const container_tensor *t, type_id *out, nib_error *err);
/* nibble's own type with the same values in fewer bits: n4g32, n4g64 or n4g128, for integers of up to 4 bits.
 * usual: the type of packed_type, which is returned if there is no such type. */
type_id packed_narrow(const packed_matrix *m, type_id usual);
/* Writes rows [first, first + n) to `out` in one of these types, or as F32; blocks on reads. NIB_E_MODEL: the
 * values are not exact in that type. */
nib_status packed_read(const container *c, const container_tensor *t, int64_t first, int64_t n, type_id as,
                       void *out, nib_error *err);
/* The checkpoint's quantization method ("awq"), static; NULL: no matrix is packed. */
const char *container_packed_method(const container *c);

#endif
