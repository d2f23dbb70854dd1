/* Phi-3, 3.5 and 4: Llama with q, k, v in one tensor and gate, up in another; LongRoPE in the models with
 * long contexts. */
#include "model/arch.h"

const arch_desc arch_phi3 = {
    .name = "phi3",
    .gguf = "phi3",
    .hf = "phi3",
    .hf_class = "Phi3ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, {SLOT_ROPE_LONG, NULL, T_OPTIONAL},
        {SLOT_ROPE_SHORT, NULL, T_OPTIONAL}, {SLOT_QKV, "model.layers.%d.self_attn.qkv_proj"},
        {SLOT_O, "model.layers.%d.self_attn.o_proj"}, {SLOT_GATE_UP, "model.layers.%d.mlp.gate_up_proj"},
        {SLOT_DOWN, "model.layers.%d.mlp.down_proj"}, ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS({HP_window, .hf = "sliding_window"}, {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 4096}),
};
