/* MiniMax-M2: q and k are normed as whole rows; half of a head is rotated. */
#include "model/arch.h"

const arch_desc arch_minimax_m2 = {
    .name = "minimax_m2",
    .gguf = "minimax-m2",
    .hf = "minimax_m2",
    .hf_class = "MiniMaxM2ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                            {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm", T_ROW_NORM},
                            {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm", T_ROW_NORM},
                            {SLOT_ROUTER, "model.layers.%d.block_sparse_moe.gate"},
                            {SLOT_GATE_EXPS, "model.layers.%d.block_sparse_moe.experts.%d.w1"},
                            {SLOT_UP_EXPS, "model.layers.%d.block_sparse_moe.experts.%d.w3"},
                            {SLOT_DOWN_EXPS, "model.layers.%d.block_sparse_moe.experts.%d.w2"},
                            {SLOT_CHOICE_BIAS, "model.layers.%d.block_sparse_moe.e_score_correction_bias"},
                            ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_expert_score, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = SCORE_SIGMOID},
                      {HP_expert_norm, .hf = "", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1},
                      {HP_n_expert, .flags = K_DEFAULT, .value = 256},
                      {HP_n_expert_used, .flags = K_DEFAULT, .value = 8},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6}),
};
