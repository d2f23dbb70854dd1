/* as_gguf.h - a model that was opened from a folder, in GGUF's form: the names and the order of its tensors,
 * and its configuration as metadata.
 *
 * The differences from the checkpoint follow from the architecture's descriptor: fused projections are
 * concatenated (q | k | v, gate | up), rows of q and k are reordered from halves to pairs if GGUF has the
 * family's rotary pairs adjacent, Conv1D is transposed, Gemma's norms have their 1 added, and the frequency
 * factors of Llama 3 and LongRoPE are tensors. Vectors are f32. */
#ifndef NIB_MODEL_AS_GGUF_H
#define NIB_MODEL_AS_GGUF_H

#include "base/arena.h"
#include "formats/gguf_write.h"
#include "model/model.h"

/* One tensor of such a file, and what it is made of. */
typedef struct gguf_tensor {
    container_tensor as; /* name, type, shape and bytes in that file; file -1: it has no place yet. A tensor
                            that is copied as it is has its place in the model's own file */
    int block, w;        /* the first weight that uses it: its block and index; -1: none */
    const block *ahead;  /* if none does: a block of the head that predicts later tokens (model_ahead), which
                            uses it as weight ahead_w; NULL: none */
    int ahead_w;
    type_id from;               /* the type of the pieces; differs from as.type for vectors only */
    const weight_piece *pieces; /* rows, one under the other; a vector's elements */
    int n_piece;
    bool vector;     /* the pieces give elements: of a vector, or of the biases of all experts */
    bool transposed; /* the pieces' tensors have [k, n]: pieces give columns */
    int64_t
        n_turn; /* number of heads whose rows are reordered from halves to pairs; 0: rows keep their order */
    /* Columns move too: those of output head h, `tile` each, are the input's of head h % n_tile * (heads /
     * n_tile) + h / n_tile. 0: they keep their order. */
    int64_t n_tile, tile;
    const float *row_times; /* [rows] factors of rows; NULL: none */
    bool minus_exp;         /* of a vector: the pieces have x, and the file gets -e^x */
    float add;              /* added to every element of a vector */
    const float *data;      /* instead of pieces: the values of a vector */
} gguf_tensor;

typedef struct gguf_tensors {
    gguf_tensor *all;
    size_t n;
    arena mem; /* owns what they point to */
} gguf_tensors;

/* Lists all tensors of the model's weights, block by block. For a model from a GGUF file: all tensors of the
 * file, unchanged, in its order. NIB_E_MODEL: GGUF cannot express the model. The model outlives them. */
nib_status gguf_tensors_open(const model *m, gguf_tensors *out, nib_error *err);
/* Changes the type of packed matrices to nibble's own type with fewer bits, if one exists (packed_narrow).
 * Returns the number of changed matrices. */
size_t gguf_tensors_narrow(gguf_tensors *t);
/* Whether it has rows of the weight's own tensors. */
bool gguf_tensor_is_of(const gguf_tensor *t, const weight *of);
/* Leaves out the head that predicts later tokens: of the tensors, and of the model. False: there is none. */
bool gguf_tensors_drop_ahead(gguf_tensors *t, model *m);
void gguf_tensors_close(gguf_tensors *t); /* zeroed is fine */

/* Writes the configuration as metadata, without the vocabulary. NIB_E_MODEL: a GGUF file of this family
 * cannot express one of its values. */
nib_status gguf_write_config(const model *m, gguf_writer *w, nib_error *err);

/* Compares a written model with its source: configuration, rotary frequencies, shapes. NIB_E_MODEL names the
 * difference. */
nib_status gguf_check_config(const model *m, const model *written, nib_error *err);

#endif
