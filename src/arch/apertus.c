/* Apertus: q and k are normed head by head; the feed-forward layer is xIELU between two matrices. */
#include "model/arch.h"

const arch_desc arch_apertus = {
    .name = "apertus",
    .gguf = "apertus",
    .hf = "apertus",
    .hf_class = "ApertusForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_XIELU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_ROPE_GIVEN,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.attention_layernorm"}, ARCH_LLAMA_QKVO,
        {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm"}, {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm"},
        {SLOT_FFN_NORM, "model.layers.%d.feedforward_layernorm"}, {SLOT_UP, "model.layers.%d.mlp.up_proj"},
        {SLOT_DOWN, "model.layers.%d.mlp.down_proj"}, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_rope_theta, .flags = K_DEFAULT, .value = 12000000},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 65536}),
};
