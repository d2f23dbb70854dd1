/* DeepSeek V4: compressed attention, manifold-constrained hyper-connections, mixtures whose first layers list
 * the experts of each token. GGUF has no names for it. */
#include "model/arch.h"

#define AT    "model.layers.%d."
#define INDEX AT "attn.indexer."
#define SITE(slot, name)                                                                                     \
    {slot, AT "hc_" name "_fn", T_BARE}, {slot##_SCALE, AT "hc_" name "_scale", T_BARE}, {                   \
        slot##_BASE, AT "hc_" name "_base", T_BARE                                                           \
    }
#define POOL(slot, at)                                                                                       \
    {slot##_X, at "wkv"}, {slot##_GATE, at "wgate"}, {slot##_BIAS, at "ape", T_BARE}, {                      \
        slot##_NORM, at "norm"                                                                               \
    }

const arch_desc arch_deepseek_v4 = {
    .name = "deepseek_v4",
    .hf = "deepseek_v4",
    .hf_class = "DeepseekV4ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_INTERLEAVED,
    .rope_gguf = ROPE_INTERLEAVED,
    .flags = A_YARN_BARE,
    .tensors = ARCH_TENSORS(
        {SLOT_EMBED, "model.embed_tokens|model.embed"}, {SLOT_ATTN_NORM, AT "attn_norm"},
        {SLOT_FFN_NORM, AT "ffn_norm"}, SITE(SLOT_CONNECT, "attn"), SITE(SLOT_CONNECT_FFN, "ffn"),
        {SLOT_Q_A, AT "attn.wq_a"}, {SLOT_Q_A_NORM, AT "attn.q_norm"}, {SLOT_Q_B, AT "attn.wq_b"},
        {SLOT_K, AT "attn.wkv"}, {SLOT_K_NORM, AT "attn.kv_norm|" AT "attn.norm"},
        {SLOT_SINKS, AT "attn.attn_sink"}, {SLOT_O_LOW, AT "attn.wo_a"}, {SLOT_O, AT "attn.wo_b"},
        POOL(SLOT_POOL, AT "attn.compressor."), POOL(SLOT_INDEX, INDEX "compressor."),
        {SLOT_INDEX_Q, INDEX "wq_b"}, {SLOT_INDEX_W, INDEX "weights_proj"},
        {SLOT_ROUTER, AT "ffn.gate", T_NO_BIAS}, {SLOT_CHOICE_BIAS, AT "ffn.gate.bias"},
        {SLOT_HASH, AT "ffn.gate.tid2eid", T_BARE}, {SLOT_GATE_EXPS, AT "ffn.experts.%d.w1"},
        {SLOT_UP_EXPS, AT "ffn.experts.%d.w3"}, {SLOT_DOWN_EXPS, AT "ffn.experts.%d.w2"},
        {SLOT_GATE_SHEXP, AT "ffn.shared_experts.w1"}, {SLOT_UP_SHEXP, AT "ffn.shared_experts.w3"},
        {SLOT_DOWN_SHEXP, AT "ffn.shared_experts.w2"},
        {SLOT_CONNECT_OUT, "model.hc_head.hc_fn|model.hc_head_fn", T_BARE},
        {SLOT_CONNECT_OUT_SCALE, "model.hc_head.hc_scale|model.hc_head_scale", T_BARE},
        {SLOT_CONNECT_OUT_BASE, "model.hc_head.hc_base|model.hc_head_base", T_BARE},
        {SLOT_OUT_NORM, "model.norm"}, {SLOT_HEAD, "head"}),
    .keys = ARCH_KEYS(
        {HP_n_rot, .hf = "qk_rope_head_dim"},
        {HP_rope_part, .hf = "rope_parameters.compress.partial_rotary_factor|partial_rotary_factor",
         .flags = K_DEFAULT, .value = 0.125},
        {HP_rope_theta, .hf = "rope_parameters.compress.rope_theta|compress_rope_theta", .flags = K_DEFAULT,
         .value = 160000},
        {HP_rope_theta_local, .hf = "rope_parameters.main.rope_theta|rope_theta", .flags = K_DEFAULT,
         .value = 10000},
        {HP_d_head, .flags = K_DEFAULT, .value = 512}, {HP_n_kv_head, .flags = K_DEFAULT, .value = 1},
        {HP_d_ff, .hf = "moe_intermediate_size", .flags = K_DEFAULT, .value = 2048},
        {HP_q_low_rank, .hf = "q_lora_rank", .flags = K_DEFAULT, .value = 1024},
        {HP_o_low_rank, .hf = "o_lora_rank", .flags = K_DEFAULT, .value = 1024},
        {HP_o_group, .hf = "o_groups", .flags = K_DEFAULT, .value = 8},
        {HP_window, .hf = "sliding_window", .flags = K_DEFAULT, .value = 128},
        {HP_pool_chosen, .hf = "compress_rates.compressed_sparse_attention|compress_rate_csa",
         .flags = K_DEFAULT, .value = 4},
        {HP_pool_all, .hf = "compress_rates.heavily_compressed_attention|compress_rate_hca",
         .flags = K_DEFAULT, .value = 128},
        {HP_index_head, .hf = "index_n_heads", .flags = K_DEFAULT, .value = 64},
        {HP_index_width, .hf = "index_head_dim", .flags = K_DEFAULT, .value = 128},
        {HP_index_used, .hf = "index_topk", .flags = K_DEFAULT, .value = 512},
        {HP_n_stream, .hf = "hc_mult", .flags = K_DEFAULT, .value = 4},
        {HP_connect_iterations, .hf = "hc_sinkhorn_iters", .flags = K_DEFAULT, .value = 20},
        {HP_connect_eps, .hf = "hc_eps", .flags = K_DEFAULT, .value = 1e-6},
        {HP_gate_limit, .hf = "swiglu_limit", .flags = K_DEFAULT, .value = 10},
        {HP_expert_score, .flags = K_DEFAULT, .value = SCORE_SQRT_SOFTPLUS},
        {HP_expert_norm, .flags = K_CONST, .value = 1}, {HP_n_expert, .flags = K_DEFAULT, .value = 256},
        {HP_n_expert_used, .flags = K_DEFAULT, .value = 6},
        /* of the width of one expert, whatever their number is */
        {HP_n_shared, .flags = K_CONST, .value = 1}, {HP_d_expert, .flags = K_DEFAULT, .value = 2048},
        {HP_expert_scale, .flags = K_DEFAULT, .value = 1.5}, {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 1048576}),
    .only = ARCH_ONLY({"scoring_func", "sqrtsoftplus"}, {"hidden_act", "silu"}),
};
