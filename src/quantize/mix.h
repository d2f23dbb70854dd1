/* mix.h - the number format of each tensor of a model. */
#ifndef NIB_QUANTIZE_MIX_H
#define NIB_QUANTIZE_MIX_H

#include "formats/container.h"
#include "model/as_gguf.h"

/* What a name stands for: a format for all matrices, or a mix, in which the matrices that lose most have more
 * bits. */
typedef struct mix {
    type_id base, other, more, head; /* all; value, down and output projections; the first two of some layers;
                                        the output head */
    int file_type;                   /* llama.cpp's number for such a file */
    bool mixed, few;                 /* few: `more` in the first sixteenth of the layers alone */
} mix;

/* NULL: q4_k_m. False: no such name. */
bool mix_find(const char *name, mix *out);
/* Rows with code books and so many outliers of 10,000 columns instead of none; *type stays where there is no
 * such type, which is false. */
bool mix_outliers(type_id *type, int of_10000);
/* All names with commas between them; out holds at least 512 bytes. */
const char *mix_names(char *out);

/* Where a tensor of the model's files is used: by weight w of block b first. */
typedef struct tensor_use {
    int block, w; /* -1: nowhere */
    bool product; /* multiplied with; else looked up or added */
    bool head;    /* makes the logits */
} tensor_use;

/* Of each tensor of a file: uses[tensors->n]. */
void mix_uses(const model *m, const gguf_tensors *tensors, tensor_use *uses);

/* The format of tensor t; its own where it is not quantized (vectors, tables that are added). *fallback: its
 * rows are no multiple of the wanted one's blocks. */
type_id mix_type(const mix *x, const model *m, const container_tensor *t, const tensor_use *use,
                 bool *fallback);

#endif
