/* shapes.c - the shapes of well-known models, from their published configurations, and what the tensors of
 * each family are. A new model is a new row. */
#include "synth/shapes.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Rows of dense models omit the experts. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define LLAMA31 131072, 500000, 1e-5f
const synth_shape synth_shapes[] = {
    /* name, family, layers, width, heads, kv heads, head, feed-forward, vocabulary, context, rope base, eps,
       tied */
    {"smollm2-135m", SYNTH_LLAMA, 30, 576, 9, 3, 64, 1536, 49152, 8192, 100000, 1e-5f, true},
    {"llama-3.2-1b", SYNTH_LLAMA, 16, 2048, 32, 8, 64, 8192, 128256, LLAMA31, true},
    {"llama-3.2-3b", SYNTH_LLAMA, 28, 3072, 24, 8, 128, 8192, 128256, LLAMA31, true},
    {"llama-3-8b", SYNTH_LLAMA, 32, 4096, 32, 8, 128, 14336, 128256, 8192, 500000, 1e-5f, false},
    {"llama-3-70b", SYNTH_LLAMA, 80, 8192, 64, 8, 128, 28672, 128256, 8192, 500000, 1e-5f, false},
    {"llama-2-7b", SYNTH_LLAMA, 32, 4096, 32, 32, 128, 11008, 32000, 4096, 10000, 1e-5f, false},
    {"llama-2-13b", SYNTH_LLAMA, 40, 5120, 40, 40, 128, 13824, 32000, 4096, 10000, 1e-5f, false},
    {"mistral-7b", SYNTH_LLAMA, 32, 4096, 32, 8, 128, 14336, 32000, 32768, 10000, 1e-5f, false},
    {"qwen2.5-0.5b", SYNTH_QWEN2, 24, 896, 14, 2, 64, 4864, 151936, 32768, 1000000, 1e-6f, true},
    {"qwen2.5-7b", SYNTH_QWEN2, 28, 3584, 28, 4, 128, 18944, 152064, 131072, 1000000, 1e-6f, false},
    {"phi-3-medium", SYNTH_PHI3, 40, 5120, 40, 10, 128, 17920, 32064, 4096, 10000, 1e-5f, false},
    {"opt-125m", SYNTH_OPT, 12, 768, 12, 12, 64, 3072, 50272, 2048, 0, 1e-5f, true},
    {"opt-6.7b", SYNTH_OPT, 32, 4096, 32, 32, 128, 16384, 50272, 2048, 0, 1e-5f, true},
    {"opt-30b", SYNTH_OPT, 48, 7168, 56, 56, 128, 28672, 50272, 2048, 0, 1e-5f, true},
    {"opt-175b", SYNTH_OPT, 96, 12288, 96, 96, 128, 49152, 50272, 2048, 0, 1e-5f, true},
    /* the same, and experts, chosen experts */
    {"qwen3-30b-a3b", SYNTH_QWEN3MOE, 48, 2048, 32, 4, 128, 768, 151936, 40960, 1000000, 1e-6f, false, 128,
     8},
    {"qwen3-235b-a22b", SYNTH_QWEN3MOE, 94, 4096, 64, 4, 128, 1536, 151936, 40960, 1000000, 1e-6f, false, 128,
     8},
    {"qwen3.5-35b-a3b",
     SYNTH_QWEN35MOE,
     40,
     2048,
     16,
     2,
     256,
     512,
     248320,
     262144,
     1e7f,
     1e-6f,
     false,
     256,
     8,
     .d_shared = 512,
     .full_every = 4,
     .rec_inner = 4096,
     .rec_head = 32,
     .rec_group = 16,
     .rec_state = 128,
     .rec_tap = 4,
     .d_turned = 64},
    {"gpt-oss-20b", SYNTH_GPTOSS, 24, 2880, 64, 8, 64, 2880, 201088, 131072, 150000, 1e-5f, false, 32, 4,
     .full_every = 2, .window = 128},
    {"gpt-oss-120b", SYNTH_GPTOSS, 36, 2880, 64, 8, 64, 2880, 201088, 131072, 150000, 1e-5f, false, 128, 4,
     .full_every = 2, .window = 128},
    {"glm-4.5-air", SYNTH_GLM4MOE, 46, 4096, 96, 8, 128, 1408, 151552, 131072, 1000000, 1e-5f, false, 128, 8,
     .n_dense = 1, .d_dense = 10944, .d_shared = 1408, .d_turned = 64},
    {"deepseek-v3",
     SYNTH_DEEPSEEK2,
     61,
     7168,
     128,
     128,
     192,
     2048,
     129280,
     163840,
     10000,
     1e-6f,
     false,
     256,
     8,
     .n_dense = 3,
     .d_dense = 18432,
     .d_shared = 2048,
     .q_rank = 1536,
     .kv_rank = 512,
     .d_turned = 64,
     .d_value = 128},
    {"gemma-4-26b-a4b",
     SYNTH_GEMMA4,
     30,
     2816,
     16,
     8,
     256,
     704,
     262144,
     262144,
     1000000,
     1e-6f,
     true,
     128,
     8,
     .d_dense = 2112,
     .full_every = 6,
     .window = 1024,
     .d_head_full = 512,
     .n_kv_full = 2},
    {"lfm2-8b-a1b", SYNTH_LFM2MOE, 24, 2048, 32, 8, 64, 1792, 65536, 128000, 1000000, 1e-5f, true, 32, 4,
     .n_dense = 2, .d_dense = 7168, .full = "rrFrrrFrrrFrrrFrrrFrrFrr", .rec_tap = 3},
    {"granite-4-h-small",
     SYNTH_GRANITE,
     40,
     4096,
     32,
     8,
     128,
     768,
     100352,
     131072,
     10000,
     1e-5f,
     true,
     72,
     10,
     .d_shared = 1536,
     .full = "rrrrrFrrrrrrrrrFrrrrrrrrrFrrrrrrrrrFrrrr",
     .rec_inner = 8192,
     .rec_head = 128,
     .rec_group = 1,
     .rec_state = 128,
     .rec_tap = 4},
};
const int synth_n_shape = sizeof synth_shapes / sizeof synth_shapes[0];

