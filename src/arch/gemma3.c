/* Gemma 3 (text): as Gemma 2 with q and k norms instead of caps; five of six layers slide and have rotary
 * frequencies of their own, which context scaling does not touch. The 27B model (62 layers) scales scores by
 * d_model / n_head. */
#include "model/arch.h"

const arch_desc arch_gemma3 = {
    .name = "gemma3",
    .gguf = "gemma3",
    .hf = "gemma3_text|gemma3",
    .hf_class = "Gemma3ForCausalLM|Gemma3ForConditionalGeneration",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_GELU_TANH,
    .hf_act = "hidden_activation",
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_NORM_PLUS_1 | A_EMBED_SQRT,
    .scale_width_layers = 62,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm"}, ARCH_LLAMA_QKVO,
        {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm"}, {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm"},
        {SLOT_ATTN_POST_NORM, "model.layers.%d.post_attention_layernorm"},
        {SLOT_FFN_NORM, "model.layers.%d.pre_feedforward_layernorm"}, ARCH_LLAMA_MLP,
        {SLOT_FFN_POST_NORM, "model.layers.%d.post_feedforward_layernorm"}, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_attn_scale, .hf = "query_pre_attn_scalar", .flags = K_DEFAULT, .value = 256, .form = KEY_RSQRT,
         .gguf = ""},
        {HP_attn_softcap, .hf = ""}, /* HF reads this key but does not use it */
        {HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 4096},
        {HP_window_pattern, .hf = "sliding_window_pattern|_sliding_window_pattern",
         .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 6},
        {HP_rope_theta, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1000000},
        {HP_rope_theta_local, .hf = "rope_parameters.sliding_attention.rope_theta|rope_local_base_freq",
         .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 10000},
        {HP_d_head, .flags = K_DEFAULT, .value = 256}, {HP_n_head, .flags = K_DEFAULT, .value = 8},
        {HP_n_kv_head, .flags = K_DEFAULT, .value = 4}, {HP_d_model, .flags = K_DEFAULT, .value = 2304},
        {HP_d_ff, .flags = K_DEFAULT, .value = 9216}, {HP_n_layer, .flags = K_DEFAULT, .value = 26},
        {HP_n_vocab, .flags = K_DEFAULT, .value = 262208}, {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 131072},
        {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
};
