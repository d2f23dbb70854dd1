/* arch.h - the descriptor of a family of models, one file in src/arch/ each. Data only: no functions, and no
 * switch on the family elsewhere.
 *
 * The build finds `const arch_desc arch_NAME` in src/arch/NAME.c. It lists the family's slots and tensor
 * names, the configuration keys that differ from the common table (model/config.c), and a few flags.
 * Everything else follows from the tensors of a model: an existing bias is added, an existing optional norm
 * becomes an op, and a missing output head is the embedding.
 *
 * Lists in strings are separated by '|' and tried in order. A condition is "key=default", the HF
 * configuration's boolean `key` with the value of its configuration class when the key is missing; '!'
 * negates, '&' joins: "multi_query=true", "!alibi=false&new_decoder_architecture=false". In a GGUF file a
 * condition has the defaults. "key==text" is the condition that the key has this text; false in a GGUF file.
 */
#ifndef NIB_MODEL_ARCH_H
#define NIB_MODEL_ARCH_H

#include "model/program.h"

#include <stddef.h>

/* Table rows omit fields that are zero. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

typedef enum slot_id {
#define SLOT(id, name, gguf) SLOT_##id,
#include "model/slots.def"
#undef SLOT
    SLOT_COUNT
} slot_id;

/* Names of the fields in hparams.def: HP_n_layer, HP_norm_eps, ... */
typedef enum hp_id {
#define HP_I(field, meaning) HP_##field,
#define HP_F(field, meaning) HP_##field,
#define HP_B(field, meaning) HP_##field,
#include "model/hparams.def"
#undef HP_I
#undef HP_F
#undef HP_B
    HP_COUNT
} hp_id;

/* --- tensors ------------------------------------------------------------------------------------- */

enum {
    T_OPTIONAL = 1, /* may be absent; then its op is omitted */
    T_OPT_PARALLEL =
        2,             /* may be absent when hparams.parallel: the feed-forward layer then shares attn_norm */
    T_BIAS = 4,        /* must have a bias (otherwise a bias is optional) */
    T_TRANSPOSED = 8,  /* the HF tensor is [inputs, outputs]: GPT-2's Conv1D */
    T_PLAIN_NORM = 16, /* a norm without weights: an op without a tensor */
    T_ROW_NORM = 32,   /* q_norm/k_norm over the whole row instead of each head */
    T_PER_HEAD = 64,   /* HF has one tensor for each head: the name has a second %d */
    T_BARE = 128,      /* the names are whole: no ".weight" follows */
    T_MINUS_EXP = 256, /* HF has log(-x) of the vector that GGUF has (A_log) */
    T_AS_IS = 512,     /* A_NORM_PLUS_1 does not apply */
    T_NO_BIAS = 2048,  /* NAME.bias is another slot's tensor */
    T_UNUSED = 1024    /* the tensor may be there; no computation that is supported needs it */
};

/* How a fused tensor's rows are ordered in HF checkpoints (GGUF: always ROWS_CONCAT). */
typedef enum row_order {
    ROWS_CONCAT,  /* q | k | v, gate | up */
    ROWS_GROUPED, /* for each kv head: its query heads, k, v (Falcon, InternLM2; GPT-NeoX, BLOOM: n_kv_head =
                     n_head) */
    ROWS_SWAPPED, /* up | gate */
    ROWS_PAIRED   /* gate and up alternate (the experts of gpt-oss) */
} row_order;

/* One slot. A fused tensor (SLOT_QKV, SLOT_GATE_UP) serves q, k, v or gate, up where those have no tensor of
 * their own; a family may list both when the two formats differ. A slot may have several rows with
 * conditions. */
typedef struct arch_tensor {
    slot_id slot;
    const char *hf;   /* names without ".weight"; %d: layer; NULL: not in HF checkpoints */
    unsigned flags;   /* T_* */
    row_order order;  /* of a fused tensor */
    const char *gguf; /* NULL: slots.def's name; "": not in GGUF files */
    const char *when; /* condition; NULL: always */
} arch_tensor;
#define ARCH_TENSORS(...) ((const arch_tensor[]){__VA_ARGS__, {.slot = SLOT_COUNT}})

/* --- configuration ------------------------------------------------------------------------------- */

