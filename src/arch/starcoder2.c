/* StarCoder 2: LayerNorm, a plain GELU feed-forward layer, biases everywhere, a sliding window on every
 * layer. */
#include "model/arch.h"

const arch_desc arch_starcoder2 = {
    .name = "starcoder2",
    .gguf = "starcoder2",
    .hf = "starcoder2",
    .hf_class = "Starcoder2ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_LAYER,
    .act = ACT_GELU_TANH,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm", T_BIAS},
                     ARCH_LLAMA_QKVO, {SLOT_FFN_NORM, "model.layers.%d.post_attention_layernorm", T_BIAS},
                     {SLOT_UP, "model.layers.%d.mlp.c_fc"}, {SLOT_DOWN, "model.layers.%d.mlp.c_proj"},
                     {SLOT_OUT_NORM, "model.norm", T_BIAS}, {SLOT_HEAD, "lm_head"}),
    .keys = ARCH_KEYS({HP_window, .hf = "sliding_window"}, {HP_n_kv_head, .flags = K_DEFAULT, .value = 2},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 4096},
                      {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
};
