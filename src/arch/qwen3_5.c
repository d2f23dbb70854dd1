/* Qwen3.5 and 3.6, dense: three of four layers are gated delta nets, the fourth has attention with a gate. */
#include "model/arch.h"

const arch_desc arch_qwen3_5 = {
    .name = "qwen3_5",
    .gguf = "qwen35",
    .hf = "qwen3_5_text|qwen3_5",
    .hf_class = "Qwen3_5ForCausalLM|Qwen3_5ForConditionalGeneration",
    .hf_base = "model.",
    .hf_ahead = "mtp.layers.%d.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_NORM_PLUS_1 | A_TILED_GGUF,
    .mixer = MIXER_DELTA,
    .mixer_layers = MIXER_EVERY,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_QWEN_NORMS, ARCH_QWEN_DELTA_IN, ARCH_QWEN_DELTA,
                            ARCH_QWEN_GATED_ATTENTION, ARCH_LLAMA_MLP, ARCH_LLAMA_HEAD, ARCH_AHEAD_APART),
    .keys = ARCH_KEYS(ARCH_QWEN_DELTA_KEYS, {HP_n_kv_head, .flags = K_DEFAULT, .value = 4},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 32768}),
    .only = ARCH_ONLY({"attn_output_gate", "true"}, {"hidden_act", "silu|swish"}),
};
