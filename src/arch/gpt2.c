/* GPT-2: learned positions, matrices stored [inputs, outputs] in HF checkpoints. */
#include "model/arch.h"

const arch_desc arch_gpt2 = {
    .name = "gpt2",
    .gguf = "gpt2",
    .hf = "gpt2",
    .hf_class = "GPT2LMHeadModel",
    .hf_base = "transformer.",
    .norm = NORM_LAYER,
    .act = ACT_GELU_TANH,
    .flags = A_NO_ROPE,
    .tensors = ARCH_TENSORS({SLOT_EMBED, "transformer.wte"}, {SLOT_POS, "transformer.wpe"},
                            {SLOT_ATTN_NORM, "transformer.h.%d.ln_1", T_BIAS},
                            {SLOT_QKV, "transformer.h.%d.attn.c_attn", T_BIAS | T_TRANSPOSED},
                            {SLOT_O, "transformer.h.%d.attn.c_proj", T_BIAS | T_TRANSPOSED},
                            {SLOT_FFN_NORM, "transformer.h.%d.ln_2", T_BIAS},
                            {SLOT_UP, "transformer.h.%d.mlp.c_fc", T_BIAS | T_TRANSPOSED},
                            {SLOT_DOWN, "transformer.h.%d.mlp.c_proj", T_BIAS | T_TRANSPOSED},
                            {SLOT_OUT_NORM, "transformer.ln_f", T_BIAS}, {SLOT_HEAD, "lm_head"}),
    .keys = ARCH_KEYS({HP_d_ff, .hf = "n_inner"},
                      {HP_attn_scale, .flags = K_CONST, .value = 1, .when = "!scale_attn_weights=true"},
                      {HP_scale_by_layer, .hf = "scale_attn_by_inverse_layer_idx"},
                      {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5},
                      {HP_n_ctx_train, .flags = K_DEFAULT, .value = 1024},
                      {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
};
