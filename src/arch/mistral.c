/* Mistral 7B and its successors: Llama with a sliding window on every layer. In GGUF they are called llama.
 */
#include "model/arch.h"

const arch_desc arch_mistral = {
    .name = "mistral",
    .hf = "mistral",
    .hf_class = "MistralForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO, ARCH_LLAMA_MLP, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 4096},
                      {HP_n_kv_head, .flags = K_DEFAULT, .value = 8},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 131072}),
};
