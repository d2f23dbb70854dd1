/* OPT: learned positions that begin at 2, ReLU. The 350m model norms after each sub-layer, has a narrower
 * embedding with projections and no final norm. */
#include "model/arch.h"

#define AFFINE     "layer_norm_elementwise_affine=true"
#define FINAL_NORM "do_layer_norm_before=true&!_remove_final_layer_norm=false"

const arch_desc arch_opt = {
    .name = "opt",
    .gguf = "opt",
    .hf = "opt",
    .hf_class = "OPTForCausalLM",
    .hf_base = "model.",
    .norm = NORM_LAYER,
    .act = ACT_RELU,
    .flags = A_NO_ROPE,
    .tensors = ARCH_TENSORS(
        {SLOT_EMBED, "model.decoder.embed_tokens"}, {SLOT_POS, "model.decoder.embed_positions"},
        {SLOT_EMBED_IN, "model.decoder.project_in"},
        {SLOT_ATTN_NORM, "model.decoder.layers.%d.self_attn_layer_norm", T_BIAS, .when = AFFINE},
        {SLOT_ATTN_NORM, NULL, T_PLAIN_NORM}, {SLOT_Q, "model.decoder.layers.%d.self_attn.q_proj"},
        {SLOT_K, "model.decoder.layers.%d.self_attn.k_proj"},
        {SLOT_V, "model.decoder.layers.%d.self_attn.v_proj"},
        {SLOT_O, "model.decoder.layers.%d.self_attn.out_proj"},
        {SLOT_FFN_NORM, "model.decoder.layers.%d.final_layer_norm", T_BIAS, .when = AFFINE},
        {SLOT_FFN_NORM, NULL, T_PLAIN_NORM}, {SLOT_UP, "model.decoder.layers.%d.fc1"},
        {SLOT_DOWN, "model.decoder.layers.%d.fc2"},
        {SLOT_OUT_NORM, "model.decoder.final_layer_norm", T_BIAS, .when = AFFINE "&" FINAL_NORM},
        {SLOT_OUT_NORM, NULL, T_PLAIN_NORM, .when = FINAL_NORM},
        {SLOT_EMBED_OUT, "model.decoder.project_out"}, {SLOT_HEAD, "lm_head"}),
    .keys = ARCH_KEYS(
        {HP_pos_offset, .flags = K_CONST, .value = 2}, {HP_d_embed, .hf = "word_embed_proj_dim"},
        {HP_post_norm, .flags = K_CONST, .value = 1, .when = "!do_layer_norm_before=true"},
        {HP_norm_eps, .flags = K_CONST, .value = 1e-5}, {HP_n_ctx_train, .flags = K_DEFAULT, .value = 2048},
        {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
};