typedef enum key_form {
    KEY_PLAIN,
    KEY_RSQRT,  /* the field is 1 / sqrt(value): query_pre_attn_scalar */
    KEY_INVERSE /* the field is 1 / value: Granite's logits_scaling */
} key_form;

enum {
    K_DEFAULT = 1,      /* `value` when an HF configuration lacks the key */
    K_DEFAULT_GGUF = 2, /* `value` when a GGUF file lacks it */
    K_CONST = 4,        /* always `value`; no key is read */
    K_LETTERS = 8       /* the key may have letters instead of a number, which config_layers.c reads */
};

/* The source of one field if it differs from the common table. The first row of a field whose condition holds
 * applies; the name NULL means the common table's, "" no key. Values are those of the key (before form). A
 * boolean key read into a number field gives 0 or 1. */
typedef struct arch_key {
    hp_id field;
    const char *hf;
    unsigned flags; /* K_* */
    double value;
    key_form form;
    const char *gguf; /* after "<architecture>." */
    const char *when; /* condition; NULL: always */
    /* HF: the number of rows, or columns, of this tensor instead of a key: widths that a configuration gives
     * before rounding, or as products of others. %d: of the first layer that has it. */
    const char *hf_rows, *hf_columns;
} arch_key;
#define ARCH_KEYS(...) ((const arch_key[]){__VA_ARGS__, {.field = HP_COUNT}})

/* HF keys that change the computation, with their supported values: any other value is an error. Values as
 * text: "true", "0", "gelu"; "a|b". A missing key or null passes. */
typedef struct arch_only {
    const char *key;
    const char *values;
} arch_only;
#define ARCH_ONLY(...) ((const arch_only[]){__VA_ARGS__, {0}})

/* --- the family ---------------------------------------------------------------------------------- */

enum {
    A_NORM_PLUS_1 = 1, /* safetensors hold norm weights minus one (Gemma); GGUF has the 1 added */
    A_EMBED_SQRT = 2,  /* the embedding is multiplied by sqrt(d_model) */
    A_NOPE_FULL = 4,   /* layers that do not slide have no rotary embedding (Cohere 2) */
    A_NO_ROPE = 8, /* learned positions, ALiBi or none. (ALiBi switches rotary embedding off by itself.) */
    A_ALIBI_SCALED = 16,         /* the ALiBi bias is scaled as q.k is (Falcon-RW) */
    A_NOPE_WINDOWED = 32,        /* A_NOPE_FULL only applies to models with a window (EXAONE 4) */
    A_NORM_AFTER_ROPE = 128,     /* norms of q and k come after the rotation (Hunyuan) */
    A_LAYER_SCALE = 1 << 16,     /* a factor of the stream after each layer, in a tensor (Gemma 4) */
    A_VALUES_ARE_KEYS = 1 << 17, /* a layer may have no v: its values are its keys (Gemma 4) */
    A_LAST_FULL = 1 << 18,       /* the last layer does not slide, whatever the configuration says */
    A_YARN_SCORES = 512,         /* context scaling's mscale_all_dim also scales scores (DeepSeek V2) */
    A_ROPE_ALPHA = 256, /* "dynamic" scaling with a key "alpha" is a larger base for all lengths (Hunyuan) */
    A_AHEAD_SLIDES = 1 << 10, /* the layer of the head that predicts later tokens slides */
    A_AHEAD_FULL = 1 << 11,   /* it does not */
    A_LOCAL_PLAIN = 64,       /* sliding layers have the same rotary base without context scaling (OLMo 3) */
    A_BAKED_GGUF = 1 << 14,   /* GGUF has the factors of activations in the rows of the weights (Falcon-H1) */
    A_NOPE_NAMED =
        1 << 13, /* position_embedding_type "nope": no rotary embedding; GGUF: rope.scaling.finetuned */
    A_TILED_GGUF = 1 << 12, /* GGUF has the delta net's heads in another order: head h has q and k of h % n */
    A_WEIGHTED_INPUT = 1 << 21, /* an expert's weight multiplies its input (Llama 4) */
    A_KV_DOUBLED = 1 << 22,     /* layers that slide have twice the KV heads of the others (MiMo) */
    A_CHUNKED = 1 << 23,        /* a row of a layer that slides sees its own chunk of the window (Llama 4) */
    A_NOPE_BARE = 1 << 24, /* only layers without rotary embedding scale queries by their position, from 1 on,
                              and lack norms after the rotation (Llama 4) */
    A_DENSE_ROPE = 1 << 27,    /* A_NOPE_FULL does not apply to dense layers before the first mixture, and the
                                  period of full layers begins after them (Cohere 2 with experts) */
    A_GATE_SOFTPLUS = 1 << 26, /* attention's gate is a softplus, of each head or of each of its columns */
    A_YARN_EXACT = 1 << 25,    /* YaRN's correction range is not rounded; GGUF has no key for it (gpt-oss) */
    A_YARN_BARE =
        1 << 29, /* YaRN does not scale cos and sin, unless attention_factor says so (DeepSeek V4) */
    A_ROPE_GIVEN = 1 << 28, /* config.json gives the rotary embedding: the family's own default scales it */
};

