/* Qwen 1.5 and 2 with experts, and a shared expert whose output is gated. */
#include "model/arch.h"

const arch_desc arch_qwen2_moe = {
    .name = "qwen2_moe",
    .gguf = "qwen2moe",
    .hf = "qwen2_moe",
    .hf_class = "Qwen2MoeForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO, ARCH_LLAMA_MLP,
                            {SLOT_ROUTER, "model.layers.%d.mlp.gate"}, ARCH_EXPERTS("model.layers.%d.mlp."),
                            ARCH_SHARED_EXPERT("model.layers.%d.mlp.shared_expert."),
                            {SLOT_SHEXP_ROUTER, "model.layers.%d.mlp.shared_expert_gate"}, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 4096,
         .when = "use_sliding_window=false"},
        {HP_window_from, .hf = "max_window_layers", .flags = K_DEFAULT, .value = 28},
        {HP_expert_norm, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 0},
        {HP_n_expert, .flags = K_DEFAULT, .value = 60}, {HP_n_expert_used, .flags = K_DEFAULT, .value = 4},
        {HP_d_expert, .flags = K_DEFAULT, .value = 1408}, {HP_d_shared, .flags = K_DEFAULT, .value = 5632},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 32768}),
};
