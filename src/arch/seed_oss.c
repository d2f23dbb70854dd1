/* Seed-OSS: Llama with biases of q, k and v, heads of their own size, and plain halves of each head rotated.
 */
#include "model/arch.h"

const arch_desc arch_seed_oss = {
    .name = "seed_oss",
    .gguf = "seed_oss",
    .hf = "seed_oss",
    .hf_class = "SeedOssForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm"}, ARCH_LLAMA_QKVO,
        {SLOT_FFN_NORM, "model.layers.%d.post_attention_layernorm", .gguf = "blk.%d.post_attention_norm"},
        ARCH_LLAMA_MLP, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_n_kv_head, .flags = K_DEFAULT, .value = 8},
                      {HP_d_head, .flags = K_DEFAULT, .value = 128},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 524288}),
};
