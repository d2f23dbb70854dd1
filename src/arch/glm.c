/* GLM-4 of 2024 (glm-4-9b in HF's own form; ChatGLM in GGUF): half of each head is rotated, in adjacent
 * pairs. */
#include "model/arch.h"

const arch_desc arch_glm = {
    .name = "glm",
    .gguf = "chatglm",
    .hf = "glm",
    .hf_class = "GlmForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_INTERLEAVED,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, {SLOT_QKV, NULL, T_OPTIONAL}, ARCH_LLAMA_QKVO,
                            {SLOT_GATE_UP, "model.layers.%d.mlp.gate_up_proj"},
                            {SLOT_DOWN, "model.layers.%d.mlp.down_proj"}, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_rope_part, .flags = K_DEFAULT, .value = 0.5}, {HP_d_head, .flags = K_DEFAULT, .value = 128},
        {HP_n_kv_head, .flags = K_DEFAULT, .value = 2}, {HP_norm_eps, .flags = K_DEFAULT, .value = 1.5625e-7},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 131072}),
};
