/* Qwen4 (experimental): as Qwen3.5 with experts, and hyper-connections of several streams. Its sparse
 * attention sees all positions up to a budget; a longer context is refused. Its n-gram embeddings are refused
 * too. */
#include "model/arch.h"

#define SITE(at, norm, down, up)                                                                             \
    {norm, at ".hc_norm"}, {down, at ".input_mix_weight_down"}, {                                            \
        up, at ".input_mix_weight_up"                                                                        \
    }

const arch_desc arch_qwen4_exp = {
    .name = "qwen4_exp",
    .hf = "qwen4_exp_text|qwen4_exp",
    .hf_class = "Qwen4ExpForCausalLM|Qwen4ExpForConditionalGeneration",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_NORM_PLUS_1,
    .mixer = MIXER_DELTA,
    .mixer_layers = MIXER_EVERY,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED,
        SITE("model.layers.%d.attn_hyper_connection", SLOT_MIX_NORM, SLOT_MIX_DOWN, SLOT_MIX_UP),
        {SLOT_MIX_INJECT, "model.layers.%d.attn_hyper_connection.block_inject_weight"},
        SITE("model.layers.%d.mlp_hyper_connection", SLOT_MIX_FFN_NORM, SLOT_MIX_FFN_DOWN, SLOT_MIX_FFN_UP),
        {SLOT_MIX_FFN_INJECT, "model.layers.%d.mlp_hyper_connection.block_inject_weight"}, ARCH_QWEN_DELTA_IN,
        ARCH_QWEN_DELTA, ARCH_QWEN_GATED_ATTENTION,
        {SLOT_INDEX_QK, "model.layers.%d.self_attn.indexer.index_qk_proj", T_UNUSED},
        {SLOT_INDEX_Q_NORM, "model.layers.%d.self_attn.indexer.q_layernorm", T_UNUSED},
        {SLOT_INDEX_K_NORM, "model.layers.%d.self_attn.indexer.k_layernorm", T_UNUSED}, ARCH_QWEN_MIXTURE,
        SITE("model.hyper_connection_mixer", SLOT_MIX_OUT_NORM, SLOT_MIX_OUT_DOWN, SLOT_MIX_OUT_UP),
        {SLOT_HEAD, "lm_head"}),
    .keys = ARCH_KEYS(
        ARCH_QWEN_DELTA_KEYS, ARCH_QWEN_MIXTURE_KEYS,
        {HP_n_stream, .hf = "hc_count", .flags = K_DEFAULT, .value = 4},
        {HP_stream_rank, .hf = "hc_lowrank", .flags = K_DEFAULT, .value = 320},
        {HP_sparse_budget, .hf = "indexer_budget"}, {HP_sparse_block, .hf = "indexer_compress_ratio"},
        {HP_n_kv_head, .flags = K_DEFAULT, .value = 2}, {HP_n_expert, .flags = K_DEFAULT, .value = 512},
        {HP_n_expert_used, .flags = K_DEFAULT, .value = 10}, {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 32768}),
    .only = ARCH_ONLY({"ple_layer_ids", "[]"}, {"hidden_act", "silu"}),
};
