/* ERNIE 4.5 with experts: a bias of the softmax chooses; the weights have the sum 1. */
#include "model/arch.h"

const arch_desc arch_ernie4_5_moe = {
    .name = "ernie4_5_moe",
    .gguf = "ernie4_5-moe",
    .hf = "ernie4_5_moe",
    .hf_class = "Ernie4_5_MoeForCausalLM|Ernie4_5_MoEForCausalLM",
    .hf_base = "model.",
    .hf_ahead = "model.mtp_block.%d.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_INTERLEAVED,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO, ARCH_LLAMA_MLP,
        {SLOT_ROUTER, "model.layers.%d.mlp.gate"},
        {SLOT_CHOICE_BIAS, "model.layers.%d.mlp.moe_statics.e_score_correction_bias", T_OPTIONAL},
        ARCH_EXPERTS("model.layers.%d.mlp."), ARCH_SHARED_EXPERT("model.layers.%d.mlp.shared_experts."),
        ARCH_LLAMA_HEAD, {SLOT_AHEAD_EMBED_NORM, "model.mtp_emb_norm.%d"},
        {SLOT_AHEAD_STATE_NORM, "model.mtp_hidden_norm.%d"}, {SLOT_AHEAD_IN, "model.mtp_linear_proj.%d"}),
    .keys = ARCH_KEYS(
        {HP_expert_norm, .hf = "", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1},
        {HP_n_dense, .hf = "moe_layer_start_index", .flags = K_DEFAULT, .value = 1},
        {HP_n_expert, .flags = K_DEFAULT, .value = 64}, {HP_n_expert_used, .flags = K_DEFAULT, .value = 6},
        {HP_n_shared, .flags = K_DEFAULT, .value = 2}, {HP_d_expert, .flags = K_DEFAULT, .value = 1536},
        {HP_n_kv_head, .flags = K_DEFAULT, .value = 4}, {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
        {HP_rope_theta, .flags = K_DEFAULT, .value = 500000},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 131072},
        {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
};
