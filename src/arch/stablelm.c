/* StableLM 3B, 1.6B and 12B: partial rotary embedding; biases, norms of q and k (one tensor for each head)
 * and the parallel residual as options. With the parallel residual one norm serves both sub-layers. */
#include "model/arch.h"

const arch_desc arch_stablelm = {
    .name = "stablelm",
    .gguf = "stablelm",
    .hf = "stablelm|stablelm_epoch",
    .hf_class = "StableLmForCausalLM|StableLMEpochForCausalLM",
    .hf_base = "model.",
    .norm = NORM_LAYER,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm", T_BIAS}, ARCH_LLAMA_QKVO,
        {SLOT_Q_NORM, "model.layers.%d.self_attn.q_layernorm.norms.%d", T_PER_HEAD, .gguf = "",
         .when = "qk_layernorm=false"},
        {SLOT_K_NORM, "model.layers.%d.self_attn.k_layernorm.norms.%d", T_PER_HEAD, .gguf = "",
         .when = "qk_layernorm=false"},
        {SLOT_Q_NORM, NULL, T_OPTIONAL}, {SLOT_K_NORM, NULL, T_OPTIONAL},
        {SLOT_FFN_NORM, "model.layers.%d.post_attention_layernorm", T_BIAS | T_OPT_PARALLEL}, ARCH_LLAMA_MLP,
        {SLOT_OUT_NORM, "model.norm", T_BIAS}, {SLOT_HEAD, "lm_head"}),
    .keys = ARCH_KEYS({HP_parallel, .hf = "use_parallel_residual"},
                      {HP_rope_part, .flags = K_DEFAULT, .value = 0.25},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 4096}),
};
