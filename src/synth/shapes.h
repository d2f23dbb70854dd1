/* shapes.h - the shapes of known models: the table, and the tensors of a model of a shape. */
#ifndef NIB_SYNTH_SHAPES_H
#define NIB_SYNTH_SHAPES_H

#include <stdbool.h>
#include <stdint.h>

typedef enum synth_family { SYNTH_LLAMA, SYNTH_QWEN2, SYNTH_PHI3, SYNTH_OPT, SYNTH_QWEN3MOE } synth_family;
typedef enum synth_part { SYNTH_EMBED, SYNTH_LAYER, SYNTH_HEAD, SYNTH_UNTIED } synth_part;

typedef struct synth_shape {
    const char *name;
    synth_family family;
    int64_t n_layer, d_model, n_head, n_kv_head, d_head, d_ff, n_vocab, n_ctx;
    float rope_theta; /* 0: learned positions */
    float norm_eps;
    bool tied;                       /* the output head is the embedding */
    int64_t n_expert, n_expert_used; /* of every layer, each of width d_ff; 0: dense */
} synth_shape;

extern const synth_shape synth_shapes[];
extern const int synth_n_shape;
const synth_shape *synth_find(const char *name); /* letter case ignored; NULL: unknown */

typedef struct synth_tensor {
    char name[64];
    int64_t rows, cols;
    int64_t n_expert; /* so many matrices; 0: one */
    bool vector;      /* [cols] in f32 */
    bool router;      /* a matrix in f32 */
    bool norm;        /* values around 1 */
} synth_tensor;

/* Calls fn for every tensor, in file order. If fn returns false, stops and returns false. */
typedef bool (*synth_tensor_fn)(void *user, const synth_tensor *t);
bool synth_each_tensor(const synth_shape *s, int64_t n_layer, synth_tensor_fn fn, void *user);

#endif
