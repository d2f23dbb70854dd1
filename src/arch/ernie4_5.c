/* ERNIE 4.5 (dense): Llama whose rotary pairs are adjacent in both formats. */
#include "model/arch.h"

const arch_desc arch_ernie4_5 = {
    .name = "ernie4_5",
    .gguf = "ernie4_5",
    .hf = "ernie4_5",
    .hf_class = "Ernie4_5ForCausalLM|Ernie4_5_ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_INTERLEAVED,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO, ARCH_LLAMA_MLP, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_n_kv_head, .flags = K_DEFAULT, .value = 2},
                      {HP_d_head, .flags = K_DEFAULT, .value = 128},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
                      {HP_rope_theta, .flags = K_DEFAULT, .value = 500000},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 131072},
                      {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
};
