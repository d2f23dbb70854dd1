/* mix.h - the number format of each tensor of a model. */
#ifndef NIB_QUANTIZE_MIX_H
#define NIB_QUANTIZE_MIX_H

#include "formats/container.h"
#include "model/as_gguf.h"

/* The meaning of a name: a format for all matrices, or a mix, in which the most sensitive matrices have more
 * bits. Names and rules are llama.cpp's (llama_tensor_get_type), so that files are comparable. */
typedef struct mix {
    type_id base, other, more, head; /* all matrices but these: value, down and output projections; value and
                                        down projections of the sensitive layers; the output head */
    int file_type;                   /* llama.cpp's number for such a file */
    bool mixed, few;                 /* few: only the first sixteenth of the layers is sensitive */
} mix;

/* The name of the file type that can store a uniform format (numbers/recipe.h), given by name[0..n_name):
 * "n4g64" for "u4g64". NULL: not a uniform format, or no file type can store it. */
const char *mix_plain_name(const char *name, size_t n_name);
/* Finds a mix by its name in any case, which may be a uniform format's; NULL: q4_k_m. False: unknown; *out is
 * unchanged. */
bool mix_find(const char *name, mix *out);
/* Replaces a type with codebooks by the same type with outliers in of_10000 of 10,000 columns. False: no such
 * type exists; *type is unchanged. */
bool mix_outliers(type_id *type, int of_10000);
/* Writes all names with commas between them to out, at least 512 bytes; returns out. */
const char *mix_names(char *out);

/* Whether a product with weight w of the block computes the logits. */
bool mix_makes_logits(const block *b, int w);

/* The first use of a tensor: as weight w of a block. */
typedef struct tensor_use {
    int block;       /* -1: in none of the model's */
    const block *at; /* this block, or one of the head that predicts later tokens; NULL: nowhere */
    int w;
    bool product; /* a product reads it; else its rows are looked up or added */
    bool head;    /* its product computes the logits */
} tensor_use;

/* Fills uses [tensors->n]. A tensor that several blocks share has the first block, and product and head of
 * all of them. */
void mix_uses(const model *m, const gguf_tensors *tensors, tensor_use *uses);

/* The output format of tensor t; its own format if it is not quantized (vectors, tables that are added).
 * *fallback: its rows are no multiple of the requested format's block, so it gets a format with blocks of 32,
 * or f16. */
type_id mix_type(const mix *x, const model *m, const container_tensor *t, const tensor_use *use,
                 bool *fallback);

#endif
