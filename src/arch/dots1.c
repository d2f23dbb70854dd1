/* dots.llm1: dense layers first, then mixtures with shared experts. */
#include "model/arch.h"

const arch_desc arch_dots1 = {
    .name = "dots1",
    .gguf = "dots1",
    .hf = "dots1",
    .hf_class = "Dots1ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                            {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm"},
                            {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm"}, ARCH_LLAMA_MLP,
                            {SLOT_ROUTER, "model.layers.%d.mlp.gate"},
                            {SLOT_CHOICE_BIAS, "model.layers.%d.mlp.gate.e_score_correction_bias"},
                            ARCH_EXPERTS("model.layers.%d.mlp."),
                            ARCH_SHARED_EXPERT("model.layers.%d.mlp.shared_experts."), ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 4096},
                      {HP_window_from, .hf = "max_window_layers", .flags = K_DEFAULT, .value = 62},
                      {HP_expert_score, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = SCORE_SIGMOID},
                      {HP_expert_norm, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 0},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 2048}),
};
