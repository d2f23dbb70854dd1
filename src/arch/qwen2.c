/* Qwen 1.5, 2 and 2.5: Llama with biases on q, k and v. A sliding window, if enabled, applies to layers from
 * max_window_layers on. */
#include "model/arch.h"

const arch_desc arch_qwen2 = {
    .name = "qwen2",
    .gguf = "qwen2",
    .hf = "qwen2",
    .hf_class = "Qwen2ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, {SLOT_Q, "model.layers.%d.self_attn.q_proj", T_BIAS},
                     {SLOT_K, "model.layers.%d.self_attn.k_proj", T_BIAS},
                     {SLOT_V, "model.layers.%d.self_attn.v_proj", T_BIAS},
                     {SLOT_O, "model.layers.%d.self_attn.o_proj"}, ARCH_LLAMA_MLP, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 4096,
                       .when = "use_sliding_window=false"},
                      {HP_window_from, .hf = "max_window_layers", .flags = K_DEFAULT, .value = 28},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 32768}),
};
