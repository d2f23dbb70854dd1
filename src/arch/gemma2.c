/* Gemma 2: norms before and after each sub-layer, every other layer slides, scores and logits are capped.
 * The 27B model (46 layers) scales scores by d_model / n_head, which its GGUF files do not say. */
#include "model/arch.h"

const arch_desc arch_gemma2 = {
    .name = "gemma2",
    .gguf = "gemma2",
    .hf = "gemma2",
    .hf_class = "Gemma2ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_GELU_TANH,
    .hf_act = "hidden_activation",
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_NORM_PLUS_1 | A_EMBED_SQRT,
    .scale_width_layers = 46,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm"}, ARCH_LLAMA_QKVO,
                     {SLOT_ATTN_POST_NORM, "model.layers.%d.post_attention_layernorm"},
                     {SLOT_FFN_NORM, "model.layers.%d.pre_feedforward_layernorm"}, ARCH_LLAMA_MLP,
                     {SLOT_FFN_POST_NORM, "model.layers.%d.post_feedforward_layernorm"}, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_attn_scale, .hf = "query_pre_attn_scalar", .flags = K_DEFAULT, .value = 256, .form = KEY_RSQRT,
         .gguf = ""},
        {HP_window, .hf = "sliding_window", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 4096},
        {HP_window_pattern, .hf = "", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 2},
        {HP_attn_softcap, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 50},
        {HP_logit_softcap, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 30},
        {HP_d_head, .flags = K_DEFAULT, .value = 256}, {HP_n_head, .flags = K_DEFAULT, .value = 8},
        {HP_n_kv_head, .flags = K_DEFAULT, .value = 4}, {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 8192}, {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
};