const synth_shape *synth_find(const char *name) {
    for (int i = 0; i < synth_n_shape; i++)
        if (!strcasecmp(synth_shapes[i].name, name))
            return &synth_shapes[i];
    return NULL;
}

enum {
    LLAMA = 1 << SYNTH_LLAMA,
    QWEN2 = 1 << SYNTH_QWEN2,
    PHI3 = 1 << SYNTH_PHI3,
    OPT = 1 << SYNTH_OPT,
    QWEN3MOE = 1 << SYNTH_QWEN3MOE,
    QWEN35MOE = 1 << SYNTH_QWEN35MOE,
    GPTOSS = 1 << SYNTH_GPTOSS,
    GLM4MOE = 1 << SYNTH_GLM4MOE,
    DEEPSEEK2 = 1 << SYNTH_DEEPSEEK2,
    GEMMA4 = 1 << SYNTH_GEMMA4,
    LFM2MOE = 1 << SYNTH_LFM2MOE,
    GRANITE = 1 << SYNTH_GRANITE,
};
enum {
    DENSE = LLAMA | QWEN2 | PHI3 | OPT,
    MOE = QWEN3MOE | QWEN35MOE | GPTOSS | GLM4MOE | DEEPSEEK2 | GEMMA4 | LFM2MOE | GRANITE,
    ALL = DENSE | MOE,
    SPLIT = ALL & ~(PHI3 | DEEPSEEK2 | QWEN35MOE), /* q, k and v apart, as usual */
    BIASES = QWEN2 | OPT | GPTOSS | GLM4MOE,
    HEAD_NORMS = QWEN3MOE | QWEN35MOE | GLM4MOE | GEMMA4 | LFM2MOE,
    FIRST_DENSE = GLM4MOE | DEEPSEEK2 | LFM2MOE,
    CHOICE_BIAS = GLM4MOE | DEEPSEEK2 | LFM2MOE,
    SHARED = QWEN35MOE | GLM4MOE | DEEPSEEK2 | GRANITE,
    LATE_NORM = QWEN35MOE | GPTOSS | GLM4MOE /* the feed-forward layer's norm has attention's name */
};

