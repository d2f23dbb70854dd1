/* EXAONE 4: norms after attention and after the feed-forward layer, none before; q and k are normed head by
 * head. With a window three of four layers slide, and the full ones have no rotary embedding. */
#include "model/arch.h"

const arch_desc arch_exaone4 = {
    .name = "exaone4",
    .gguf = "exaone4",
    .hf = "exaone4",
    .hf_class = "Exaone4ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_NOPE_FULL | A_NOPE_WINDOWED,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_QKVO, {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm"},
                     {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm"},
                     {SLOT_ATTN_POST_NORM, "model.layers.%d.post_attention_layernorm"}, ARCH_LLAMA_MLP,
                     {SLOT_FFN_POST_NORM, "model.layers.%d.post_feedforward_layernorm"}, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 4096},
                      {HP_window_pattern, .hf = "sliding_window_pattern",
                       .flags = K_DEFAULT | K_DEFAULT_GGUF | K_LETTERS, .value = 4, .gguf = ""},
                      {HP_n_kv_head, .flags = K_DEFAULT, .value = 32},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5}),
};
