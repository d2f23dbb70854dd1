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
    QWEN3MOE = 1 << SYNTH_QWEN3MOE
};
enum {
    DENSE = LLAMA | QWEN2 | PHI3 | OPT,
    ALL = DENSE | QWEN3MOE,
    SPLIT_FFN = LLAMA | QWEN2 | OPT,
    SPLIT = SPLIT_FFN | QWEN3MOE
};

/* Sizes of rows and columns. */
typedef enum dim { D_ONE, D_MODEL, D_Q, D_KV, D_QKV, D_FF, D_FF2, D_VOCAB, D_POS, D_HEAD, D_EXPERTS } dim;

/* A tensor: families that have it, part of the model, name, rows (D_ONE: a vector), columns. */
static const struct {
    unsigned families;
    synth_part part;
    const char *name;
    dim rows, cols;
} tensors[] = {
    {ALL, SYNTH_EMBED, "token_embd.weight", D_VOCAB, D_MODEL},
    {OPT, SYNTH_EMBED, "position_embd.weight", D_POS, D_MODEL},
    {ALL, SYNTH_LAYER, "blk.%d.attn_norm.weight", D_ONE, D_MODEL},
    {OPT, SYNTH_LAYER, "blk.%d.attn_norm.bias", D_ONE, D_MODEL},
    {SPLIT, SYNTH_LAYER, "blk.%d.attn_q.weight", D_Q, D_MODEL},
    {SPLIT, SYNTH_LAYER, "blk.%d.attn_k.weight", D_KV, D_MODEL},
    {SPLIT, SYNTH_LAYER, "blk.%d.attn_v.weight", D_KV, D_MODEL},
    {QWEN2 | OPT, SYNTH_LAYER, "blk.%d.attn_q.bias", D_ONE, D_Q},
    {QWEN2 | OPT, SYNTH_LAYER, "blk.%d.attn_k.bias", D_ONE, D_KV},
    {QWEN2 | OPT, SYNTH_LAYER, "blk.%d.attn_v.bias", D_ONE, D_KV},
    {QWEN3MOE, SYNTH_LAYER, "blk.%d.attn_q_norm.weight", D_ONE, D_HEAD},
    {QWEN3MOE, SYNTH_LAYER, "blk.%d.attn_k_norm.weight", D_ONE, D_HEAD},
    {PHI3, SYNTH_LAYER, "blk.%d.attn_qkv.weight", D_QKV, D_MODEL},
    {ALL, SYNTH_LAYER, "blk.%d.attn_output.weight", D_MODEL, D_Q},
    {OPT, SYNTH_LAYER, "blk.%d.attn_output.bias", D_ONE, D_MODEL},
    {ALL, SYNTH_LAYER, "blk.%d.ffn_norm.weight", D_ONE, D_MODEL},
    {OPT, SYNTH_LAYER, "blk.%d.ffn_norm.bias", D_ONE, D_MODEL},
    {LLAMA | QWEN2, SYNTH_LAYER, "blk.%d.ffn_gate.weight", D_FF, D_MODEL},
    {QWEN3MOE, SYNTH_LAYER, "blk.%d.ffn_gate_inp.weight", D_EXPERTS, D_MODEL},
    {QWEN3MOE, SYNTH_LAYER, "blk.%d.ffn_gate_exps.weight", D_FF, D_MODEL},
    {QWEN3MOE, SYNTH_LAYER, "blk.%d.ffn_up_exps.weight", D_FF, D_MODEL},
    {QWEN3MOE, SYNTH_LAYER, "blk.%d.ffn_down_exps.weight", D_MODEL, D_FF},
    {SPLIT_FFN, SYNTH_LAYER, "blk.%d.ffn_up.weight", D_FF, D_MODEL},
    {PHI3, SYNTH_LAYER, "blk.%d.ffn_up.weight", D_FF2, D_MODEL},
    {OPT, SYNTH_LAYER, "blk.%d.ffn_up.bias", D_ONE, D_FF},
    {DENSE, SYNTH_LAYER, "blk.%d.ffn_down.weight", D_MODEL, D_FF},
    {OPT, SYNTH_LAYER, "blk.%d.ffn_down.bias", D_ONE, D_MODEL},
    {ALL, SYNTH_HEAD, "output_norm.weight", D_ONE, D_MODEL},
    {OPT, SYNTH_HEAD, "output_norm.bias", D_ONE, D_MODEL},
    {ALL, SYNTH_UNTIED, "output.weight", D_VOCAB, D_MODEL},
};

static int64_t size_of(const synth_shape *s, dim d) {
    int64_t q = s->n_head * s->d_head, kv = s->n_kv_head * s->d_head;
    switch (d) {
    case D_ONE: return 1;
    case D_MODEL: return s->d_model;
    case D_Q: return q;
    case D_KV: return kv;
    case D_QKV: return q + 2 * kv;
    case D_FF: return s->d_ff;
    case D_FF2: return 2 * s->d_ff;
    case D_VOCAB: return s->n_vocab;
    case D_HEAD: return s->d_head;
    case D_EXPERTS: return s->n_expert;
    case D_POS: return s->n_ctx + 2; /* OPT's positions begin at 2 */
    }
    return 0;
}

static bool visit_part(const synth_shape *s, synth_part part, int layer, synth_tensor_fn fn, void *user) {
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        if (tensors[i].part != part || !(tensors[i].families & (1u << s->family)))
            continue;
        synth_tensor t = {.rows = size_of(s, tensors[i].rows), .cols = size_of(s, tensors[i].cols)};
        const char *mark = strstr(tensors[i].name, "%d");
        if (mark)
            snprintf(t.name, sizeof t.name, "%.*s%d%s", (int)(mark - tensors[i].name), tensors[i].name, layer,
                     mark + 2);
        else
            snprintf(t.name, sizeof t.name, "%s", tensors[i].name);
        t.vector = tensors[i].rows == D_ONE;
        t.n_expert = strstr(t.name, "_exps.") ? s->n_expert : 0;
        t.router = tensors[i].rows == D_EXPERTS;
        t.norm = t.vector && strstr(t.name, "norm.weight");
        if (!fn(user, &t))
            return false;
    }
    return true;
}

bool synth_each_tensor(const synth_shape *s, int64_t n_layer, synth_tensor_fn fn, void *user) {
    bool go = visit_part(s, SYNTH_EMBED, 0, fn, user);
    for (int64_t i = 0; go && i < n_layer; i++)
        go = visit_part(s, SYNTH_LAYER, (int)i, fn, user);
    go = go && visit_part(s, SYNTH_HEAD, 0, fn, user);
    return go && (s->tied || visit_part(s, SYNTH_UNTIED, 0, fn, user));
}
