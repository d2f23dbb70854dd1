/* config_mixer.c - which layers are recurrent: a list of names or numbers, a period, or (in GGUF) no KV
 * heads. */
#include "model/config.h"

#include "base/num.h"

#include <stdio.h>
#include <string.h>

enum { ONLY_RECURRENT = LAYER_RECURRENT | LAYER_NO_ATTENTION };

/* A name for each layer. */
static nib_status from_names(const meta_value *v, int64_t n_layer, uint8_t *layer, nib_error *err) {
    static const struct {
        const char *name;
        uint8_t flags;
    } kinds[] = {
        {"conv", ONLY_RECURRENT},  {"linear_attention", ONLY_RECURRENT},
        {"mamba", ONLY_RECURRENT}, {"full_attention", 0},
        {"attention", 0},
    };
    if (v->elem != META_STRING || v->n != (size_t)n_layer)
        return nib_fail(err, NIB_E_MODEL, "layer_types: expected %lld names, found %zu values",
                        (long long)n_layer, v->n);
    for (size_t i = 0; i < v->n; i++) {
        size_t k = 0;
        while (k < NUM_COUNT(kinds) && strcmp(v->v.strings[i].data, kinds[k].name) != 0)
            k++;
        if (k == NUM_COUNT(kinds))
            return nib_fail(err, NIB_E_MODEL,
                            "layer_types: expected full_attention, attention, conv, linear_attention or "
                            "mamba, found \"%.60s\"",
                            v->v.strings[i].data);
        layer[i] |= kinds[k].flags;
    }
    return NIB_OK;
}

/* The numbers of the layers with attention. */
static nib_status from_numbers(const meta_value *v, int64_t n_layer, uint8_t *layer, nib_error *err) {
    for (int64_t i = 0; i < n_layer; i++)
        layer[i] |= ONLY_RECURRENT;
    for (size_t i = 0; i < v->n; i++) {
        if (v->elem != META_INT || v->v.ints[i] < 0 || v->v.ints[i] >= n_layer)
            return nib_fail(err, NIB_E_MODEL, "full_attn_idxs: expected numbers of layers below %lld",
                            (long long)n_layer);
        layer[v->v.ints[i]] &= (uint8_t)~ONLY_RECURRENT;
    }
    return NIB_OK;
}

/* GGUF: a number of KV heads for each layer, 0 if it has no attention. */
static nib_status from_heads(const meta_value *v, int64_t n_layer, uint8_t *layer, nib_error *err) {
    if (v->elem != META_INT || v->n < (size_t)n_layer)
        return nib_fail(err, NIB_E_MODEL, "attention.head_count_kv: expected %lld numbers, found %zu values",
                        (long long)n_layer, v->n);
    for (int64_t i = 0; i < n_layer; i++)
        layer[i] |= v->v.ints[i] == 0 ? ONLY_RECURRENT : 0;
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

/* Every n-th layer has attention. */
static nib_status from_period(const config_source *s, int64_t n_layer, uint8_t *layer, nib_error *err) {
    double every = 0;
    int found;
    NIB_TRY(config_number(s, "full_attention_interval", &every, &found, err));
    if (found != 1)
        every = 4; /* as the configuration classes have it */
    for (int64_t i = 0; i < n_layer; i++)
        layer[i] |= every >= 1 && (i + 1) % (int64_t)every == 0 ? 0 : ONLY_RECURRENT;
    return NIB_OK;
}

nib_status config_read_mixers(const config_source *s, const hparams *hp, uint8_t *layer, nib_error *err) {
    const meta_value *v;
    if (s->arch->mixer == MIXER_NONE)
        return NIB_OK;
    if (s->arch->mixer_layers == MIXER_ALL || s->arch->mixer_layers == MIXER_BESIDE) {
        for (int64_t i = 0; i < hp->n_layer; i++)
            layer[i] |= s->arch->mixer_layers == MIXER_ALL ? ONLY_RECURRENT : LAYER_RECURRENT;
        return NIB_OK;
    }
    if (s->gguf_arch && (v = find_list(s, "attention.recurrent_layers")))
        return from_flags(v, hp->n_layer, layer, err);
    if (s->gguf_arch && (v = find_list(s, "attention.head_count_kv")))
        return from_heads(v, hp->n_layer, layer, err);
    if (!s->gguf_arch && (v = find_list(s, "layer_types|layers_block_type")))
        return from_names(v, hp->n_layer, layer, err);
    if (!s->gguf_arch && (v = find_list(s, "full_attn_idxs")))
        return from_numbers(v, hp->n_layer, layer, err);
    return from_period(s, hp->n_layer, layer, err);
}
