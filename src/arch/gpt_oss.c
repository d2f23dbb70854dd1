/* gpt-oss: sinks, a window in every second layer, YaRN, clamped SwiGLU, biases everywhere. */
#include "model/arch.h"

const arch_desc arch_gpt_oss = {
    .name = "gpt_oss",
    .gguf = "gpt-oss",
    .hf = "gpt_oss",
    .hf_class = "GptOssForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SWIGLU_CLAMPED,
    .hf_act = "",
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_YARN_EXACT | A_ROPE_GIVEN,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm"},
        {SLOT_FFN_NORM, "model.layers.%d.post_attention_layernorm", .gguf = "blk.%d.post_attention_norm"},
        ARCH_LLAMA_QKVO, {SLOT_SINKS, "model.layers.%d.self_attn.sinks"},
        {SLOT_ROUTER, "model.layers.%d.mlp.router", T_BIAS}, {SLOT_GATE_EXPS}, {SLOT_UP_EXPS},
        {SLOT_GATE_UP_EXPS, "model.layers.%d.mlp.experts.gate_up_proj", T_TRANSPOSED | T_BIAS, ROWS_PAIRED},
        {SLOT_DOWN_EXPS, "model.layers.%d.mlp.experts.down_proj", T_TRANSPOSED | T_BIAS}, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 128},
        {HP_window_pattern, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 2, .gguf = ""},
        {HP_expert_score, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = SCORE_SOFTMAX_LATE},
        {HP_n_expert, .flags = K_DEFAULT, .value = 128}, {HP_n_expert_used, .flags = K_DEFAULT, .value = 4},
        {HP_d_head, .flags = K_DEFAULT, .value = 64}, {HP_rope_theta, .flags = K_DEFAULT, .value = 150000},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 131072}),
    .only = ARCH_ONLY({"swiglu_limit", "7"}),
};