/* Sizes of rows and columns. */
typedef enum dim {
    D_ONE,
    D_MODEL,
    D_Q,
    D_Q2,
    D_KV,
    D_QKV,
    D_FF,
    D_FF2,
    D_DENSE,
    D_SHARED,
    D_VOCAB,
    D_POS,
    D_HEAD,
    D_HEADS,
    D_EXPERTS,
    D_Q_RANK,
    D_KV_RANK,
    D_KV_A,
    D_KV_B,
    D_VALUES,
    D_CONV3,
    D_INNER,
    D_MIX,
    D_SSM_IN,
    D_REC_HEADS,
    D_REC_HEAD,
    D_TAPS,
    D_OF_HEAD
} dim;

/* The layers that have a tensor. */
typedef enum which { W_ALL, W_FULL, W_NOT_FULL, W_ATTENDS, W_RECURRENT, W_FIRST, W_MIXTURE } which;

/* A tensor: families that have it, part of the model, layers, name, rows (D_ONE: a vector), columns. */
static const struct {
    unsigned families;
    synth_part part;
    which layers;
    const char *name;
    dim rows, cols;
} tensors[] = {
    {ALL, SYNTH_EMBED, W_ALL, "token_embd.weight", D_VOCAB, D_MODEL},
    {OPT, SYNTH_EMBED, W_ALL, "position_embd.weight", D_POS, D_MODEL},
    {ALL, SYNTH_LAYER, W_ALL, "blk.%d.attn_norm.weight", D_ONE, D_MODEL},
    {OPT, SYNTH_LAYER, W_ALL, "blk.%d.attn_norm.bias", D_ONE, D_MODEL},
    {SPLIT, SYNTH_LAYER, W_ATTENDS, "blk.%d.attn_q.weight", D_Q, D_MODEL},
    {QWEN35MOE, SYNTH_LAYER, W_ATTENDS, "blk.%d.attn_q.weight", D_Q2, D_MODEL},
    {SPLIT | QWEN35MOE, SYNTH_LAYER, W_ATTENDS, "blk.%d.attn_k.weight", D_KV, D_MODEL},
    {(SPLIT | QWEN35MOE) & ~GEMMA4, SYNTH_LAYER, W_ATTENDS, "blk.%d.attn_v.weight", D_KV, D_MODEL},
    {GEMMA4, SYNTH_LAYER, W_NOT_FULL, "blk.%d.attn_v.weight", D_KV, D_MODEL}, /* values are the keys */
    {BIASES, SYNTH_LAYER, W_ALL, "blk.%d.attn_q.bias", D_ONE, D_Q},
    {BIASES, SYNTH_LAYER, W_ALL, "blk.%d.attn_k.bias", D_ONE, D_KV},
    {BIASES, SYNTH_LAYER, W_ALL, "blk.%d.attn_v.bias", D_ONE, D_KV},
    {HEAD_NORMS, SYNTH_LAYER, W_ATTENDS, "blk.%d.attn_q_norm.weight", D_ONE, D_HEAD},
    {HEAD_NORMS, SYNTH_LAYER, W_ATTENDS, "blk.%d.attn_k_norm.weight", D_ONE, D_HEAD},
    {PHI3, SYNTH_LAYER, W_ALL, "blk.%d.attn_qkv.weight", D_QKV, D_MODEL},
    {GPTOSS, SYNTH_LAYER, W_ALL, "blk.%d.attn_sinks.weight", D_ONE, D_HEADS},
    {DEEPSEEK2, SYNTH_LAYER, W_ALL, "blk.%d.attn_q_a.weight", D_Q_RANK, D_MODEL},
    {DEEPSEEK2, SYNTH_LAYER, W_ALL, "blk.%d.attn_q_a_norm.weight", D_ONE, D_Q_RANK},
    {DEEPSEEK2, SYNTH_LAYER, W_ALL, "blk.%d.attn_q_b.weight", D_Q, D_Q_RANK},
    {DEEPSEEK2, SYNTH_LAYER, W_ALL, "blk.%d.attn_kv_a_mqa.weight", D_KV_A, D_MODEL},
    {DEEPSEEK2, SYNTH_LAYER, W_ALL, "blk.%d.attn_kv_a_norm.weight", D_ONE, D_KV_RANK},
    {DEEPSEEK2, SYNTH_LAYER, W_ALL, "blk.%d.attn_kv_b.weight", D_KV_B, D_KV_RANK},
    {ALL & ~DEEPSEEK2, SYNTH_LAYER, W_ATTENDS, "blk.%d.attn_output.weight", D_MODEL, D_Q},
    {DEEPSEEK2, SYNTH_LAYER, W_ALL, "blk.%d.attn_output.weight", D_MODEL, D_VALUES},
    {OPT | GPTOSS, SYNTH_LAYER, W_ALL, "blk.%d.attn_output.bias", D_ONE, D_MODEL},
    {LFM2MOE, SYNTH_LAYER, W_RECURRENT, "blk.%d.shortconv.in_proj.weight", D_CONV3, D_MODEL},
    {LFM2MOE, SYNTH_LAYER, W_RECURRENT, "blk.%d.shortconv.conv.weight", D_MODEL, D_TAPS},
    {LFM2MOE, SYNTH_LAYER, W_RECURRENT, "blk.%d.shortconv.out_proj.weight", D_MODEL, D_MODEL},
    {QWEN35MOE, SYNTH_LAYER, W_RECURRENT, "blk.%d.attn_qkv.weight", D_MIX, D_MODEL},
    {QWEN35MOE, SYNTH_LAYER, W_RECURRENT, "blk.%d.attn_gate.weight", D_INNER, D_MODEL},
    {QWEN35MOE, SYNTH_LAYER, W_RECURRENT, "blk.%d.ssm_beta.weight", D_REC_HEADS, D_MODEL},
    {QWEN35MOE, SYNTH_LAYER, W_RECURRENT, "blk.%d.ssm_alpha.weight", D_REC_HEADS, D_MODEL},
    {GRANITE, SYNTH_LAYER, W_RECURRENT, "blk.%d.ssm_in.weight", D_SSM_IN, D_MODEL},
    {GRANITE, SYNTH_LAYER, W_RECURRENT, "blk.%d.ssm_conv1d.bias", D_ONE, D_MIX},
    {QWEN35MOE | GRANITE, SYNTH_LAYER, W_RECURRENT, "blk.%d.ssm_conv1d.weight", D_MIX, D_TAPS},
    {QWEN35MOE | GRANITE, SYNTH_LAYER, W_RECURRENT, "blk.%d.ssm_dt.bias", D_ONE, D_REC_HEADS},
    {QWEN35MOE, SYNTH_LAYER, W_RECURRENT, "blk.%d.ssm_a", D_ONE, D_REC_HEADS},
    {GRANITE, SYNTH_LAYER, W_RECURRENT, "blk.%d.ssm_a", D_REC_HEADS, D_OF_HEAD},
    {GRANITE, SYNTH_LAYER, W_RECURRENT, "blk.%d.ssm_d", D_REC_HEADS, D_OF_HEAD},
    {QWEN35MOE, SYNTH_LAYER, W_RECURRENT, "blk.%d.ssm_norm.weight", D_ONE, D_REC_HEAD},
    {GRANITE, SYNTH_LAYER, W_RECURRENT, "blk.%d.ssm_norm.weight", D_ONE, D_INNER},
    {QWEN35MOE | GRANITE, SYNTH_LAYER, W_RECURRENT, "blk.%d.ssm_out.weight", D_MODEL, D_INNER},
    {LATE_NORM | GEMMA4, SYNTH_LAYER, W_ALL, "blk.%d.post_attention_norm.weight", D_ONE, D_MODEL},
    {ALL & ~LATE_NORM, SYNTH_LAYER, W_ALL, "blk.%d.ffn_norm.weight", D_ONE, D_MODEL},
    {OPT, SYNTH_LAYER, W_ALL, "blk.%d.ffn_norm.bias", D_ONE, D_MODEL},
    {MOE, SYNTH_LAYER, W_MIXTURE, "blk.%d.ffn_gate_inp.weight", D_EXPERTS, D_MODEL},
    {GPTOSS, SYNTH_LAYER, W_MIXTURE, "blk.%d.ffn_gate_inp.bias", D_ONE, D_EXPERTS},
    {GEMMA4, SYNTH_LAYER, W_ALL, "blk.%d.ffn_gate_inp.scale", D_ONE, D_MODEL},
    {GEMMA4, SYNTH_LAYER, W_ALL, "blk.%d.ffn_down_exps.scale", D_ONE, D_EXPERTS},
    {CHOICE_BIAS, SYNTH_LAYER, W_MIXTURE, "blk.%d.exp_probs_b.bias", D_ONE, D_EXPERTS},
    {MOE, SYNTH_LAYER, W_MIXTURE, "blk.%d.ffn_gate_exps.weight", D_FF, D_MODEL},
    {MOE, SYNTH_LAYER, W_MIXTURE, "blk.%d.ffn_up_exps.weight", D_FF, D_MODEL},
    {MOE, SYNTH_LAYER, W_MIXTURE, "blk.%d.ffn_down_exps.weight", D_MODEL, D_FF},
    {GPTOSS, SYNTH_LAYER, W_MIXTURE, "blk.%d.ffn_gate_exps.bias", D_EXPERTS, D_FF},
    {GPTOSS, SYNTH_LAYER, W_MIXTURE, "blk.%d.ffn_up_exps.bias", D_EXPERTS, D_FF},
    {GPTOSS, SYNTH_LAYER, W_MIXTURE, "blk.%d.ffn_down_exps.bias", D_EXPERTS, D_MODEL},
    {SHARED, SYNTH_LAYER, W_MIXTURE, "blk.%d.ffn_gate_shexp.weight", D_SHARED, D_MODEL},
    {SHARED, SYNTH_LAYER, W_MIXTURE, "blk.%d.ffn_up_shexp.weight", D_SHARED, D_MODEL},
    {SHARED, SYNTH_LAYER, W_MIXTURE, "blk.%d.ffn_down_shexp.weight", D_MODEL, D_SHARED},
    {QWEN35MOE, SYNTH_LAYER, W_MIXTURE, "blk.%d.ffn_gate_inp_shexp.weight", D_ONE, D_MODEL},
    {FIRST_DENSE, SYNTH_LAYER, W_FIRST, "blk.%d.ffn_gate.weight", D_DENSE, D_MODEL},
    {FIRST_DENSE, SYNTH_LAYER, W_FIRST, "blk.%d.ffn_up.weight", D_DENSE, D_MODEL},
    {FIRST_DENSE, SYNTH_LAYER, W_FIRST, "blk.%d.ffn_down.weight", D_MODEL, D_DENSE},
    {GEMMA4, SYNTH_LAYER, W_ALL, "blk.%d.ffn_gate.weight", D_DENSE, D_MODEL},
    {GEMMA4, SYNTH_LAYER, W_ALL, "blk.%d.ffn_up.weight", D_DENSE, D_MODEL},
    {GEMMA4, SYNTH_LAYER, W_ALL, "blk.%d.ffn_down.weight", D_MODEL, D_DENSE},
    {GEMMA4, SYNTH_LAYER, W_ALL, "blk.%d.post_ffw_norm.weight", D_ONE, D_MODEL},
    {GEMMA4, SYNTH_LAYER, W_ALL, "blk.%d.post_ffw_norm_1.weight", D_ONE, D_MODEL},
    {GEMMA4, SYNTH_LAYER, W_ALL, "blk.%d.pre_ffw_norm_2.weight", D_ONE, D_MODEL},
    {GEMMA4, SYNTH_LAYER, W_ALL, "blk.%d.post_ffw_norm_2.weight", D_ONE, D_MODEL},
    {LLAMA | QWEN2, SYNTH_LAYER, W_ALL, "blk.%d.ffn_gate.weight", D_FF, D_MODEL},
    {LLAMA | QWEN2 | OPT, SYNTH_LAYER, W_ALL, "blk.%d.ffn_up.weight", D_FF, D_MODEL},
    {PHI3, SYNTH_LAYER, W_ALL, "blk.%d.ffn_up.weight", D_FF2, D_MODEL},
    {OPT, SYNTH_LAYER, W_ALL, "blk.%d.ffn_up.bias", D_ONE, D_FF},
    {DENSE, SYNTH_LAYER, W_ALL, "blk.%d.ffn_down.weight", D_MODEL, D_FF},
    {OPT, SYNTH_LAYER, W_ALL, "blk.%d.ffn_down.bias", D_ONE, D_MODEL},
    {LFM2MOE, SYNTH_HEAD, W_ALL, "token_embd_norm.weight", D_ONE, D_MODEL},
    {ALL & ~LFM2MOE, SYNTH_HEAD, W_ALL, "output_norm.weight", D_ONE, D_MODEL},
    {OPT, SYNTH_HEAD, W_ALL, "output_norm.bias", D_ONE, D_MODEL},
    {ALL, SYNTH_UNTIED, W_ALL, "output.weight", D_VOCAB, D_MODEL},
};

