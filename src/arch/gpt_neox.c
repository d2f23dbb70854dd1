/* GPT-NeoX, Pythia, StableLM's first models. q, k and v are interleaved head by head in HF checkpoints. */
#include "model/arch.h"

const arch_desc arch_gpt_neox = {
    .name = "gpt_neox",
    .gguf = "gptneox",
    .hf = "gpt_neox",
    .hf_class = "GPTNeoXForCausalLM",
    .hf_base = "gpt_neox.",
    .norm = NORM_LAYER,
    .act = ACT_GELU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors = ARCH_TENSORS({SLOT_EMBED, "gpt_neox.embed_in"},
                            {SLOT_ATTN_NORM, "gpt_neox.layers.%d.input_layernorm", T_BIAS},
                            {SLOT_QKV, "gpt_neox.layers.%d.attention.query_key_value", 0, ROWS_GROUPED},
                            {SLOT_O, "gpt_neox.layers.%d.attention.dense"},
                            {SLOT_FFN_NORM, "gpt_neox.layers.%d.post_attention_layernorm", T_BIAS},
                            {SLOT_UP, "gpt_neox.layers.%d.mlp.dense_h_to_4h", T_BIAS},
                            {SLOT_DOWN, "gpt_neox.layers.%d.mlp.dense_4h_to_h", T_BIAS},
                            {SLOT_OUT_NORM, "gpt_neox.final_layer_norm", T_BIAS}, {SLOT_HEAD, "embed_out"}),
    /* The file may have num_key_value_heads, but the model does not use it. */
    .keys = ARCH_KEYS(
        {HP_n_kv_head, .hf = "", .gguf = ""},
        {HP_parallel, .hf = "use_parallel_residual", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1},
        {HP_rope_part, .flags = K_DEFAULT, .value = 0.25}, {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 2048}),
};
