/* MiMo-V2-Flash: layers that slide have sinks, twice the KV heads and a rotary base of their own; values are
 * narrower than keys, a third of which is rotated; a dense layer, then mixtures. */
#include "model/arch.h"

const arch_desc arch_mimo_v2_flash = {
    .name = "mimo_v2_flash",
    .gguf = "mimo2",
    .hf = "mimo_v2_flash",
    .hf_class = "MiMoV2FlashForCausalLM",
    .hf_base = "model.",
    .hf_ahead = "model.mtp.layers.%d.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_KV_DOUBLED | A_AHEAD_SLIDES,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm"},
        {SLOT_FFN_NORM, "model.layers.%d.post_attention_layernorm|"
                        "model.layers.%d.pre_mlp_layernorm"},
        ARCH_LLAMA_QKVO, {SLOT_SINKS, "model.layers.%d.self_attn.attention_sink_bias", T_OPTIONAL},
        ARCH_LLAMA_MLP, {SLOT_ROUTER, "model.layers.%d.mlp.gate"},
        {SLOT_CHOICE_BIAS, "model.layers.%d.mlp.gate.e_score_correction_bias"},
        ARCH_EXPERTS("model.layers.%d.mlp."), ARCH_LLAMA_HEAD,
        {SLOT_AHEAD_EMBED_NORM, "model.layers.%d.enorm"}, {SLOT_AHEAD_STATE_NORM, "model.layers.%d.hnorm"},
        {SLOT_AHEAD_IN, "model.layers.%d.eh_proj"},
        {SLOT_AHEAD_OUT_NORM, "model.layers.%d.final_layernorm", T_OPTIONAL,
         .gguf = "blk.%d.layer_output_norm|blk.%d.nextn.shared_head_norm"}),
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
