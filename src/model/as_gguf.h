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
    container_tensor as; /* name, type, shape and bytes in that file; nowhere yet (file -1) unless it is a
                            tensor of the model's own file as it stands */
    int block, w;        /* the first weight that is made of it; -1: none */
    type_id from;        /* the type of the pieces; `as.type` otherwise only for vectors */
    const weight_piece *pieces; /* rows, one under the other; a vector's elements */
    int n_piece;
    bool transposed;   /* the pieces' tensors have [k, n]: pieces give columns */
    int64_t n_turn;    /* heads whose rows go from halves to pairs; 0: rows stay where they are */
    float add;         /* to every element of a vector */
    const float *data; /* instead of pieces: the values of a vector */
} gguf_tensor;

typedef struct gguf_tensors {
    gguf_tensor *all;
    size_t n;
    arena mem; /* what they point to */
} gguf_tensors;

/* All tensors that the model's weights are made of, block by block. Of a model from a GGUF file: all of the
 * file's, as they are, in its order. NIB_E_MODEL: GGUF cannot say it. The model outlives them. */
nib_status gguf_tensors_open(const model *m, gguf_tensors *out, nib_error *err);
/* Matrices that the checkpoint packs get the type of nibble's own that holds them in fewer bits, where there
 * is one (packed_narrow); how many. */
size_t gguf_tensors_narrow(gguf_tensors *t);
void gguf_tensors_close(gguf_tensors *t); /* zeroed is fine */

/* The model's numbers, as metadata; not the vocabulary. NIB_E_MODEL: a GGUF file of this family cannot say
 * one of them. */
nib_status gguf_write_config(const model *m, gguf_writer *w, nib_error *err);

/* NIB_E_MODEL names what differs between the two: numbers, rotary frequencies, shapes. For what was written
 * against what was read. */
nib_status gguf_check_config(const model *m, const model *written, nib_error *err);

#endif
