/* Hunyuan with experts and a shared expert: q and k are normed after their rotation. */
#include "model/arch.h"

const arch_desc arch_hunyuan_v1_moe = {
    .name = "hunyuan_v1_moe",
    .gguf = "hunyuan-moe",
    .hf = "hunyuan_v1_moe",
    .hf_class = "HunYuanMoEV1ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_NORM_AFTER_ROPE | A_ROPE_ALPHA,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                     {SLOT_Q_NORM, "model.layers.%d.self_attn.query_layernorm"},
                     {SLOT_K_NORM, "model.layers.%d.self_attn.key_layernorm"},
                     {SLOT_ROUTER, "model.layers.%d.mlp.gate.wg"}, ARCH_EXPERTS("model.layers.%d.mlp."),
                     ARCH_SHARED_EXPERT("model.layers.%d.mlp.shared_mlp."), ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_expert_norm, .hf = "", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1},
                      {HP_n_shared, .hf = "num_shared_expert", .flags = K_DEFAULT, .value = 1},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5}),
    .only = ARCH_ONLY({"use_cla", "false"}),
};