/* The mixer of a family's recurrent layers. */
typedef enum mixer_kind {
    MIXER_NONE,
    MIXER_CONV,  /* gated short convolution (LFM2) */
    MIXER_SSD,   /* Mamba-2 */
    MIXER_SCAN,  /* Mamba-1 */
    MIXER_DELTA, /* gated delta net */
    MIXER_KDA,   /* the same with a decay for each channel of a key (Kimi) */
    MIXER_COUNT
} mixer_kind;
/* Which layers are recurrent. */
typedef enum mixer_layers {
    MIXER_LISTED, /* those that the configuration lists; the others have attention. GGUF: 0 KV heads */
    MIXER_EVERY,  /* the same, but GGUF has the period of the others */
    MIXER_ALL,    /* all; none has attention */
    MIXER_SINGLE, /* as MIXER_LISTED, but a layer has one sub-layer: a mixer, attention or a feed-forward
                     layer */
    MIXER_BESIDE  /* all, beside attention with the same input */
} mixer_layers;

typedef struct arch_desc {
    const char *name;     /* as in messages and `nibble info`; the file's name */
    const char *gguf;     /* general.architecture; NULL: not in GGUF under a name of its own. Of families that
                             share one, the first in the alphabet reads the files of all */
    const char *hf;       /* model_type */
    const char *hf_class; /* entries of `architectures`, used if model_type is unknown; may be NULL */
    const char *hf_base;  /* prefix of tensor names that checkpoints of the bare model lack: "model." */
    /* HF: the prefix of the names of the layer of a head that predicts later tokens, in place of
     * "model.layers.%d."; %d: 0, also in names of its other tensors. NULL: it is the layer after the others.
     */
    const char *hf_ahead;
    norm_kind norm;
    act_kind act;       /* when the configuration does not name one */
    const char *hf_act; /* key that names it; NULL: the usual ones, "": none (always `act`) */
    rope_style rope_hf;
    const char *rope_half; /* condition: an HF checkpoint has ROPE_HALF instead; NULL: never */
    rope_style rope_gguf;  /* Llama's converter permutes q and k so that pairs are adjacent */
    unsigned flags;        /* A_* */
    mixer_kind mixer;
    mixer_layers mixer_layers;
    int64_t
        scale_width_layers; /* GGUF: with this many layers attn_scale is 1/sqrt(d_model / n_head); 0: never */
    const arch_tensor *tensors;
    const arch_key *keys;  /* NULL: as the common table */
    const arch_only *only; /* NULL: none */
} arch_desc;

/* Generated by the build from src/arch/; NULL after the last. */
extern const arch_desc *const arch_registry[];

/* Rows that many families share: the names that Llama gave and its followers kept. */
#define ARCH_LLAMA_EMBED                                                                                     \
    {SLOT_EMBED, "model.embed_tokens"}, {                                                                    \
        SLOT_ROPE_FREQS, NULL, T_OPTIONAL                                                                    \
    }
#define ARCH_LLAMA_HEAD                                                                                      \
    {SLOT_OUT_NORM, "model.norm"}, {                                                                         \
        SLOT_HEAD, "lm_head"                                                                                 \
    }
#define ARCH_LLAMA_QKVO                                                                                      \
    {SLOT_Q, "model.layers.%d.self_attn.q_proj"}, {SLOT_K, "model.layers.%d.self_attn.k_proj"},              \
        {SLOT_V, "model.layers.%d.self_attn.v_proj"}, {                                                      \
        SLOT_O, "model.layers.%d.self_attn.o_proj"                                                           \
    }
