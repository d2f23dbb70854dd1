/* Hunyuan (dense): q and k are normed head by head after their rotation, whose base "alpha" enlarges. */
#include "model/arch.h"

const arch_desc arch_hunyuan_v1_dense = {
    .name = "hunyuan_v1_dense",
    .gguf = "hunyuan-dense",
    .hf = "hunyuan_v1_dense",
    .hf_class = "HunYuanDenseV1ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_NORM_AFTER_ROPE | A_ROPE_ALPHA,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                            {SLOT_Q_NORM, "model.layers.%d.self_attn.query_layernorm"},
                            {SLOT_K_NORM, "model.layers.%d.self_attn.key_layernorm"}, ARCH_LLAMA_MLP,
                            ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5}),
    .only = ARCH_ONLY({"use_cla", "false"}),
};
