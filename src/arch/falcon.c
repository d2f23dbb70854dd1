/* Falcon: the 7B model (one key/value head), the new decoder (40B, 180B, 11B: grouped heads, two norms or
 * one) and Falcon-RW (sequential, ALiBi, a head each). If there are two norms, GGUF calls the one before
 * attention attn_norm_2. */
#include "model/arch.h"

const arch_desc arch_falcon = {
    .name = "falcon",
    .gguf = "falcon",
    .hf = "falcon|RefinedWeb|RefinedWebModel",
    .hf_class = "FalconForCausalLM|RWForCausalLM",
    .hf_base = "transformer.",
    .norm = NORM_LAYER,
    .act = ACT_GELU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_ALIBI_SCALED,
    .tensors = ARCH_TENSORS(
        {SLOT_EMBED, "transformer.word_embeddings"},
        {SLOT_ATTN_NORM, "transformer.h.%d.ln_attn|transformer.h.%d.input_layernorm", T_BIAS,
         .gguf = "blk.%d.attn_norm_2|blk.%d.attn_norm"},
        {SLOT_QKV, "transformer.h.%d.self_attention.query_key_value", 0, ROWS_GROUPED},
        {SLOT_O, "transformer.h.%d.self_attention.dense"},
        {SLOT_FFN_NORM, "transformer.h.%d.ln_mlp|transformer.h.%d.post_attention_layernorm",
         T_BIAS | T_OPT_PARALLEL, .gguf = "blk.%d.attn_norm"},
        {SLOT_UP, "transformer.h.%d.mlp.dense_h_to_4h"}, {SLOT_DOWN, "transformer.h.%d.mlp.dense_4h_to_h"},
        {SLOT_OUT_NORM, "transformer.ln_f", T_BIAS}, {SLOT_HEAD, "lm_head"}),
    .keys = ARCH_KEYS(
        {HP_n_kv_head, .hf = "num_kv_heads|n_head_kv", .when = "new_decoder_architecture=false"},
        {HP_n_kv_head, .hf = "", .flags = K_DEFAULT, .value = 1, .when = "multi_query=true"},
        {HP_n_kv_head, .hf = ""},
        {HP_parallel, .flags = K_CONST, .value = 1, .when = "new_decoder_architecture=false"},
        {HP_parallel, .hf = "parallel_attn", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 1},
        {HP_alibi_max_bias, .flags = K_CONST, .value = 8, .when = "alibi=false"},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5}, {HP_n_ctx_train, .flags = K_DEFAULT, .value = 2048},
        {HP_tied_head, .flags = K_DEFAULT, .value = 1}),
};
