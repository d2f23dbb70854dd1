/* OLMo: layer norms without weights, clamped q, k and v in the 7B. */
#include "model/arch.h"

const arch_desc arch_olmo = {
    .name = "olmo",
    .gguf = "olmo",
    .hf = "olmo",
    .hf_class = "OlmoForCausalLM",
    .hf_base = "model.",
    .norm = NORM_LAYER,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, NULL, T_PLAIN_NORM}, ARCH_LLAMA_QKVO,
                            {SLOT_FFN_NORM, NULL, T_PLAIN_NORM}, ARCH_LLAMA_MLP,
                            {SLOT_OUT_NORM, NULL, T_PLAIN_NORM}, {SLOT_HEAD, "lm_head"}),
    .keys = ARCH_KEYS({HP_norm_eps, .flags = K_CONST, .value = 1e-5}),
};
