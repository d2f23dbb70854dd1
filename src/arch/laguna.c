/* Laguna: layers with different numbers of query heads, a softplus gate of attention's output, two rotary
 * tables, dense layers, then mixtures. */
#include "model/arch.h"

const arch_desc arch_laguna = {
    .name = "laguna",
    .gguf = "laguna",
    .hf = "laguna",
    .hf_class = "LagunaForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_GATE_SOFTPLUS,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                            {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm"},
                            {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm"},
                            {SLOT_ATTN_GATE, "model.layers.%d.self_attn.g_proj"}, ARCH_LLAMA_MLP,
                            {SLOT_ROUTER, "model.layers.%d.mlp.gate"},
                            {SLOT_CHOICE_BIAS, "model.layers.%d.mlp.gate.e_score_correction_bias|"
                                               "model.layers.%d.mlp.experts.e_score_correction_bias"},
                            ARCH_EXPERTS("model.layers.%d.mlp."),
                            {SLOT_GATE_SHEXP, "model.layers.%d.mlp.shared_experts.gate_proj|"
                                              "model.layers.%d.mlp.shared_expert.gate_proj"},
                            {SLOT_UP_SHEXP, "model.layers.%d.mlp.shared_experts.up_proj|"
                                            "model.layers.%d.mlp.shared_expert.up_proj"},
                            {SLOT_DOWN_SHEXP, "model.layers.%d.mlp.shared_experts.down_proj|"
                                              "model.layers.%d.mlp.shared_expert.down_proj"},
                            ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_d_head, .flags = K_DEFAULT, .value = 128},
        {HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 512},
        {HP_rope_theta, .flags = K_DEFAULT, .value = 500000},
        {HP_rope_theta_local, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 10000},
        {HP_rope_part, .hf = "rope_parameters.full_attention.partial_rotary_factor", .flags = K_DEFAULT,
         .value = 1},
        {HP_rope_part_local, .flags = K_DEFAULT, .value = 1}, {HP_d_expert, .flags = K_DEFAULT, .value = 512},
        {HP_d_shared, .flags = K_DEFAULT, .value = 512},
        {HP_expert_score, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = SCORE_SIGMOID},
        {HP_expert_norm, .flags = K_CONST, .value = 1}, {HP_router_cap, .hf = "moe_router_logit_softcapping"},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6}),
    .only = ARCH_ONLY({"moe_apply_router_weight_on_input", "false"}),
};
