/* LFM2 with experts: as LFM2, and the feed-forward layers after the first ones are mixtures. */
#include "model/arch.h"

const arch_desc arch_lfm2_moe = {
    .name = "lfm2_moe",
    .gguf = "lfm2moe",
    .hf = "lfm2_moe",
    .hf_class = "Lfm2MoeForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .mixer = MIXER_CONV,
    .tensors = ARCH_TENSORS(ARCH_LFM2, {SLOT_ROUTER, "model.layers.%d.feed_forward.gate"},
                            {SLOT_CHOICE_BIAS, "model.layers.%d.feed_forward.expert_bias", T_OPTIONAL},
                            {SLOT_GATE_EXPS, "model.layers.%d.feed_forward.experts.%d.w1"},
                            {SLOT_UP_EXPS, "model.layers.%d.feed_forward.experts.%d.w3"},
                            {SLOT_DOWN_EXPS, "model.layers.%d.feed_forward.experts.%d.w2"}, ARCH_LFM2_HEAD),
    .keys = ARCH_KEYS(ARCH_LFM2_KEYS, {HP_n_expert, .flags = K_DEFAULT, .value = 32},
                      {HP_n_expert_used, .flags = K_DEFAULT, .value = 4},
                      {HP_d_expert, .flags = K_DEFAULT, .value = 1792},
                      {HP_n_dense, .hf = "num_dense_layers", .flags = K_DEFAULT, .value = 2},
                      {HP_expert_score, .flags = K_CONST, .value = SCORE_SIGMOID},
                      {HP_expert_norm, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1}),
};
