/* mix.c - see mix.h. Names and fallbacks are llama.cpp's, so that files are comparable. */
#include "quantize/mix.h"

#include "base/num.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct mix_row {
    const char *name;
    mix is;
} mix_row;

#define PURE(name, id, number)                                                                               \
    {                                                                                                        \
        name, {                                                                                              \
            .base = TYPE_##id, .other = TYPE_##id, .more = TYPE_##id, .head = TYPE_##id, .file_type = number \
        }                                                                                                    \
    }
#define MIXED(name, id, other_, more_, head_, number, few_)                                                  \
    {                                                                                                        \
        name, {                                                                                              \
            .base = TYPE_##id, .other = TYPE_##other_, .more = TYPE_##more_, .head = TYPE_##head_,           \
            .file_type = number, .mixed = true, .few = few_                                                  \
        }                                                                                                    \
    }

static const mix_row rows[] = {
    MIXED("q4_k_m", Q4_K, Q4_K, Q6_K, Q6_K, 15, false),
    PURE("q4_0", Q4_0, 2),
    PURE("q4_1", Q4_1, 3),
    PURE("q5_0", Q5_0, 8),
    PURE("q5_1", Q5_1, 9),
    PURE("q8_0", Q8_0, 7),
    PURE("q2_k", Q2_K, 10),
    PURE("q3_k", Q3_K, 11),
    PURE("q4_k", Q4_K, 14),
    PURE("q5_k", Q5_K, 16),
    PURE("q6_k", Q6_K, 18),
    PURE("iq4_nl", IQ4_NL, 25),
    PURE("n2g64", N2G64, 1024),
    PURE("n3g64", N3G64, 1024),
    PURE("n4g32", N4G32, 1024),
    PURE("n4g64", N4G64, 1024),
    PURE("n4g128", N4G128, 1024),
    PURE("c3", C3, 1024),
    PURE("c4", C4, 1024),
    PURE("c3o45", C3O45, 1024),
    PURE("c4o45", C4O45, 1024),
    PURE("c3o100", C3O100, 1024),
    PURE("c4o100", C4O100, 1024),
    PURE("iq4_xs", IQ4_XS, 30),
    PURE("f16", F16, 1),
    PURE("bf16", BF16, 32),
    PURE("f32", F32, 0),
    MIXED("q2_k_m", Q2_K, Q2_K, Q4_K, Q6_K, 10, false),
    MIXED("q3_k_m", Q3_K, Q4_K, Q5_K, Q6_K, 12, true),
    MIXED("q5_k_m", Q5_K, Q5_K, Q6_K, Q6_K, 17, false),
};

/* The names of uniform formats in plans (numbers/recipe.h), and the file type that can store each. The n
 * types have a minimum or a zero point, so they can store the symmetric formats too. */
static const struct {
    const char *name;
    type_id type;
} uniform[] = {{"u2g64", TYPE_N2G64},   {"u2g64a", TYPE_N2G64},   {"u3g64", TYPE_N3G64},
               {"u3g64a", TYPE_N3G64},  {"u4g64", TYPE_N4G64},    {"u4g64a", TYPE_N4G64},
               {"u4g128", TYPE_N4G128}, {"u4g128a", TYPE_N4G128}, {"u4g32", TYPE_Q4_0},
               {"u4g32a", TYPE_Q4_1},   {"u5g32", TYPE_Q5_0},     {"u5g32a", TYPE_Q5_1},
               {"u8g32", TYPE_Q8_0}};

const char *mix_plain_name(const char *name, size_t n_name) {
    for (size_t i = 0; i < NUM_COUNT(uniform); i++)
        if (strlen(uniform[i].name) == n_name && !strncasecmp(uniform[i].name, name, n_name))
            return type_get(uniform[i].type)->name;
    return NULL;
}

bool mix_find(const char *name, mix *out) {
    const char *plain = name ? mix_plain_name(name, strlen(name)) : NULL;
    name = plain ? plain : name;
    for (size_t i = 0; i < NUM_COUNT(rows); i++)
        if (!name || !strcasecmp(name, rows[i].name)) {
            *out = rows[i].is;
            return true;
        }
    return false;
}

bool mix_outliers(type_id *type, int of_10000) {
    for (int id = 0; id < TYPE_COUNT; id++)
        if (type_get((type_id)id)->sparse == of_10000 && type_get((type_id)id)->dense == *type) {
            *type = (type_id)id;
            return true;
        }
    return false;
}

