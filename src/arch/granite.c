/* Granite 3: Llama with four multipliers. */
#include "model/arch.h"

const arch_desc arch_granite = {
    .name = "granite",
    .gguf = "granite",
    .hf = "granite",
    .hf_class = "GraniteForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO, ARCH_LLAMA_MLP, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_attn_scale, .hf = "attention_multiplier", .flags = K_DEFAULT, .value = 1},
        {HP_embed_scale, .hf = "embedding_multiplier"}, {HP_residual_scale, .hf = "residual_multiplier"},
        {HP_logit_scale, .hf = "logits_scaling", .form = KEY_INVERSE, .flags = K_DEFAULT, .value = 1},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6}),
};
