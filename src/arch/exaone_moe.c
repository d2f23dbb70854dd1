/* EXAONE with experts: three of four layers slide, the full ones have no rotary embedding. */
#include "model/arch.h"

const arch_desc arch_exaone_moe = {
    .name = "exaone_moe",
    .gguf = "exaone-moe",
    .hf = "exaone_moe",
    .hf_class = "ExaoneMoeForCausalLM",
    .hf_base = "model.",
    .hf_ahead = "mtp.layers.%d.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_NOPE_FULL | A_NOPE_WINDOWED | A_AHEAD_FULL,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
        {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm"}, {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm"},
        ARCH_LLAMA_MLP, {SLOT_ROUTER, "model.layers.%d.mlp.gate"},
        {SLOT_CHOICE_BIAS, "model.layers.%d.mlp.e_score_correction_bias"},
        ARCH_EXPERTS("model.layers.%d.mlp."), ARCH_SHARED_EXPERT("model.layers.%d.mlp.shared_experts."),
        ARCH_LLAMA_HEAD, ARCH_AHEAD_APART),
    .keys = ARCH_KEYS({HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 4096},
                      {HP_window_pattern, .hf = "sliding_window_pattern",
                       .flags = K_DEFAULT | K_DEFAULT_GGUF | K_LETTERS, .value = 4, .gguf = ""},
                      {HP_expert_score, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = SCORE_SIGMOID},
                      {HP_expert_norm, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5}),
};