const char *mix_names(char *out) {
    int at = 0;
    for (size_t i = 0; i < NUM_COUNT(rows); i++)
        at += snprintf(out + at, 512 - (size_t)at, "%s%s", i ? ", " : "", rows[i].name);
    for (size_t i = 0; i < NUM_COUNT(uniform); i++)
        at += snprintf(out + at, 512 - (size_t)at, ", %s", uniform[i].name);
    return out;
}

bool mix_makes_logits(const block *b, int w) {
    for (int i = 0; i < b->program.n_op; i++)
        if (b->program.ops[i].w == w && b->program.ops[i].out == REG_LOGITS)
            return true;
    return false;
}

static bool is_product(const block *b, int w) {
    for (int i = 0; i < b->program.n_op; i++)
        if (op_is_product(&b->program.ops[i]) && b->program.ops[i].w == w)
            return true;
    return false;
}

static size_t find_tensor(const gguf_tensors *tensors, int owner, int w) {
    size_t i = 0;
    while (i < tensors->n && (tensors->all[i].block != owner || tensors->all[i].w != w))
        i++;
    return i;
}

void mix_uses(const model *m, const gguf_tensors *tensors, tensor_use *uses) {
    for (size_t i = 0; i < tensors->n; i++) {
        const gguf_tensor *t = &tensors->all[i];
        const block *b = t->block >= 0 ? model_block(m, t->block) : t->ahead;
        const int w = t->block >= 0 ? t->w : t->ahead_w;
        uses[i] = (tensor_use){t->block, b, w, b && is_product(b, w), b && mix_makes_logits(b, w)};
    }
    for (int b = 0; b < model_n_block(m); b++)
        for (int w = 0; w < model_block(m, b)->n_weight; w++) {
            const block *at = model_block(m, b);
            const weight *of = &at->weights[w];
            if (of->shared_block < 0 || find_tensor(tensors, b, w) < tensors->n)
                continue;
            const size_t i = find_tensor(tensors, of->shared_block, of->shared_index);
            if (i == tensors->n)
                continue;
            uses[i].product |= is_product(at, w);
            uses[i].head |= mix_makes_logits(at, w);
        }
}

/* Whether more bits gain most in this layer, by llama.cpp's rule: the first and the last eighth of the
 * layers, and every third between them (few: only the first sixteenth). */
static bool is_sensitive(int layer, int n_layer, bool few) {
    if (few)
        return layer < NUM_MAX(n_layer / 16, 1);
    return layer < n_layer / 8 || layer >= 7 * n_layer / 8 || (layer - n_layer / 8) % 3 == 2;
}

/* For rows that are no multiple of 256: the type with blocks of 32 and about the same bits. */
static type_id in_blocks_of_32(type_id type) {
    switch (type) {
    case TYPE_Q2_K:
    case TYPE_Q3_K:
    case TYPE_N2G64:
    case TYPE_N3G64:
    case TYPE_IQ4_XS: return TYPE_IQ4_NL;
    case TYPE_N4G64:
    case TYPE_N4G128: return TYPE_N4G32;
    case TYPE_C3: return TYPE_C4;
    case TYPE_C3O45: return TYPE_C4O45;
    case TYPE_C3O100: return TYPE_C4O100;
    case TYPE_Q4_K: return TYPE_Q5_0;
    case TYPE_Q5_K: return TYPE_Q5_1;
    default: return TYPE_Q8_0;
    }
}

type_id mix_type(const mix *x, const model *m, const container_tensor *t, const tensor_use *use,
                 bool *fallback) {
    *fallback = false;
    if (t->n_dim < 2 || !use->at || !type_get(t->type)->dequantize)
        return t->type;
    const block *b = use->at;
    const weight *w = &b->weights[use->w];
    const bool looked_up = !strcmp(w->name, "embed") || !strcmp(w->name, "ahead_embed");
    if (w->vector || w->exact || (!use->product && !looked_up))
        return t->type;
    type_id type = x->base;
    if (use->head || (x->mixed && looked_up && use->product))
        type = x->head;
    else if (x->mixed && b->layer >= 0 && (!strcmp(w->name, "v") || !strcmp(w->name, "down")))
        type = is_sensitive(b->layer, (int)model_hparams(m)->n_layer, x->few) ? x->more : x->other;
    else if (x->mixed && b->layer >= 0 && !strcmp(w->name, "o"))
        type = x->other;
    const int64_t k = t->shape[t->n_dim - 1];
    if (k % type_get(type)->block_elems && k % 32 == 0)
        type = in_blocks_of_32(type);
    else if (k % type_get(type)->block_elems)
        type = TYPE_F16;
    *fallback = k % 256 && (type == TYPE_F16
                                ? x->base != TYPE_F16
                                : type != x->base && type != x->head && type != x->more && type != x->other);
    return type;
}
