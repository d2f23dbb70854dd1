/* Phi-1, 1.5 and 2: attention and feed-forward are parallel and share one norm; biases everywhere. */
#include "model/arch.h"

const arch_desc arch_phi = {
    .name = "phi",
    .gguf = "phi2",
    .hf = "phi",
    .hf_class = "PhiForCausalLM",
    .hf_base = "model.",
    .norm = NORM_LAYER,
    .act = ACT_GELU_TANH,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors = ARCH_TENSORS(
        {SLOT_EMBED, "model.embed_tokens"}, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm", T_BIAS},
        {SLOT_QKV, NULL, T_BIAS}, {SLOT_Q, "model.layers.%d.self_attn.q_proj", T_BIAS},
        {SLOT_K, "model.layers.%d.self_attn.k_proj", T_BIAS},
        {SLOT_V, "model.layers.%d.self_attn.v_proj", T_BIAS},
        {SLOT_Q_NORM, "model.layers.%d.self_attn.q_layernorm", T_BIAS, .when = "qk_layernorm=false"},
        {SLOT_K_NORM, "model.layers.%d.self_attn.k_layernorm", T_BIAS, .when = "qk_layernorm=false"},
        {SLOT_O, "model.layers.%d.self_attn.dense", T_BIAS}, {SLOT_UP, "model.layers.%d.mlp.fc1", T_BIAS},
        {SLOT_DOWN, "model.layers.%d.mlp.fc2", T_BIAS}, {SLOT_OUT_NORM, "model.final_layernorm", T_BIAS},
        {SLOT_HEAD, "lm_head", T_BIAS}),
    .keys = ARCH_KEYS({HP_parallel, .flags = K_CONST, .value = 1},
                      {HP_rope_part, .flags = K_DEFAULT, .value = 0.5},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 2048}),
};