bool synth_is_full(const synth_shape *s, int64_t layer) {
    if (s->family == SYNTH_GEMMA4 && layer == s->n_layer - 1) /* whatever its period says */
        return true;
    return s->full ? s->full[layer] == 'F' : s->full_every == 0 || (layer + 1) % s->full_every == 0;
}

static bool has_layer(const synth_shape *s, which layers, int64_t layer) {
    const bool full = synth_is_full(s, layer);
    switch (layers) {
    case W_ALL: return true;
    case W_FULL: return full;
    case W_NOT_FULL: return !full;
    case W_ATTENDS: return full || s->rec_tap == 0;
    case W_RECURRENT: return !full;
    case W_FIRST: return layer < s->n_dense;
    case W_MIXTURE: return layer >= s->n_dense;
    }
    return true;
}

static int64_t mix_width(const synth_shape *s) {
    return s->rec_inner + 2 * s->rec_group * s->rec_state;
}

static int64_t size_of(const synth_shape *s, dim d, int64_t layer) {
    const bool wide = s->d_head_full > 0 && synth_is_full(s, layer);
    const int64_t head = wide ? s->d_head_full : s->d_head;
    const int64_t q = s->n_head * head, kv = (wide ? s->n_kv_full : s->n_kv_head) * head;
    switch (d) {
    case D_ONE: return 1;
    case D_MODEL: return s->d_model;
    case D_Q: return q;
    case D_KV: return kv;
    case D_QKV: return q + 2 * kv;
    case D_FF: return s->d_ff;
    case D_FF2: return 2 * s->d_ff;
    case D_VOCAB: return s->n_vocab;
    case D_HEAD: return head;
    case D_HEADS: return s->n_head;
    case D_Q2: return 2 * q;
    case D_DENSE: return s->d_dense;
    case D_SHARED: return s->d_shared;
    case D_Q_RANK: return s->q_rank;
    case D_KV_RANK: return s->kv_rank;
    case D_KV_A: return s->kv_rank + s->d_turned;
    case D_KV_B: return s->n_head * (s->d_head - s->d_turned + s->d_value);
    case D_VALUES: return s->n_head * s->d_value;
    case D_CONV3: return 3 * s->d_model;
    case D_INNER: return s->rec_inner;
    case D_MIX: return mix_width(s);
    case D_SSM_IN: return s->rec_inner + mix_width(s) + s->rec_head;
    case D_REC_HEADS: return s->rec_head;
    case D_REC_HEAD: return s->rec_inner / s->rec_head;
    case D_TAPS: return s->rec_tap;
    case D_OF_HEAD: return 1;
    case D_EXPERTS: return s->n_expert;
    case D_POS: return s->n_ctx + 2; /* OPT's positions begin at 2 */
    }
    return 0;
}

