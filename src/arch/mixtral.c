/* Mixtral: Mistral with experts. In GGUF it is a llama. */
#include "model/arch.h"

const arch_desc arch_mixtral = {
    .name = "mixtral",
    .hf = "mixtral",
    .hf_class = "MixtralForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                     {SLOT_ROUTER, "model.layers.%d.block_sparse_moe.gate"},
                     {SLOT_GATE_EXPS, "model.layers.%d.block_sparse_moe.experts.%d.w1"},
                     {SLOT_UP_EXPS, "model.layers.%d.block_sparse_moe.experts.%d.w3"},
                     {SLOT_DOWN_EXPS, "model.layers.%d.block_sparse_moe.experts.%d.w2"}, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_window, .hf = "sliding_window"},
        {HP_expert_norm, .hf = "", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1},
        {HP_n_expert, .flags = K_DEFAULT, .value = 8}, {HP_n_expert_used, .flags = K_DEFAULT, .value = 2},
        {HP_n_kv_head, .flags = K_DEFAULT, .value = 8}, {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 131072}),
};
