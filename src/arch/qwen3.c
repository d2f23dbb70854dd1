/* Qwen 3 (dense): no biases, q and k normed head by head. */
#include "model/arch.h"

const arch_desc arch_qwen3 = {
    .name = "qwen3",
    .gguf = "qwen3",
    .hf = "qwen3",
    .hf_class = "Qwen3ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                     {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm"},
                     {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm"}, ARCH_LLAMA_MLP, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 4096,
                       .when = "use_sliding_window=false"},
                      {HP_window_from, .hf = "max_window_layers", .flags = K_DEFAULT, .value = 28},
                      {HP_d_head, .flags = K_DEFAULT, .value = 128},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 32768}),
};
