/* Gemma 1: norm weights stored minus one, an embedding scaled by its width, GELU gates.
 * The first releases say "gelu" and mean the tanh form; HF reads it so as well. */
#include "model/arch.h"

const arch_desc arch_gemma = {
    .name = "gemma",
    .gguf = "gemma",
    .hf = "gemma",
    .hf_class = "GemmaForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_GELU_TANH,
    .hf_act = "",
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_NORM_PLUS_1 | A_EMBED_SQRT,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO, ARCH_LLAMA_MLP, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_d_head, .flags = K_DEFAULT, .value = 256}, {HP_n_head, .flags = K_DEFAULT, .value = 16},
        {HP_n_kv_head, .flags = K_DEFAULT, .value = 16}, {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 8192}, {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
    .only = ARCH_ONLY({"hidden_act", "gelu|gelu_pytorch_tanh|gelu_new|gelu_fast"}),
};
