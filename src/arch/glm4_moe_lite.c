/* GLM-4.7-Flash: latent attention as DeepSeek V3, whose GGUF name it has. */
#include "model/arch.h"

const arch_desc arch_glm4_moe_lite = {
    .name = "glm4_moe_lite",
    .gguf = "deepseek2",
    .hf = "glm4_moe_lite",
    .hf_class = "Glm4MoeLiteForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_INTERLEAVED,
    .rope_gguf = ROPE_INTERLEAVED,
    .rope_half = "!rope_interleave=true",
    .flags = A_YARN_SCORES,
    .tensors = ARCH_TENSORS(ARCH_DEEPSEEK),
    .keys = ARCH_KEYS(
        ARCH_LATENT_KEYS,
        {HP_q_low_rank, .hf = "q_lora_rank", .flags = K_DEFAULT, .value = 768,
         .gguf = "attention.q_lora_rank"},
        {HP_expert_score, .flags = K_DEFAULT, .value = SCORE_SIGMOID},
        {HP_expert_norm, .flags = K_DEFAULT, .value = 1}, {HP_n_expert, .flags = K_DEFAULT, .value = 64},
        {HP_n_expert_used, .flags = K_DEFAULT, .value = 4}, {HP_d_expert, .flags = K_DEFAULT, .value = 1536},
        {HP_n_shared, .flags = K_DEFAULT, .value = 1}, {HP_expert_scale, .flags = K_DEFAULT, .value = 1.8},
        {HP_n_expert_group, .flags = K_DEFAULT, .value = 1},
        {HP_n_group_used, .flags = K_DEFAULT, .value = 1}, {HP_n_dense, .flags = K_DEFAULT, .value = 1},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 202752}),
};
