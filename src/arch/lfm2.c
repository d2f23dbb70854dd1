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
    .tensors = ARCH_TENSORS(ARCH_LFM2, ARCH_LFM2_HEAD),
    .keys = ARCH_KEYS(ARCH_LFM2_KEYS, {HP_d_ff, .hf_rows = "model.layers.0.feed_forward.w1.weight"}),
};