#define ARCH_SINKS                                                                                           \
    { SLOT_SINKS, "model.layers.%d.self_attn.sinks", T_OPTIONAL }
#define ARCH_LATENT_ATTENTION                                                                                \
    {SLOT_Q, "model.layers.%d.self_attn.q_proj"}, {SLOT_Q_A, "model.layers.%d.self_attn.q_a_proj"},          \
        {SLOT_Q_A_NORM, "model.layers.%d.self_attn.q_a_layernorm"},                                          \
        {SLOT_Q_B, "model.layers.%d.self_attn.q_b_proj"},                                                    \
        {SLOT_KV_A, "model.layers.%d.self_attn.kv_a_proj_with_mqa"},                                         \
        {SLOT_KV_A_NORM, "model.layers.%d.self_attn.kv_a_layernorm"},                                        \
        {SLOT_KV_B, "model.layers.%d.self_attn.kv_b_proj"}, {                                                \
        SLOT_O, "model.layers.%d.self_attn.o_proj"                                                           \
    }
#define ARCH_PER_LAYER_EMBEDDING                                                                             \
    {SLOT_PLE_TABLE, "model.embed_tokens_per_layer"}, {SLOT_PLE_IN, "model.per_layer_model_projection"},     \
        {SLOT_PLE_IN_NORM, "model.per_layer_projection_norm"},                                               \
        {SLOT_PLE_GATE, "model.layers.%d.per_layer_input_gate"},                                             \
        {SLOT_PLE_OUT, "model.layers.%d.per_layer_projection"}, {                                            \
        SLOT_PLE_NORM, "model.layers.%d.post_per_layer_input_norm"                                           \
    }
#define ARCH_LATENT_KEYS                                                                                     \
    {HP_kv_low_rank, .hf = "kv_lora_rank", .flags = K_DEFAULT, .value = 512,                                 \
     .gguf = "attention.kv_lora_rank"},                                                                      \
        {HP_n_rot, .hf = "qk_rope_head_dim", .flags = K_DEFAULT, .value = 64},                               \
        {HP_d_plain, .hf = "qk_nope_head_dim", .flags = K_DEFAULT, .value = 128, .gguf = ""},                \
        {HP_d_value, .hf = "v_head_dim", .flags = K_DEFAULT, .value = 128,                                   \
         .gguf = "attention.value_length"},                                                                  \
        {HP_d_head, .hf = ""}, {HP_attn_scale, .hf = "", .gguf = ""}, {                                      \
        HP_low_rank_eps, .flags = K_CONST, .value = 1e-6                                                     \
    }
#define ARCH_LLAMA_MLP                                                                                       \
    {SLOT_GATE, "model.layers.%d.mlp.gate_proj"}, {SLOT_UP, "model.layers.%d.mlp.up_proj"}, {                \
        SLOT_DOWN, "model.layers.%d.mlp.down_proj"                                                           \
    }
/* The experts of a layer under `at`; names of their matrices as in Llama's feed-forward layer. */
#define ARCH_EXPERTS(at)                                                                                     \
    {SLOT_GATE_EXPS, at "experts.%d.gate_proj|" at "experts.gate_proj"},                                     \
        {SLOT_UP_EXPS, at "experts.%d.up_proj|" at "experts.up_proj"},                                       \
        {SLOT_GATE_UP_EXPS, at "experts.gate_up_proj"}, {                                                    \
        SLOT_DOWN_EXPS, at "experts.%d.down_proj|" at "experts.down_proj"                                    \
    }
#define ARCH_SHARED_EXPERT(at)                                                                               \
    {SLOT_GATE_SHEXP, at "gate_proj"}, {SLOT_UP_SHEXP, at "up_proj"}, {                                      \
        SLOT_DOWN_SHEXP, at "down_proj"                                                                      \
    }
/* A layer of a GGUF file of a dense family that may be a mixture. */
#define ARCH_EXPERTS_GGUF                                                                                    \
    {SLOT_ROUTER}, {SLOT_GATE_EXPS, .gguf = "blk.%d.ffn_gate_exps|blk.%d.ffn_gate.%d"},                      \
        {SLOT_UP_EXPS, .gguf = "blk.%d.ffn_up_exps|blk.%d.ffn_up.%d"}, {                                     \
        SLOT_DOWN_EXPS, .gguf = "blk.%d.ffn_down_exps|blk.%d.ffn_down.%d"                                    \
    }
