/* OLMoE: q and k are normed as whole rows; every layer is a mixture. */
#include "model/arch.h"

const arch_desc arch_olmoe = {
    .name = "olmoe",
    .gguf = "olmoe",
    .hf = "olmoe",
    .hf_class = "OlmoeForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                            {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm", T_ROW_NORM},
                            {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm", T_ROW_NORM},
                            {SLOT_ROUTER, "model.layers.%d.mlp.gate"}, ARCH_EXPERTS("model.layers.%d.mlp."),
                            ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_expert_norm, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 0},
                      {HP_n_expert, .flags = K_DEFAULT, .value = 64},
                      {HP_n_expert_used, .flags = K_DEFAULT, .value = 8},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 4096}),
};
