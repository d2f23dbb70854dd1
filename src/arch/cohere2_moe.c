/* Command A with experts: attention and feed-forward layer in parallel; the mixture is the mean of the chosen
 * experts and the shared one, if there is one. Dense layers are full and have rotary embedding. */
#include "model/arch.h"

const arch_desc arch_cohere2_moe = {
    .name = "cohere2_moe",
    .gguf = "cohere2moe",
    .hf = "cohere2_moe",
    .hf_class = "Cohere2MoeForCausalLM",
    .hf_base = "model.",
    .norm = NORM_LAYER,
    .act = ACT_SILU,
    .rope_hf = ROPE_INTERLEAVED,
    .rope_gguf = ROPE_INTERLEAVED,
    .flags = A_NOPE_FULL | A_DENSE_ROPE,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm"},
                            ARCH_LLAMA_QKVO, ARCH_LLAMA_MLP, {SLOT_ROUTER, "model.layers.%d.mlp.gate"},
                            ARCH_EXPERTS("model.layers.%d.mlp."),
                            ARCH_SHARED_EXPERT("model.layers.%d.mlp.shared_experts."), ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_parallel, .flags = K_CONST, .value = 1},
        {HP_ffn_scale, .flags = K_CONST, .value = 0.5, .when = "!shared_expert_combination_strategy==sum"},
        {HP_d_ff, .hf = "prefix_dense_intermediate_size|intermediate_size"},
        {HP_d_expert, .hf = "intermediate_size"},
        {HP_expert_score, .flags = K_CONST, .value = SCORE_SOFTMAX_LATE,
         .when = "expert_selection_fn==softmax"},
        {HP_expert_score, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = SCORE_SIGMOID},
        {HP_expert_norm, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1},
        {HP_logit_scale, .hf = "logit_scale", .flags = K_DEFAULT, .value = 0.0625},
        {HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 4096},
        {HP_window_pattern, .hf = "sliding_window_pattern", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 4,
         .gguf = "attention.sliding_window_pattern"},
        {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
    .only = ARCH_ONLY({"shared_expert_combination_strategy", "average|sum"},
                      {"expert_selection_fn", "sigmoid|softmax"}, {"rms_norm_eps", "null"},
                      {"prefix_dense_sliding_window_pattern", "1"}),
};
