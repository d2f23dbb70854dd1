/* shapes.h - the shapes of known models: the table, and the tensors of a model of a shape. */
#ifndef NIB_SYNTH_SHAPES_H
#define NIB_SYNTH_SHAPES_H

#include <stdbool.h>
#include <stdint.h>

typedef enum synth_family {
    SYNTH_LLAMA,
    SYNTH_QWEN2,
    SYNTH_PHI3,
    SYNTH_OPT,
    SYNTH_QWEN3MOE,
    SYNTH_QWEN35MOE,
    SYNTH_GPTOSS,
    SYNTH_GLM4MOE,
    SYNTH_DEEPSEEK2,
    SYNTH_GEMMA4,
    SYNTH_LFM2MOE,
    SYNTH_GRANITE
} synth_family;
typedef enum synth_part { SYNTH_EMBED, SYNTH_LAYER, SYNTH_HEAD, SYNTH_UNTIED } synth_part;

typedef struct synth_shape {
    const char *name;
    synth_family family;
    int64_t n_layer, d_model, n_head, n_kv_head, d_head, d_ff, n_vocab, n_ctx;
    float rope_theta; /* 0: learned positions */
    float norm_eps;
    bool tied;                       /* the output head is the embedding */
    int64_t n_expert, n_expert_used; /* of mixtures, each of width d_ff; 0: dense */
    int64_t n_dense, d_dense;        /* layers before the first mixture; their width, or that of dense layers
                                        beside mixtures */
    int64_t d_shared;                /* width of the shared expert */
    int64_t full_every;              /* every so many layers one has full attention; 0: all */
    const char *full;                /* instead: a letter for each layer, F for full attention */
    int64_t window;                  /* of the other layers, if they are not recurrent */
    int64_t d_head_full, n_kv_full;  /* heads of full layers, if they differ */
    int64_t q_rank, kv_rank, d_turned, d_value;                 /* latent attention */
    int64_t rec_inner, rec_head, rec_group, rec_state, rec_tap; /* recurrent layers */
} synth_shape;

extern const synth_shape synth_shapes[];
extern const int synth_n_shape;
const synth_shape *synth_find(const char *name); /* letter case ignored; NULL: unknown */

/* What a tensor is for routing (synth/routing.h). */
typedef enum synth_role {
    SYNTH_OTHER,
    SYNTH_EMBEDDING,
    SYNTH_ROUTER,
    SYNTH_WRITES, /* its rows are columns of the residual stream */
    SYNTH_BIAS,   /* its columns are */
    SYNTH_OUTPUT
} synth_role;

typedef struct synth_tensor {
    char name[64];
    int64_t layer; /* of tensors of a layer */
    int64_t rows, cols;
    synth_role role;  /* of dense models SYNTH_OTHER */
    int64_t n_expert; /* so many matrices; 0: one */
    bool vector;      /* [cols] in f32 */
    bool exact;       /* a matrix in f32 */
    bool norm;        /* values around 1 */
    bool negative;    /* values around -1: decays */
} synth_tensor;

bool synth_is_full(const synth_shape *s, int64_t layer); /* the layer attends to all positions */
/* Calls fn for every tensor, in file order. If fn returns false, stops and returns false. */
typedef bool (*synth_tensor_fn)(void *user, const synth_tensor *t);
bool synth_each_tensor(const synth_shape *s, int64_t n_layer, synth_tensor_fn fn, void *user);

#endif
