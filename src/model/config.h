/* config.h - the hyper-parameters of one model, read from its container through its family's descriptor, and
 * checked. Internal to model/. */
#ifndef NIB_MODEL_CONFIG_H
#define NIB_MODEL_CONFIG_H

#include "base/arena.h"
#include "model/arch.h"
#include "model/model.h"

typedef enum rope_kind {
    ROPE_PLAIN,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_YARN,
    ROPE_LLAMA3,
    ROPE_LONG,
    ROPE_PART
} rope_kind;

/* One set of rotary frequencies. */
typedef struct rope_params {
    rope_kind kind;
    int64_t n_rot;
    int64_t behind; /* angles are those of so many positions before the row */
    double theta;
    double factor;               /* context scaling */
    double attn_factor;          /* factor of cos and sin, computed */
    double part;                 /* ROPE_PART: the share of pairs that turn; the others stay */
    double score_factor;         /* factor of q and of k by mscale_all_dim, with A_YARN_SCORES */
    double orig_ctx;             /* context before scaling */
    double low_freq, high_freq;  /* ROPE_LLAMA3 */
    double beta_fast, beta_slow; /* ROPE_YARN */
    bool truncate;               /* ROPE_YARN: the correction range is rounded to whole dimensions */
    const float *divide; /* [n_rot / 2] or NULL: each frequency's divisor (ROPE_LONG: of short contexts) */
    const float *divide_long; /* ROPE_LONG */
} rope_params;

enum {
    LAYER_SLIDES = 1,
    LAYER_NO_ROPE = 2,
    LAYER_RECURRENT = 4,    /* the layer has the family's mixer */
    LAYER_NO_ATTENTION = 8, /* and no attention */
    LAYER_NO_FFN = 16,      /* the layer has no feed-forward part */
    LAYER_POOLED = 32,      /* rows also see entries of several positions each (compressed attention) */
    LAYER_CHOOSES = 64,     /* and choose some of them */
};

/* What may differ from layer to layer. */
typedef struct layer_shape {
    int64_t n_head, n_kv_head, d_head, d_ff;
    int64_t rec_head, rec_group, rec_inner; /* of a mixer; rec_inner of a short convolution: its channels */
    int64_t kv_layer; /* the layer whose keys and values it attends to; itself: it stores its own */
    float scale;      /* of the stream after the layer */
    float sparsity; /* standard deviations above the mean from which a neuron's gate counts; -infinity: all */
} layer_shape;

/* The parameters of xIELU as files have them: positive is softplus(alpha_p), negative is beta +
 * softplus(alpha_n). */
enum { XIELU_ALPHA_P, XIELU_ALPHA_N, XIELU_BETA, XIELU_EPS, XIELU_N };
extern const char *const xielu_names[XIELU_N]; /* "alpha_p", ...: "xielu.NAME" in GGUF */

typedef struct config {
    hparams hp;
    bool tie_said; /* the configuration says whether the head is the embedding (hp.tied_head); otherwise the
                      tensors decide */
    act_kind act;
    act_kind gate; /* of the output of recurrent layers */
    rope_style rope;
    rope_params ropes[4]; /* [0]: all layers, or those with full attention, or with entries; [1]: other
                             sliding layers; [2], [3]: the entries of layers that choose, and that do not */
    int n_rope;
    const uint8_t *layer;          /* [n_layer] of LAYER_* */
    layer_shape *shape;            /* [n_layer]; of this rank's share (share.c) */
    const float (*xielu)[XIELU_N]; /* [n_layer], as in the file, if act is ACT_XIELU; otherwise NULL */
} config;

/* The sources from which the functions below read. */
typedef struct config_source {
    const container *c;
    const arch_desc *arch;
    const char *gguf_arch; /* general.architecture; NULL: a HF folder */
    arena *mem;
} config_source;

