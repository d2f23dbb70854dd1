/* Nemotron 3, 4 and Minitron: LayerNorm whose weights are stored minus one, half of each head rotated, a
 * squared-ReLU feed-forward layer. */
#include "model/arch.h"

const arch_desc arch_nemotron = {
    .name = "nemotron",
    .gguf = "nemotron",
    .hf = "nemotron",
    .hf_class = "NemotronForCausalLM",
    .hf_base = "model.",
    .norm = NORM_LAYER,
    .act = ACT_RELU2,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_NORM_PLUS_1,
    .tensors = ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                            {SLOT_UP, "model.layers.%d.mlp.up_proj"},
                            {SLOT_DOWN, "model.layers.%d.mlp.down_proj"}, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_norm_eps, .hf = "norm_eps", .flags = K_DEFAULT, .value = 1e-5},
                      {HP_rope_part, .flags = K_DEFAULT, .value = 0.5},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 4096}),
};
