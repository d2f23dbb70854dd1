/* SmolLM3: Llama in which every fourth layer has no rotary embedding. */
#include "model/arch.h"

const arch_desc arch_smollm3 = {
    .name = "smollm3",
    .gguf = "smollm3",
    .hf = "smollm3",
    .hf_class = "SmolLM3ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO, ARCH_LLAMA_MLP, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_nope_every, .hf = "no_rope_layer_interval", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 4,
         .gguf = ""},
        {HP_n_kv_head, .flags = K_DEFAULT, .value = 4}, {HP_rope_theta, .flags = K_DEFAULT, .value = 2000000},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 32768}, {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
    .only = ARCH_ONLY({"use_sliding_window", "false"}),
};