/* The head that predicts later tokens, a layer after the others (model/ahead.c). */
#define ARCH_AHEAD                                                                                           \
    {SLOT_AHEAD_EMBED, "model.layers.%d.embed_tokens", T_OPTIONAL},                                          \
        {SLOT_AHEAD_EMBED_NORM, "model.layers.%d.enorm"}, {SLOT_AHEAD_STATE_NORM, "model.layers.%d.hnorm"},  \
        {SLOT_AHEAD_IN, "model.layers.%d.eh_proj"},                                                          \
        {SLOT_AHEAD_OUT_NORM, "model.layers.%d.shared_head.norm", T_OPTIONAL}, {                             \
        SLOT_AHEAD_HEAD, "model.layers.%d.shared_head.head", T_OPTIONAL                                      \
    }
/* The same under a prefix of its own (arch_desc.hf_ahead). */
#define ARCH_AHEAD_APART                                                                                     \
    {SLOT_AHEAD_EMBED, "mtp.embed_tokens", T_OPTIONAL},                                                      \
        {SLOT_AHEAD_EMBED_NORM, "mtp.pre_fc_norm_embedding"},                                                \
        {SLOT_AHEAD_STATE_NORM, "mtp.pre_fc_norm_hidden"}, {SLOT_AHEAD_IN, "mtp.fc"},                        \
        {SLOT_AHEAD_OUT_NORM, "mtp.norm", T_OPTIONAL}, {                                                     \
        SLOT_AHEAD_HEAD, "", T_OPTIONAL                                                                      \
    }
/* Layers of DeepSeek V2 and V3: latent attention; dense layers, then mixtures with a shared expert. */
#define ARCH_DEEPSEEK                                                                                        \
    ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LATENT_ATTENTION, ARCH_LLAMA_MLP,                               \
        {SLOT_ROUTER, "model.layers.%d.mlp.gate"},                                                           \
        {SLOT_CHOICE_BIAS, "model.layers.%d.mlp.gate.e_score_correction_bias", T_OPTIONAL},                  \
        ARCH_EXPERTS("model.layers.%d.mlp."), ARCH_SHARED_EXPERT("model.layers.%d.mlp.shared_experts."),     \
        ARCH_LLAMA_HEAD, ARCH_AHEAD
/* LFM2, with and without experts. */
#define ARCH_LFM2                                                                                            \
    ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.operator_norm"},                                     \
        {SLOT_REC_IN, "model.layers.%d.conv.in_proj", .gguf = "blk.%d.shortconv.in_proj"},                   \
        {SLOT_REC_CONV, "model.layers.%d.conv.conv", .gguf = "blk.%d.shortconv.conv"},                       \
        {SLOT_REC_OUT, "model.layers.%d.conv.out_proj", .gguf = "blk.%d.shortconv.out_proj"},                \
        {SLOT_Q, "model.layers.%d.self_attn.q_proj"}, {SLOT_K, "model.layers.%d.self_attn.k_proj"},          \
        {SLOT_V, "model.layers.%d.self_attn.v_proj"}, {SLOT_O, "model.layers.%d.self_attn.out_proj"},        \
        {SLOT_Q_NORM, "model.layers.%d.self_attn.q_layernorm"},                                              \
        {SLOT_K_NORM, "model.layers.%d.self_attn.k_layernorm"}, {SLOT_FFN_NORM, "model.layers.%d.ffn_norm"}, \
        {SLOT_GATE, "model.layers.%d.feed_forward.w1"}, {SLOT_UP, "model.layers.%d.feed_forward.w3"}, {      \
        SLOT_DOWN, "model.layers.%d.feed_forward.w2"                                                         \
    }
#define ARCH_LFM2_HEAD                                                                                       \
    {SLOT_OUT_NORM, "model.embedding_norm", .gguf = "token_embd_norm|output_norm"}, {                        \
        SLOT_HEAD, "lm_head"                                                                                 \
    }
#define ARCH_LFM2_KEYS                                                                                       \
    {HP_rec_tap, .hf = "conv_L_cache", .gguf = "shortconv.l_cache", .flags = K_DEFAULT, .value = 3},         \
        {HP_norm_eps, .hf = "norm_eps|block_norm_eps", .flags = K_DEFAULT, .value = 1e-5},                   \
        {HP_rope_theta, .flags = K_DEFAULT, .value = 1000000},                                               \
        {HP_n_kv_head, .flags = K_DEFAULT, .value = 8},                                                      \
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 128000}, {                                             \
        HP_tied_head, .hf = "tie_word_embeddings|tie_embedding", .flags = K_DEFAULT, .value = 1              \
    }
