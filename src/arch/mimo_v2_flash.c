/* MiMo-V2-Flash: layers that slide have sinks, twice the KV heads and a rotary base of their own; values are
 * narrower than keys, a third of which is rotated; a dense layer, then mixtures. */
#include "model/arch.h"

const arch_desc arch_mimo_v2_flash = {
    .name = "mimo_v2_flash",
    .gguf = "mimo2",
    .hf = "mimo_v2_flash",
    .hf_class = "MiMoV2FlashForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_KV_DOUBLED,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                            {SLOT_SINKS, "model.layers.%d.self_attn.attention_sink_bias", T_OPTIONAL},
                            ARCH_LLAMA_MLP, {SLOT_ROUTER, "model.layers.%d.mlp.gate"},
                            {SLOT_CHOICE_BIAS, "model.layers.%d.mlp.gate.e_score_correction_bias"},
                            ARCH_EXPERTS("model.layers.%d.mlp."), ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_n_kv_head, .hf = "swa_num_key_value_heads"},
        {HP_n_kv_head_full, .hf = "num_key_value_heads", .gguf = ""},
        {HP_d_value, .hf = "v_head_dim", .flags = K_DEFAULT, .value = 128, .gguf = "attention.value_length"},
        {HP_attn_out_scale, .hf = "attention_value_scale", .flags = K_DEFAULT, .value = 0.707,
         .gguf = "attention.value_scale"},
        {HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 128},
        {HP_rope_theta_local, .hf = "rope_parameters.sliding_attention.rope_theta|swa_rope_theta"},
        {HP_expert_score, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = SCORE_SIGMOID},
        {HP_expert_norm, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5}),
};
