/* Llama 1, 2 and 3, and models published with its architecture (SmolLM, SmolLM2, DeepSeek LLM, Yi, TinyLlama,
 * Mistral in GGUF). attention_bias and mlp_bias add biases. */
#include "model/arch.h"

const arch_desc arch_llama = {
    .name = "llama",
    .gguf = "llama",
    .hf = "llama|code_llama",
    .hf_class = "LlamaForCausalLM|LLaMAForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO, ARCH_SINKS, ARCH_LLAMA_MLP,
                            ARCH_EXPERTS_GGUF, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
                      {HP_expert_norm, .hf = "", .flags = K_DEFAULT_GGUF, .value = 1},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 2048}),
};
