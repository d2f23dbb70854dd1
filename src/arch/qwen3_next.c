/* Qwen3-Next: three of four layers are gated delta nets, the fourth has attention with a gate; every
 * feed-forward layer is a mixture with a gated shared expert. */
#include "model/arch.h"

const arch_desc arch_qwen3_next = {
    .name = "qwen3_next",
    .gguf = "qwen3next",
    .hf = "qwen3_next",
    .hf_class = "Qwen3NextForCausalLM",
    .hf_base = "model.",
    .hf_ahead = "mtp.layers.%d.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_NORM_PLUS_1,
    .mixer = MIXER_DELTA,
    .mixer_layers = MIXER_EVERY,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, ARCH_QWEN_NORMS,
        {SLOT_REC_QKVZ, "model.layers.%d.linear_attn.in_proj_qkvz", .gguf = "blk.%d.ssm_in"},
        {SLOT_REC_X, "", .gguf = "blk.%d.attn_qkv"}, {SLOT_REC_Z, "", .gguf = "blk.%d.attn_gate"},
        {SLOT_REC_BA, "model.layers.%d.linear_attn.in_proj_ba"}, ARCH_QWEN_DELTA, ARCH_QWEN_GATED_ATTENTION,
        ARCH_LLAMA_MLP, ARCH_QWEN_MIXTURE, ARCH_LLAMA_HEAD, ARCH_AHEAD_APART),
    .keys = ARCH_KEYS(
        ARCH_QWEN_DELTA_KEYS, ARCH_QWEN_MIXTURE_KEYS, {HP_n_kv_head, .flags = K_DEFAULT, .value = 2},
        {HP_n_expert, .flags = K_DEFAULT, .value = 512}, {HP_n_expert_used, .flags = K_DEFAULT, .value = 10},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 32768}),
    .only = ARCH_ONLY({"hidden_act", "silu|swish"}),
};
