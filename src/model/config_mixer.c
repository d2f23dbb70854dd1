/* config_mixer.c - the sub-layers of each layer of a family with recurrent layers: from a list of names, of
 * numbers or of letters, from periods, or (in GGUF) from layers without KV heads. */
#include "model/config.h"

#include "base/num.h"

#include <stdio.h>
#include <string.h>

enum { ONLY_RECURRENT = LAYER_RECURRENT | LAYER_NO_ATTENTION };

static const meta_value *find_list(const config_source *s, const char *names) {
    char name[96], key[256];
    while (list_next(&names, name, sizeof name)) {
        snprintf(key, sizeof key, "%s%s%s", s->gguf_arch ? s->gguf_arch : "", s->gguf_arch ? "." : "", name);
        const meta_value *v = container_meta(s->c, key);
        if (v != NULL && v->type == META_ARRAY)
            return v;
    }
    return NULL;
}

#define HF_NAMES   "layers_block_type|layer_types"
#define HF_LETTERS "hybrid_override_pattern"

int64_t config_n_listed(const config_source *s) {
    const meta_value *v = s->gguf_arch ? NULL : find_list(s, HF_NAMES);
    const char *letters = s->gguf_arch ? NULL : config_string(s, HF_LETTERS);
    return v ? (int64_t)v->n : letters ? (int64_t)strlen(letters) : 0;
}

/* single: a layer has one sub-layer only. */
static nib_status from_names(const meta_value *v, int64_t n_layer, bool single, uint8_t *layer,
                             nib_error *err) {
    static const struct {
        const char *name;
        uint8_t flags;
    } kinds[] = {
        {"conv", ONLY_RECURRENT},     {"linear_attention", ONLY_RECURRENT},
        {"mamba", ONLY_RECURRENT},    {"mlp", LAYER_NO_ATTENTION},
        {"moe", LAYER_NO_ATTENTION},  {"full_attention", 0},
        {"qwen_sparse_attention", 0}, {"attention", 0},
    };
    if (v->elem != META_STRING || v->n != (size_t)n_layer)
        return nib_fail(err, NIB_E_MODEL, "layer_types: expected %lld names, found %zu values",
                        (long long)n_layer, v->n);
    for (size_t i = 0; i < v->n; i++) {
        size_t k = 0;
        while (k < NUM_COUNT(kinds) && strcmp(v->v.strings[i].data, kinds[k].name) != 0)
            k++;
        const bool feeds = k < NUM_COUNT(kinds) && kinds[k].flags == LAYER_NO_ATTENTION;
        if (k == NUM_COUNT(kinds) || (feeds && !single))
            return nib_fail(err, NIB_E_MODEL,
                            "layer_types: expected full_attention, attention, conv, linear_attention or "
                            "mamba, found \"%.60s\"",
                            v->v.strings[i].data);
        layer[i] |= kinds[k].flags | (single && !feeds ? LAYER_NO_FFN : 0);
    }
    return NIB_OK;
}

/* One sub-layer in each layer: M is recurrent, * has attention, - and E are feed-forward layers. */
static nib_status from_letters(const char *letters, int64_t n_layer, uint8_t *layer, nib_error *err) {
    if (strlen(letters) != (size_t)n_layer || strspn(letters, "M*-E") != (size_t)n_layer)
        return nib_fail(err, NIB_E_MODEL, "%s: expected %lld letters M, *, - or E, found \"%.60s\"",
                        HF_LETTERS, (long long)n_layer, letters);
    for (int64_t i = 0; i < n_layer; i++)
        layer[i] |= letters[i] == 'M'   ? ONLY_RECURRENT | LAYER_NO_FFN
                    : letters[i] == '*' ? LAYER_NO_FFN
                                        : LAYER_NO_ATTENTION;
    return NIB_OK;
}

/* The numbers of the layers with attention, the first layer being number `base`. */
static nib_status from_numbers(const meta_value *v, int64_t base, int64_t n_layer, uint8_t *layer,
                               nib_error *err) {
    for (int64_t i = 0; i < n_layer; i++)
        layer[i] |= ONLY_RECURRENT;
    for (size_t i = 0; i < v->n; i++) {
        if (v->elem != META_INT || v->v.ints[i] < base || v->v.ints[i] - base >= n_layer)
            return nib_fail(err, NIB_E_MODEL,
                            "layers with attention: expected numbers from %lld on of %lld layers",
                            (long long)base, (long long)n_layer);
        layer[v->v.ints[i] - base] &= (uint8_t)~ONLY_RECURRENT;
    }
    return NIB_OK;
}

