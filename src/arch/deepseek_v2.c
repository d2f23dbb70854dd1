/* DeepSeek V2 (and V2 Lite, whose queries have full rank): latent attention with adjacent rotary pairs. */
#include "model/arch.h"

const arch_desc arch_deepseek_v2 = {
    .name = "deepseek_v2",
    .gguf = "deepseek2",
    .hf = "deepseek_v2",
    .hf_class = "DeepseekV2ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_INTERLEAVED,
    .rope_gguf = ROPE_INTERLEAVED,
    .flags = A_YARN_SCORES,
    .tensors = ARCH_TENSORS(ARCH_DEEPSEEK),
    .only = ARCH_ONLY({"topk_method", "greedy|group_limited_greedy"}),
    .keys = ARCH_KEYS(
        ARCH_LATENT_KEYS,
        {HP_q_low_rank, .hf = "q_lora_rank", .flags = K_DEFAULT, .value = 1536,
         .gguf = "attention.q_lora_rank"},
        {HP_n_expert_group, .when = "!topk_method==greedy"},
        {HP_n_expert_group, .hf = ""}, /* "greedy" has no groups, whatever n_group says */
        {HP_expert_norm, .hf = ""},    /* HF reads this key but does not use it */
        {HP_n_expert, .flags = K_DEFAULT, .value = 64}, {HP_d_expert, .flags = K_DEFAULT, .value = 1407},
        {HP_n_shared, .flags = K_DEFAULT, .value = 2}, {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6}),
};
