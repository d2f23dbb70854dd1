/* DeepSeek V3 and R1, and Kimi K2: as V2. A checkpoint may have rotary pairs in halves. In GGUF all are
 * called deepseek2. */
#include "model/arch.h"

const arch_desc arch_deepseek_v3 = {
    .name = "deepseek_v3",
    .gguf = "deepseek2",
    .hf = "deepseek_v3|kimi_k2",
    .hf_class = "DeepseekV3ForCausalLM",
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
        {HP_q_low_rank, .hf = "q_lora_rank", .flags = K_DEFAULT, .value = 1536,
         .gguf = "attention.q_lora_rank"},
        {HP_expert_score, .flags = K_DEFAULT, .value = SCORE_SIGMOID},
        {HP_expert_norm, .flags = K_DEFAULT, .value = 1}, {HP_n_expert, .flags = K_DEFAULT, .value = 256},
        {HP_n_expert_used, .flags = K_DEFAULT, .value = 8}, {HP_d_expert, .flags = K_DEFAULT, .value = 2048},
        {HP_n_shared, .flags = K_DEFAULT, .value = 1}, {HP_expert_scale, .flags = K_DEFAULT, .value = 2.5},
        {HP_n_expert_group, .flags = K_DEFAULT, .value = 8},
        {HP_n_group_used, .flags = K_DEFAULT, .value = 4}, {HP_n_dense, .flags = K_DEFAULT, .value = 3},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 4096}),
};
