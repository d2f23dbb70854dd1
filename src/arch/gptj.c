/* GPT-J: one norm for attention and feed-forward, adjacent rotary pairs, a bias on the output head. */
#include "model/arch.h"

const arch_desc arch_gptj = {
    .name = "gptj",
    .gguf = "gptj",
    .hf = "gptj",
    .hf_class = "GPTJForCausalLM",
    .hf_base = "transformer.",
    .norm = NORM_LAYER,
    .act = ACT_GELU_TANH,
    .rope_hf = ROPE_INTERLEAVED,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors = ARCH_TENSORS(
        {SLOT_EMBED, "transformer.wte"}, {SLOT_ATTN_NORM, "transformer.h.%d.ln_1", T_BIAS},
        {SLOT_Q, "transformer.h.%d.attn.q_proj"}, {SLOT_K, "transformer.h.%d.attn.k_proj"},
        {SLOT_V, "transformer.h.%d.attn.v_proj"}, {SLOT_O, "transformer.h.%d.attn.out_proj"},
        {SLOT_UP, "transformer.h.%d.mlp.fc_in", T_BIAS}, {SLOT_DOWN, "transformer.h.%d.mlp.fc_out", T_BIAS},
        {SLOT_OUT_NORM, "transformer.ln_f", T_BIAS}, {SLOT_HEAD, "lm_head", T_BIAS}),
    .keys = ARCH_KEYS({HP_parallel, .flags = K_CONST, .value = 1}, {HP_d_ff, .hf = "n_inner"},
                      {HP_n_rot, .flags = K_DEFAULT, .value = 64},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 2048}),
};
