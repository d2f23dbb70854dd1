/* OLMo 2: norms after attention and after the feed-forward layer, none before; q and k are normed as whole
 * rows. A GGUF file may be an OLMo 3, of which three of four layers slide. */
#include "model/arch.h"

const arch_desc arch_olmo2 = {
    .name = "olmo2",
    .gguf = "olmo2",
    .hf = "olmo2",
    .hf_class = "Olmo2ForCausalLM",
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
    .keys = ARCH_KEYS({HP_window_pattern, .flags = K_DEFAULT_GGUF, .value = 4, .gguf = ""},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5}),
};