static synth_role role_of(const synth_shape *s, synth_part part, const synth_tensor *t, dim rows, dim cols) {
    if (s->n_expert == 0 || strstr(t->name, "norm"))
        return SYNTH_OTHER;
    if (part == SYNTH_EMBED || part == SYNTH_UNTIED)
        return part == SYNTH_EMBED ? SYNTH_EMBEDDING : SYNTH_OUTPUT;
    if (rows == D_EXPERTS && cols == D_MODEL)
        return strstr(t->name, "bias") ? SYNTH_BIAS : SYNTH_ROUTER;
    if (t->vector && cols == D_MODEL && strstr(t->name, "bias"))
        return SYNTH_BIAS;
    return rows == D_MODEL && !t->exact ? SYNTH_WRITES : SYNTH_OTHER;
}

static bool visit_part(const synth_shape *s, synth_part part, int layer, synth_tensor_fn fn, void *user) {
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        if (tensors[i].part != part || !(tensors[i].families & (1u << s->family)) ||
            !has_layer(s, tensors[i].layers, layer))
            continue;
        synth_tensor t = {.layer = layer,
                          .rows = size_of(s, tensors[i].rows, layer),
                          .cols = size_of(s, tensors[i].cols, layer)};
        const char *mark = strstr(tensors[i].name, "%d");
        if (mark)
            snprintf(t.name, sizeof t.name, "%.*s%d%s", (int)(mark - tensors[i].name), tensors[i].name, layer,
                     mark + 2);
        else
            snprintf(t.name, sizeof t.name, "%s", tensors[i].name);
        t.vector = tensors[i].rows == D_ONE;
        t.n_expert = strstr(t.name, "_exps.weight") ? s->n_expert : 0;
        t.exact = tensors[i].rows == D_EXPERTS || tensors[i].cols == D_TAPS || tensors[i].cols == D_OF_HEAD ||
                  tensors[i].rows == D_REC_HEADS;
        t.role = role_of(s, part, &t, tensors[i].rows, tensors[i].cols);
        t.norm =
            (t.vector && (strstr(t.name, "norm") || strstr(t.name, ".scale"))) || strstr(t.name, "ssm_d");
        t.negative = strstr(t.name, "ssm_a") && tensors[i].cols != D_MODEL;
        if (!fn(user, &t))
            return false;
    }
    return true;
}

/* Whether the output head is a tensor of its own. Mixtures have one also where the known model has not: with
 * the embedding as its head, a token would follow itself for ever. */
static bool has_head(const synth_shape *s) {
    return !s->tied || s->n_expert > 0;
}

bool synth_each_tensor(const synth_shape *s, int64_t n_layer, synth_tensor_fn fn, void *user) {
    bool go = visit_part(s, SYNTH_EMBED, 0, fn, user);
    for (int64_t i = 0; go && i < n_layer; i++)
        go = visit_part(s, SYNTH_LAYER, (int)i, fn, user);
    go = go && visit_part(s, SYNTH_HEAD, 0, fn, user);
    return go && (!has_head(s) || visit_part(s, SYNTH_UNTIED, 0, fn, user));
}
