/* BLOOM and BLOOMZ: ALiBi, a norm after the embedding, always the tanh form of GELU. */
#include "model/arch.h"

const arch_desc arch_bloom = {
    .name = "bloom",
    .gguf = "bloom",
    .hf = "bloom",
    .hf_class = "BloomForCausalLM|BloomModel",
    .hf_base = "transformer.",
    .norm = NORM_LAYER,
    .act = ACT_GELU_TANH,
    .hf_act = "",
    .tensors =
        ARCH_TENSORS({SLOT_EMBED, "transformer.word_embeddings"},
                     {SLOT_EMBED_NORM, "transformer.word_embeddings_layernorm", T_BIAS},
                     {SLOT_ATTN_NORM, "transformer.h.%d.input_layernorm", T_BIAS},
                     {SLOT_QKV, "transformer.h.%d.self_attention.query_key_value", T_BIAS, ROWS_GROUPED},
                     {SLOT_O, "transformer.h.%d.self_attention.dense", T_BIAS},
                     {SLOT_FFN_NORM, "transformer.h.%d.post_attention_layernorm", T_BIAS},
                     {SLOT_UP, "transformer.h.%d.mlp.dense_h_to_4h", T_BIAS},
                     {SLOT_DOWN, "transformer.h.%d.mlp.dense_4h_to_h", T_BIAS},
                     {SLOT_OUT_NORM, "transformer.ln_f", T_BIAS}, {SLOT_HEAD, "lm_head"}),
    .keys = ARCH_KEYS({HP_d_model, .hf = "hidden_size|n_embed"}, {HP_n_kv_head, .hf = ""},
                      {HP_d_ff, .hf = ""}, {HP_alibi_max_bias, .flags = K_CONST, .value = 8},
                      {HP_resid_normed, .hf = "apply_residual_connection_post_layernorm"},
                      {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
};
