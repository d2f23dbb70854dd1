/* MPT: ALiBi, no biases, a feed-forward width of 4 * d_model (HF ignores expansion_ratio), clamped q, k and v
 * in the larger ones. */
#include "model/arch.h"

const arch_desc arch_mpt = {
    .name = "mpt",
    .gguf = "mpt",
    .hf = "mpt",
    .hf_class = "MptForCausalLM|MPTForCausalLM",
    .hf_base = "transformer.",
    .norm = NORM_LAYER,
    .act = ACT_GELU,
    .hf_act = "",
    .tensors = ARCH_TENSORS(
        {SLOT_EMBED, "transformer.wte"}, {SLOT_ATTN_NORM, "transformer.blocks.%d.norm_1"},
        {SLOT_QKV, "transformer.blocks.%d.attn.Wqkv"}, {SLOT_O, "transformer.blocks.%d.attn.out_proj"},
        {SLOT_FFN_NORM, "transformer.blocks.%d.norm_2"}, {SLOT_UP, "transformer.blocks.%d.ffn.up_proj"},
        {SLOT_DOWN, "transformer.blocks.%d.ffn.down_proj"}, {SLOT_OUT_NORM, "transformer.norm_f"},
        {SLOT_HEAD, "lm_head"}),
    .keys = ARCH_KEYS({HP_n_kv_head, .hf = ""}, {HP_d_ff, .hf = ""},
                      {HP_alibi_max_bias, .hf = "attn_config.alibi_bias_max", .flags = K_DEFAULT, .value = 8},
                      {HP_qkv_clip, .hf = "attn_config.clip_qkv"},
                      {HP_attn_scale, .hf = "attn_config.softmax_scale"},
                      {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
    .only = ARCH_ONLY({"attn_config.alibi", "true"}, {"attn_config.qk_ln", "false"},
                      {"attn_config.prefix_lm", "false"}, {"attn_config.attn_type", "multihead_attention"},
                      {"norm_type", "low_precision_layernorm|layernorm"}),
};
