/* GLM-4.5 to 4.7: dense layers first, then mixtures with a shared expert. */
#include "model/arch.h"

const arch_desc arch_glm4_moe = {
    .name = "glm4_moe",
    .gguf = "glm4moe",
    .hf = "glm4_moe",
    .hf_class = "Glm4MoeForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm"},
        {SLOT_FFN_NORM, "model.layers.%d.post_attention_layernorm", .gguf = "blk.%d.post_attention_norm"},
        ARCH_LLAMA_QKVO, {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm", T_OPTIONAL},
        {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm", T_OPTIONAL}, ARCH_LLAMA_MLP,
        {SLOT_ROUTER, "model.layers.%d.mlp.gate"},
        {SLOT_CHOICE_BIAS, "model.layers.%d.mlp.gate.e_score_correction_bias"},
        ARCH_EXPERTS("model.layers.%d.mlp."), ARCH_SHARED_EXPERT("model.layers.%d.mlp.shared_experts."),
        ARCH_LLAMA_HEAD, ARCH_AHEAD),
    .keys = ARCH_KEYS(
        {HP_rope_part, .flags = K_DEFAULT, .value = 0.5},
        {HP_expert_score, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = SCORE_SIGMOID},
        {HP_expert_norm, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1},
        {HP_n_expert, .flags = K_DEFAULT, .value = 128}, {HP_n_expert_used, .flags = K_DEFAULT, .value = 8},
        {HP_d_expert, .flags = K_DEFAULT, .value = 1408}, {HP_n_shared, .flags = K_DEFAULT, .value = 1},
        {HP_n_dense, .flags = K_DEFAULT, .value = 1}, {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 131072}),
};
