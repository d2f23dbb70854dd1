/* OLMo 3: OLMo 2 with three of four layers sliding. These have plain rotary frequencies; context scaling
 * applies to the full layers. In GGUF both are called olmo2. */
#include "model/arch.h"

const arch_desc arch_olmo3 = {
    .name = "olmo3",
    .gguf = "olmo2",
    .hf = "olmo3",
    .hf_class = "Olmo3ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_LOCAL_PLAIN,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, ARCH_LLAMA_QKVO, {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm", T_ROW_NORM},
        {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm", T_ROW_NORM},
        {SLOT_ATTN_POST_NORM, "model.layers.%d.post_attention_layernorm"}, ARCH_LLAMA_MLP,
        {SLOT_FFN_POST_NORM, "model.layers.%d.post_feedforward_layernorm"}, ARCH_LLAMA_HEAD),
    .keys =
        ARCH_KEYS({HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 4096},
                  {HP_window_pattern, .hf = "", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 4, .gguf = ""},
                  {HP_rope_theta, .flags = K_DEFAULT, .value = 500000},
                  {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5}),
};
