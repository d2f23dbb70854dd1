/* Command R and R+: parallel blocks with one norm that has no bias, q and k normed with weights of their own
 * for each head in the largest. */
#include "model/arch.h"

const arch_desc arch_cohere = {
    .name = "cohere",
    .gguf = "command-r",
    .hf = "cohere",
    .hf_class = "CohereForCausalLM",
    .hf_base = "model.",
    .norm = NORM_LAYER,
    .act = ACT_SILU,
    .rope_hf = ROPE_INTERLEAVED,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm"},
                            ARCH_LLAMA_QKVO, {SLOT_Q_NORM, "model.layers.%d.self_attn.q_norm", T_OPTIONAL},
                            {SLOT_K_NORM, "model.layers.%d.self_attn.k_norm", T_OPTIONAL}, ARCH_LLAMA_MLP,
                            ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_parallel, .flags = K_CONST, .value = 1},
                      {HP_logit_scale, .hf = "logit_scale", .flags = K_DEFAULT, .value = 0.0625},
                      {HP_rope_theta, .flags = K_DEFAULT, .value = 500000},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 8192},
                      {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
};
