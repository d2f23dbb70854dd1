/* Command R7B and Command A: as Command R; three layers of four slide, the fourth is full and has no rotary
 * embedding. */
#include "model/arch.h"

const arch_desc arch_cohere2 = {
    .name = "cohere2",
    .gguf = "cohere2",
    .hf = "cohere2",
    .hf_class = "Cohere2ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_LAYER,
    .act = ACT_SILU,
    .rope_hf = ROPE_INTERLEAVED,
    .rope_gguf = ROPE_INTERLEAVED,
    .flags = A_NOPE_FULL,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm"},
                            ARCH_LLAMA_QKVO, ARCH_LLAMA_MLP, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_parallel, .flags = K_CONST, .value = 1},
                      {HP_logit_scale, .hf = "logit_scale", .flags = K_DEFAULT, .value = 0.0625},
                      {HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 4096},
                      {HP_window_pattern, .hf = "sliding_window_pattern", .flags = K_DEFAULT | K_DEFAULT_GGUF,
                       .value = 4, .gguf = "attention.sliding_window_pattern"},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 8192},
                      {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
};
