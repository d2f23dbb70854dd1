/* Llama 4 (text): three of four layers see chunks of positions; the fourth is full, has no rotary embedding
 * and scales queries by their position. A row's one expert gets its input times a sigmoid. */
#include "model/arch.h"

const arch_desc arch_llama4 = {
    .name = "llama4",
    .gguf = "llama4",
    .hf = "llama4_text|llama4",
    .hf_class = "Llama4ForCausalLM|Llama4ForConditionalGeneration",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_INTERLEAVED,
    .rope_gguf = ROPE_INTERLEAVED,
    .flags = A_NORM_AFTER_ROPE | A_CHUNKED | A_NOPE_BARE | A_WEIGHTED_INPUT,
    .tensors =
        ARCH_TENSORS(ARCH_LLAMA_EMBED, ARCH_LLAMA_NORMS, ARCH_LLAMA_QKVO,
                     {SLOT_Q_NORM, NULL, T_PLAIN_NORM, .when = "use_qk_norm=true"},
                     {SLOT_K_NORM, NULL, T_PLAIN_NORM, .when = "use_qk_norm=true"},
                     {SLOT_GATE, "model.layers.%d.feed_forward.gate_proj"},
                     {SLOT_UP, "model.layers.%d.feed_forward.up_proj"},
                     {SLOT_DOWN, "model.layers.%d.feed_forward.down_proj"},
                     {SLOT_ROUTER, "model.layers.%d.feed_forward.router"}, {SLOT_GATE_EXPS}, {SLOT_UP_EXPS},
                     {SLOT_GATE_UP_EXPS, "model.layers.%d.feed_forward.experts.gate_up_proj", T_TRANSPOSED},
                     {SLOT_DOWN_EXPS, "model.layers.%d.feed_forward.experts.down_proj", T_TRANSPOSED},
                     ARCH_SHARED_EXPERT("model.layers.%d.feed_forward.shared_expert."), ARCH_LLAMA_HEAD),
    .keys = ARCH_KEYS(
        {HP_d_ff, .hf = "intermediate_size_mlp"}, {HP_d_expert, .hf = "intermediate_size"},
        {HP_n_shared, .flags = K_CONST, .value = 1},
        {HP_expert_score, .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = SCORE_SIGMOID},
        {HP_n_expert, .flags = K_DEFAULT, .value = 16}, {HP_n_expert_used, .flags = K_DEFAULT, .value = 1},
        {HP_window, .hf = "attention_chunk_size", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 8192,
         .gguf = "attention.chunk_size"},
        {HP_window_pattern, .hf = "no_rope_layer_interval", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 4,
         .gguf = ""},
        {HP_nope_every, .hf = "no_rope_layer_interval", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 4,
         .gguf = ""},
        {HP_pos_scale, .hf = "attn_scale", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 0.1,
         .gguf = "attention.temperature_scale", .when = "attn_temperature_tuning=true"},
        {HP_pos_scale_every, .hf = "floor_scale", .flags = K_DEFAULT | K_DEFAULT_GGUF, .value = 8192,
         .gguf = "attention.temperature_length"},
        {HP_rope_theta, .flags = K_DEFAULT, .value = 500000}, {HP_d_head, .flags = K_DEFAULT, .value = 128},
        {HP_norm_eps, .flags = K_DEFAULT, .value = 1e-5}),
};