/* Fills *out; memory comes from s->mem. NIB_E_MODEL names the key with what was expected and found. */
nib_status config_read(const config_source *s, config *out, nib_error *err);

/* --- parts --- */

/* The number under the first existing key of the list ('|' between names). Booleans are 0 or 1; an array of
 * elements that are equal, except zeros, counts as one number. "name[i]" is element i of an array, i < 10.
 * *found: 1: found, 0: missing, -1: null. */
nib_status config_number(const config_source *s, const char *names, double *out, int *found, nib_error *err);
/* The string under the first existing key of the list; NULL: none. */
const char *config_string(const config_source *s, const char *names);
/* Finds a tensor by its name in HF checkpoints, which may lack the family's prefix or have one more. NULL: it
 * is not there. */
const container_tensor *config_find_hf(const config_source *s, const char *name);
/* Makes it the configuration of that head, a model of one layer. NIB_E_MODEL: no layer is like the head's. */
nib_status config_take_ahead(const config_source *s, config *c, nib_error *err);
/* Puts the prefix of the family's head (arch_desc.hf_ahead, not NULL) in place of "model.layers.%d.". */
void config_spell_ahead(const arch_desc *arch, char *pattern, size_t size);
bool config_has_ahead(const config_source *s, int64_t n_layer);  /* a head follows these layers (ahead.c) */
bool config_has_slot(const arch_desc *arch, slot_id slot);       /* the family may have such a tensor */
const char *config_expert_keys(const config_source *s);          /* the keys of the number of experts */
bool config_condition(const config_source *s, const char *when); /* a condition of arch.h; NULL is true */

/* Read the rotary frequencies and the kind of each layer into *out. NIB_E_MODEL. */
nib_status config_read_ropes(const config_source *s, config *out, nib_error *err);
nib_status config_read_layers(const config_source *s, config *out, nib_error *err);
/* Fills the shapes of the layers. NIB_E_MODEL. */
nib_status config_read_shapes(const config_source *s, config *out, nib_error *err);
/* One number in a tensor. */
nib_status config_tensor_number(const config_source *s, const container_tensor *t, float *out,
                                nib_error *err);
/* Reads the activation function and, if it has parameters, those of each layer. NIB_E_MODEL. */
nib_status config_read_act(const config_source *s, config *out, nib_error *err);
/* HF: the number of layers by a list of their kinds; 0: there is none. */
int64_t config_n_listed(const config_source *s);
/* Marks the recurrent layers (LAYER_RECURRENT, LAYER_NO_ATTENTION) in layer [n_layer]. */
nib_status config_read_mixers(const config_source *s, const hparams *hp, uint8_t *layer, nib_error *err);
/* Check sizes that belong together (config_check.c). NIB_E_MODEL. */
nib_status config_check_mixer(mixer_kind mixer, const config *c, nib_error *err);
nib_status config_check_experts(const hparams *hp, nib_error *err);
nib_status config_check_entries(const hparams *hp, nib_error *err);
/* Refuses options that change the computation and are not supported. NIB_E_MODEL. */
nib_status config_check_supported(const config_source *s, nib_error *err);

/* The inverse of config_read for a GGUF file of the family: the key's name after "<architecture>.", and its
 * value. kind: i, f or b. False: the field has no key, or needs none. */
bool config_gguf_key(const arch_desc *arch, hp_id field, const hparams *hp, const char **name, char *kind,
                     double *value);

/* The period of layers with full attention that a GGUF file of the family implies; 0: none. */
int64_t config_gguf_pattern(const arch_desc *arch);

/* Copies the next name of a '|' list to name[size] and advances *list; false at the end. A longer name is cut
 * and therefore matches nothing. */
bool list_next(const char **list, char *name, size_t size);

/* Inverse frequencies [n_rot / 2] and the factor for cos and sin for a pass of `length` positions. */
void rope_frequencies(const rope_params *r, int64_t n_ctx_train, int64_t length, float *inv_freq,
                      float *factor);

#endif
