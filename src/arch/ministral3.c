/* Ministral 3: Mistral with YaRN, whose queries grow with the logarithm of their position. */
#include "model/arch.h"

const arch_desc arch_ministral3 = {
    .name = "ministral3",
    .gguf = "mistral3",
    .hf = "ministral3",
    .hf_class = "Ministral3ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_INTERLEAVED,
    .flags = A_ROPE_GIVEN,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO, ARCH_LLAMA_MLP, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_window, .hf = "sliding_window"},
        {HP_pos_scale, .hf = "rope_parameters.llama_4_scaling_beta|rope_scaling.llama_4_scaling_beta",
         .gguf = "attention.temperature_scale"},
        {HP_n_kv_head, .flags = K_DEFAULT, .value = 8}, {HP_d_head, .flags = K_DEFAULT, .value = 128},
        {HP_rope_theta, .flags = K_DEFAULT, .value = 1000000},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 262144}),
};
