/* LFM2: layers with a gated short convolution between layers with attention. */
#include "model/arch.h"

const arch_desc arch_lfm2 = {
    .name = "lfm2",
    .gguf = "lfm2",
    .hf = "lfm2",
    .hf_class = "Lfm2ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .mixer = MIXER_CONV,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.operator_norm"},
        {SLOT_REC_IN, "model.layers.%d.conv.in_proj", .gguf = "blk.%d.shortconv.in_proj"},
        {SLOT_REC_CONV, "model.layers.%d.conv.conv", .gguf = "blk.%d.shortconv.conv"},
        {SLOT_REC_OUT, "model.layers.%d.conv.out_proj", .gguf = "blk.%d.shortconv.out_proj"},
        {SLOT_Q, "model.layers.%d.self_attn.q_proj"}, {SLOT_K, "model.layers.%d.self_attn.k_proj"},
        {SLOT_V, "model.layers.%d.self_attn.v_proj"}, {SLOT_O, "model.layers.%d.self_attn.out_proj"},
        {SLOT_Q_NORM, "model.layers.%d.self_attn.q_layernorm"},
        {SLOT_K_NORM, "model.layers.%d.self_attn.k_layernorm"}, {SLOT_FFN_NORM, "model.layers.%d.ffn_norm"},
        {SLOT_GATE, "model.layers.%d.feed_forward.w1"}, {SLOT_UP, "model.layers.%d.feed_forward.w3"},
        {SLOT_DOWN, "model.layers.%d.feed_forward.w2"},
        {SLOT_OUT_NORM, "model.embedding_norm", .gguf = "token_embd_norm|output_norm"},
        {SLOT_HEAD, "lm_head"}),
    .keys = ARCH_KEYS(
        {HP_rec_tap, .hf = "conv_L_cache", .gguf = "shortconv.l_cache", .flags = K_DEFAULT, .value = 3},
        {HP_d_ff, .hf_rows = "model.layers.0.feed_forward.w1.weight"},
        {HP_norm_eps, .hf = "norm_eps|block_norm_eps", .flags = K_DEFAULT, .value = 1e-5},
        {HP_rope_theta, .flags = K_DEFAULT, .value = 1000000}, {HP_n_kv_head, .flags = K_DEFAULT, .value = 8},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 128000},
        {HP_tied_head, .hf = "tie_word_embeddings|tie_embedding", .flags = K_DEFAULT, .value = 1}),
};
