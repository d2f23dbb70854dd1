/* InternLM2 and 2.5: Llama with other names. HF checkpoints have q, k and v in one matrix, grouped by
 * key/value head; GGUF has them separately. */
#include "model/arch.h"

const arch_desc arch_internlm2 = {
    .name = "internlm2",
    .gguf = "internlm2",
    .hf = "internlm2",
    .hf_class = "InternLM2ForCausalLM",
    .hf_base = "model.",
    .norm = NORM_RMS,
    .act = ACT_SILU,
    .rope_hf = ROPE_HALF,
    .rope_gguf = ROPE_INTERLEAVED,
    .tensors = ARCH_TENSORS(
        {SLOT_EMBED, "model.tok_embeddings"}, {SLOT_ATTN_NORM, "model.layers.%d.attention_norm"},
        {SLOT_QKV, "model.layers.%d.attention.wqkv", 0, ROWS_GROUPED, ""}, {SLOT_Q, NULL}, {SLOT_K, NULL},
        {SLOT_V, NULL}, {SLOT_O, "model.layers.%d.attention.wo"}, {SLOT_FFN_NORM, "model.layers.%d.ffn_norm"},
        {SLOT_GATE, "model.layers.%d.feed_forward.w1"}, {SLOT_UP, "model.layers.%d.feed_forward.w3"},
        {SLOT_DOWN, "model.layers.%d.feed_forward.w2"}, {SLOT_OUT_NORM, "model.norm"}, {SLOT_HEAD, "output"}),
    .keys = ARCH_KEYS({HP_norm_eps, .flags = K_DEFAULT, .value = 1e-6}),
};
