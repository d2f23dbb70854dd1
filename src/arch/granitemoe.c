/* Granite with experts: gates and ups of all experts are one tensor. Some have a shared expert. */
#include "model/arch.h"

const arch_desc arch_granitemoe = {
    .name = "granitemoe",
    .gguf = "granitemoe",
    .hf = "granitemoe|granitemoeshared",
    .hf_class = "GraniteMoeForCausalLM|GraniteMoeSharedForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                     {SLOT_ROUTER, "model.layers.%d.block_sparse_moe.router.layer"}, {SLOT_GATE_EXPS},
                     {SLOT_UP_EXPS}, {SLOT_GATE_UP_EXPS, "model.layers.%d.block_sparse_moe.input_linear"},
                     {SLOT_DOWN_EXPS, "model.layers.%d.block_sparse_moe.output_linear"}, {SLOT_GATE_SHEXP},
                     {SLOT_UP_SHEXP}, {SLOT_GATE_UP_SHEXP, "model.layers.%d.shared_mlp.input_linear"},
                     {SLOT_DOWN_SHEXP, "model.layers.%d.shared_mlp.output_linear"}, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_attn_scale, .hf = "attention_multiplier", .flags = K_DEFAULT, .value = 1},
        {HP_embed_scale, .hf = "embedding_multiplier"}, {HP_residual_scale, .hf = "residual_multiplier"},
        {HP_logit_scale, .hf = "logits_scaling", .form = KEY_INVERSE, .flags = K_DEFAULT, .value = 1},
        {HP_expert_norm, .hf = "", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1},
        {HP_n_expert, .flags = K_DEFAULT, .value = 8}, {HP_n_expert_used, .flags = K_DEFAULT, .value = 2},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6}),
};