/* GGUF: numbers of KV heads, and of neurons, of each layer. A layer without KV heads is recurrent, unless it
 * has a single sub-layer and that has neurons. */
static nib_status from_heads(const meta_value *v, const meta_value *neurons, int64_t n_layer, bool single,
                             uint8_t *layer, nib_error *err) {
    const bool fits = v->elem == META_INT && v->n >= (size_t)n_layer &&
                      (!single || (neurons && neurons->elem == META_INT && neurons->n >= (size_t)n_layer));
    if (!fits)
        return nib_fail(err, NIB_E_MODEL,
                        "attention.head_count_kv: expected %lld numbers%s, found %zu values",
                        (long long)n_layer, single ? ", and of feed_forward_length too" : "", v->n);
    for (int64_t i = 0; i < n_layer; i++) {
        const bool feeds = single && neurons->v.ints[i] != 0;
        layer[i] |= v->v.ints[i] != 0 ? 0 : feeds ? LAYER_NO_ATTENTION : ONLY_RECURRENT;
        layer[i] |= single && !feeds ? LAYER_NO_FFN : 0;
    }
    return NIB_OK;
}

/* GGUF: whether each layer is recurrent. */
static nib_status from_flags(const meta_value *v, int64_t n_layer, uint8_t *layer, nib_error *err) {
    if ((v->elem != META_INT && v->elem != META_BOOL) || v->n < (size_t)n_layer)
        return nib_fail(err, NIB_E_MODEL,
                        "attention.recurrent_layers: expected %lld truth values, found %zu values",
                        (long long)n_layer, v->n);
    for (int64_t i = 0; i < n_layer; i++)
        layer[i] |= v->v.ints[i] != 0 ? ONLY_RECURRENT : 0;
    return NIB_OK;
}

/* One of `every` layers has attention: the last, or that with the given offset (Jamba). */
static nib_status from_period(const config_source *s, int64_t n_layer, uint8_t *layer, nib_error *err) {
    double every = 0, offset = 0;
    int found, has_offset;
    NIB_TRY(config_number(s, "full_attention_interval|attn_layer_period", &every, &found, err));
    NIB_TRY(config_number(s, "attn_layer_offset", &offset, &has_offset, err));
    if (found != 1)
        every = 4; /* as the configuration classes have it */
    if (!(every >= 1 && every < 1e9 && offset >= 0 && offset < every))
        return nib_fail(err, NIB_E_MODEL, "layers with attention: expected a period, found %s",
                        num_text(every, 6));
    const int64_t n = (int64_t)every, at = has_offset == 1 ? (int64_t)offset : n - 1;
    for (int64_t i = 0; i < n_layer; i++)
        layer[i] |= i % n == at ? 0 : ONLY_RECURRENT;
    return NIB_OK;
}

static nib_status from_gguf(const config_source *s, int64_t n_layer, bool single, uint8_t *layer,
                            nib_error *err) {
    const meta_value *v = find_list(s, "attention.recurrent_layers");
    if (v != NULL)
        return from_flags(v, n_layer, layer, err);
    v = find_list(s, "attention.head_count_kv");
    if (v != NULL)
        return from_heads(v, find_list(s, "feed_forward_length"), n_layer, single, layer, err);
    return from_period(s, n_layer, layer, err);
}

nib_status config_read_mixers(const config_source *s, const hparams *hp, uint8_t *layer, nib_error *err) {
    const mixer_layers kind = s->arch->mixer_layers;
    const bool single = kind == MIXER_SINGLE;
    const meta_value *v;
    const char *letters;
    if (s->arch->mixer == MIXER_NONE)
        return NIB_OK;
    if (kind == MIXER_ALL || kind == MIXER_BESIDE) {
        for (int64_t i = 0; i < hp->n_layer; i++)
            layer[i] |= kind == MIXER_ALL ? ONLY_RECURRENT : LAYER_RECURRENT;
        return NIB_OK;
    }
    if (s->gguf_arch)
        return from_gguf(s, hp->n_layer, single, layer, err);
    if ((v = find_list(s, HF_NAMES)))
        return from_names(v, hp->n_layer, single, layer, err);
    if ((letters = config_string(s, HF_LETTERS)))
        return from_letters(letters, hp->n_layer, layer, err);
    if ((v = find_list(s, "full_attn_idxs")))
        return from_numbers(v, 0, hp->n_layer, layer, err);
    if ((v = find_list(s, "linear_attn_config.full_attn_layers")))
        return from_numbers(v, 1, hp->n_layer, layer, err);
    return from_period(s, hp->n_layer, layer, err);
}
