/* Hunyuan 3: a dense layer, then mixtures with a shared expert. */
#include "model/arch.h"

const arch_desc arch_hy_v3 = {
    .name = "hy_v3",
    .gguf = "hy_v3",
    .hf = "hy_v3",
    .hf_class = "HYV3ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
        {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm"}, {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm"},
        ARCH_LLAMA_MLP, {SLOT_ROUTER, "model.layers.%d.mlp.router.gate"},
        {SLOT_CHOICE_BIAS, "model.layers.%d.mlp.expert_bias"}, ARCH_EXPERTS("model.layers.%d.mlp."),
        ARCH_SHARED_EXPERT("model.layers.%d.mlp.shared_mlp."), ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_expert_score, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = SCORE_SIGMOID},
                      {HP_expert_norm, .hf = "route_norm", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1},
                      {HP_n_shared, .flags = K_DEFAULT, .value = 1},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5}),
};
