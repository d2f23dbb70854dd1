/* Qwen 3 with experts: layers are mixtures, except those of mlp_only_layers. */
#include "model/arch.h"

const arch_desc arch_qwen3_moe = {
    .name = "qwen3_moe",
    .gguf = "qwen3moe",
    .hf = "qwen3_moe",
    .hf_class = "Qwen3MoeForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                            {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm"},
                            {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm"}, ARCH_LLAMA_MLP,
                            {SLOT_ROUTER, "model.layers.%d.mlp.gate"}, ARCH_EXPERTS("model.layers.%d.mlp."),
                            ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 4096,
                       .when = "use_sliding_window=false"},
                      {HP_n_expert, .flags = K_DEFAULT, .value = 128},
                      {HP_n_expert_used, .flags = K_DEFAULT, .value = 8},
                      {HP_d_expert, .flags = K_DEFAULT, .value = 768},
                      {HP_expert_norm, .flags = K_DEFAULT_GGUF, .value = 1},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 32768}),
};