/* Qwen3-Next and Qwen3.5. */
#define ARCH_QWEN_DELTA                                                                                      \
    {SLOT_REC_CONV, "model.layers.%d.linear_attn.conv1d"},                                                   \
        {SLOT_REC_DT_BIAS, "model.layers.%d.linear_attn.dt_bias", T_BARE},                                   \
        {SLOT_REC_A, "model.layers.%d.linear_attn.A_log", T_BARE | T_MINUS_EXP},                             \
        {SLOT_REC_NORM, "model.layers.%d.linear_attn.norm", T_AS_IS}, {                                      \
        SLOT_REC_OUT, "model.layers.%d.linear_attn.out_proj"                                                 \
    }
#define ARCH_QWEN_DELTA_IN                                                                                   \
    {SLOT_REC_X, "model.layers.%d.linear_attn.in_proj_qkv", .gguf = "blk.%d.attn_qkv"},                      \
        {SLOT_REC_Z, "model.layers.%d.linear_attn.in_proj_z", .gguf = "blk.%d.attn_gate"},                   \
        {SLOT_REC_BETA, "model.layers.%d.linear_attn.in_proj_b", .gguf = "blk.%d.ssm_beta"}, {               \
        SLOT_REC_DT, "model.layers.%d.linear_attn.in_proj_a", .gguf = "blk.%d.ssm_alpha"                     \
    }
#define ARCH_QWEN_GATED_ATTENTION                                                                            \
    {SLOT_Q_GATE, "model.layers.%d.self_attn.q_proj"}, {SLOT_K, "model.layers.%d.self_attn.k_proj"},         \
        {SLOT_V, "model.layers.%d.self_attn.v_proj"}, {SLOT_O, "model.layers.%d.self_attn.o_proj"},          \
        {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm"}, {                                                 \
        SLOT_K_NORM, "model.layers.%d.self_attn.k_norm"                                                      \
    }
/* The norms before the sub-layers of Qwen3-Next and its followers. */
#define ARCH_QWEN_NORMS                                                                                      \
    {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm"}, {                                                   \
        SLOT_FFN_NORM, "model.layers.%d.post_attention_layernorm", .gguf = "blk.%d.post_attention_norm"      \
    }
#define ARCH_QWEN_MIXTURE                                                                                    \
    {SLOT_ROUTER, "model.layers.%d.mlp.gate"}, ARCH_EXPERTS("model.layers.%d.mlp."),                         \
        ARCH_SHARED_EXPERT("model.layers.%d.mlp.shared_expert."), {                                          \
        SLOT_SHEXP_ROUTER, "model.layers.%d.mlp.shared_expert_gate"                                          \
    }
#define ARCH_QWEN_DELTA_KEYS                                                                                 \
    {HP_rec_tap, .hf = "linear_conv_kernel_dim", .flags = K_DEFAULT, .value = 4},                            \
        {HP_rec_inner, .hf_columns = "model.layers.%d.linear_attn.out_proj.weight"},                         \
        {HP_rec_head, .hf = "linear_num_value_heads", .flags = K_DEFAULT, .value = 32},                      \
        {HP_rec_group, .hf = "linear_num_key_heads", .flags = K_DEFAULT, .value = 16},                       \
        {HP_rec_state, .hf = "linear_key_head_dim", .flags = K_DEFAULT, .value = 128},                       \
        {HP_d_head, .flags = K_DEFAULT, .value = 256}, {                                                     \
        HP_rope_part, .flags = K_DEFAULT, .value = 0.25                                                      \
    }
#define ARCH_QWEN_MIXTURE_KEYS                                                                               \
    {HP_d_expert, .flags = K_DEFAULT, .value = 512}, {HP_d_shared, .flags = K_DEFAULT, .value = 512}, {      \
        HP_expert_norm, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1                                      \
    }
#define ARCH_LLAMA_NORMS                                                                                     \
    {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm"}, {                                                   \
        SLOT_FFN_NORM, "model.layers.%d.post_attention_layernorm"                                            \
    }

#endif
