/* Jamba: one of eight layers has attention, without rotary embedding, the others are Mamba-1 state spaces;
 * every second feed-forward layer is a mixture. */
#include "model/arch.h"

const arch_desc arch_jamba = {
    .name = "jamba",
    .gguf = "jamba",
    .hf = "jamba",
    .hf_class = "JambaForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_HALF,
    .flags = A_NO_ROPE,
    .mixer = MIXER_SCAN,
    .tensors = ARCH_TENSORS(
        ARCH_LLAMA_EMBED, {SLOT_ATTN_NORM, "model.layers.%d.input_layernorm"}, ARCH_LLAMA_QKVO,
        {SLOT_REC_IN, "model.layers.%d.mamba.in_proj"}, {SLOT_REC_CONV, "model.layers.%d.mamba.conv1d"},
        {SLOT_REC_X_PROJ, "model.layers.%d.mamba.x_proj"},
        {SLOT_REC_DT, "model.layers.%d.mamba.dt_proj", T_BIAS, .gguf = "blk.%d.ssm_dt"},
        {SLOT_REC_DT_NORM, "model.layers.%d.mamba.dt_layernorm", T_OPTIONAL},
        {SLOT_REC_B_NORM, "model.layers.%d.mamba.b_layernorm", T_OPTIONAL},
        {SLOT_REC_C_NORM, "model.layers.%d.mamba.c_layernorm", T_OPTIONAL},
        {SLOT_REC_A, "model.layers.%d.mamba.A_log", T_BARE | T_MINUS_EXP},
        {SLOT_REC_D, "model.layers.%d.mamba.D", T_BARE}, {SLOT_REC_OUT, "model.layers.%d.mamba.out_proj"},
        {SLOT_FFN_NORM, "model.layers.%d.pre_ff_layernorm"},
        {SLOT_GATE, "model.layers.%d.feed_forward.gate_proj"},
        {SLOT_UP, "model.layers.%d.feed_forward.up_proj"},
        {SLOT_DOWN, "model.layers.%d.feed_forward.down_proj"},
        {SLOT_ROUTER, "model.layers.%d.feed_forward.router"}, ARCH_EXPERTS("model.layers.%d.feed_forward."),
        {SLOT_OUT_NORM, "model.final_layernorm"}, {SLOT_HEAD, "lm_head"}),
    .keys = ARCH_KEYS(
        {HP_rec_tap, .hf = "mamba_d_conv", .flags = K_DEFAULT, .value = 4},
        {HP_rec_inner, .hf_columns = "model.layers.%d.mamba.out_proj.weight"},
        {HP_rec_head, .flags = K_CONST, .value = 1},
        {HP_rec_dt_rank, .hf = "mamba_dt_rank", .gguf = "ssm.time_step_rank"},
        {HP_rec_state, .hf = "mamba_d_state", .flags = K_DEFAULT, .value = 16},
        {HP_d_expert, .hf = "intermediate_size", .gguf = ""}, {HP_n_expert, .flags = K_DEFAULT, .value = 16},
        {HP_n_expert_used, .flags = K_DEFAULT, .value = 2}, {HP_n_kv_head, .flags = K_DEFAULT, .value = 8},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6},
        {HP_n_ctx_train, .flags = K_DEFAULT, .value = 262144}),
    .only = ARCH_ONLY({"hidden_act", "silu|swish"}),
};
