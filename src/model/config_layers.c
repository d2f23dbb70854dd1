/* config_layers.c - options that differ between layers (a window, no rotary embedding), and options that are
 * refused. */
#include "model/config.h"

#include "base/num.h"
#include "formats/packed_matrix.h"

#include <stdio.h>
#include <string.h>

static bool is_pooled(const config_source *s, const char *name) {
    return config_has_slot(s->arch, SLOT_POOL_X) && (strcmp(name, "compressed_sparse_attention") == 0 ||
                                                     strcmp(name, "heavily_compressed_attention") == 0);
}

/* compress_ratios: positions of an entry in each layer, 0: the layer has none. Without a list the first two
 * layers have entries of many positions, and then every other one chooses. */
static nib_status read_pooled(const config_source *s, const hparams *hp, uint8_t *layer, nib_error *err) {
    const meta_value *v = container_meta(s->c, "compress_ratios");
    if (v != NULL && (v->type != META_ARRAY || v->elem != META_INT || v->n < (size_t)hp->n_layer))
        return nib_fail(err, NIB_E_MODEL, "compress_ratios: expected %lld numbers", (long long)hp->n_layer);
    for (int64_t i = 0; i < hp->n_layer; i++) {
        const int64_t every = v != NULL              ? v->v.ints[i]
                              : i >= 2 && i % 2 != 0 ? hp->pool_chosen
                                                     : hp->pool_all;
        if (every != 0 && every != hp->pool_chosen && every != hp->pool_all)
            return nib_fail(err, NIB_E_MODEL, "compress_ratios: expected 0, %lld or %lld, found %lld",
                            (long long)hp->pool_chosen, (long long)hp->pool_all, (long long)every);
        layer[i] |= LAYER_SLIDES;
        layer[i] |= every == 0 ? 0 : every == hp->pool_chosen ? LAYER_POOLED | LAYER_CHOOSES : LAYER_POOLED;
    }
    return NIB_OK;
}

/* layer_types: one name for each layer. */
static nib_status slides_from_names(const config_source *s, const meta_value *v, int64_t n_layer,
                                    uint8_t *layer, nib_error *err) {
    if (v->type != META_ARRAY || v->elem != META_STRING || v->n != (size_t)n_layer)
        return nib_fail(err, NIB_E_MODEL, "layer_types: expected %lld names, found %zu values",
                        (long long)n_layer, v->type == META_ARRAY ? v->n : (size_t)1);
    for (size_t i = 0; i < v->n; i++) {
        const char *name = v->v.strings[i].data;
        if (is_pooled(s, name))
            layer[i] |= LAYER_SLIDES | LAYER_POOLED |
                        (strcmp(name, "compressed_sparse_attention") == 0 ? LAYER_CHOOSES : 0);
        else if (strcmp(name, "sliding_attention") == 0 ||
                 ((s->arch->flags & A_CHUNKED) && strcmp(name, "chunked_attention") == 0))
            layer[i] |= LAYER_SLIDES;
        else if (strcmp(name, "full_attention") != 0)
            return nib_fail(err, NIB_E_MODEL,
                            "layer_types: expected full_attention or sliding_attention, found \"%.60s\"",
                            name);
    }
    return NIB_OK;
}

/* sliding_window_pattern: a letter for each layer, L for a local (sliding) one and G for a global one; the
 * letters repeat. */
static nib_status slides_from_letters(const char *letters, int64_t n_layer, uint8_t *layer, nib_error *err) {
    const size_t n = strlen(letters);
    if (n == 0 || strspn(letters, "LG") != n)
        return nib_fail(err, NIB_E_MODEL, "sliding_window_pattern: expected letters L and G, found \"%.60s\"",
                        letters);
    for (int64_t i = 0; i < n_layer; i++)
        if (letters[(size_t)i % n] == 'L')
            layer[i] |= LAYER_SLIDES;
    return NIB_OK;
}

static const meta_value *find_layer_array(const config_source *s, const char *hf, const char *gguf) {
    char key[256];
    if (s->gguf_arch != NULL)
        snprintf(key, sizeof key, "%.100s.%s", s->gguf_arch, gguf);
    else
        snprintf(key, sizeof key, "%s", hf);
    const meta_value *v = container_meta(s->c, key);
    return v != NULL && v->type == META_ARRAY ? v : NULL;
}

/* Whether a layer has no experts, as the configuration lists it, or because it is one of the first. */
static bool is_dense(const config_source *s, const hparams *hp, int64_t i) {
    const meta_value *kinds = s->gguf_arch == NULL ? container_meta(s->c, "mlp_layer_types") : NULL;
    if (kinds != NULL && kinds->type == META_ARRAY && kinds->elem == META_STRING && (size_t)i < kinds->n)
        return strcmp(kinds->v.strings[i].data, "dense") == 0;
    return i < hp->n_dense;
}

static nib_status read_slides(const config_source *s, const hparams *hp, uint8_t *layer, nib_error *err) {
    if (hp->window == 0)
        return NIB_OK;
    if (s->gguf_arch == NULL) {
        const meta_value *names = container_meta(s->c, "layer_types");
        if (names != NULL)
            return slides_from_names(s, names, hp->n_layer, layer, err);
    }
    if (config_has_slot(s->arch, SLOT_POOL_X))
        return read_pooled(s, hp, layer, err);
    const char *letters = s->gguf_arch == NULL ? config_string(s, "sliding_window_pattern") : NULL;
    if (letters != NULL)
        return slides_from_letters(letters, hp->n_layer, layer, err);
    /* A key may hold a truth value for each layer instead of one number. */
    const meta_value *each =
        find_layer_array(s, "sliding_window_pattern", "attention.sliding_window_pattern");
    if (each == NULL && s->gguf_arch == NULL)
        each = find_layer_array(s, "hybrid_layer_pattern", "");
    if (each != NULL &&
        (each->n < (size_t)hp->n_layer || (each->elem != META_BOOL && each->elem != META_INT)))
        return nib_fail(err, NIB_E_MODEL,
                        "sliding_window_pattern: expected %lld truth values, found %zu values",
                        (long long)hp->n_layer, each->n);
    for (int64_t i = 0; i < hp->n_layer; i++) {
        const int64_t at = s->arch->flags & A_DENSE_ROPE ? i - hp->n_dense : i; /* in the period */
        bool slides = i >= hp->window_from && at >= 0 &&
                      (hp->window_pattern == 0 || (at + 1) % hp->window_pattern != 0);
        if (each != NULL)
            slides = each->v.ints[i] != 0;
        if (slides)
            layer[i] |= LAYER_SLIDES;
    }
    return NIB_OK;
}

static nib_status read_no_rope(const config_source *s, const hparams *hp, uint8_t *layer, nib_error *err) {
    /* In SmolLM3's no_rope_layers, 1 means a layer WITH rotary embedding. */
    const meta_value *each =
        hp->nope_every > 0 ? find_layer_array(s, "no_rope_layers", "no_rope_layers") : NULL;
    if (each != NULL && each->n > 0 && (each->n != (size_t)hp->n_layer || each->elem != META_INT))
        return nib_fail(err, NIB_E_MODEL, "no_rope_layers: expected %lld numbers, found %zu values",
                        (long long)hp->n_layer, each->n);
    const bool nope_full =
        (s->arch->flags & A_NOPE_FULL) && (!(s->arch->flags & A_NOPE_WINDOWED) || hp->window > 0);
    for (int64_t i = 0; i < hp->n_layer; i++) {
        bool none = hp->nope_every > 0 && (i + 1) % hp->nope_every == 0;
        if (each != NULL && each->n > 0)
            none = each->v.ints[i] == 0;
        if (nope_full && !(layer[i] & LAYER_SLIDES) &&
            !((s->arch->flags & A_DENSE_ROPE) && is_dense(s, hp, i)))
            none = true;
        if (none || hp->n_rot == 0)
            layer[i] |= LAYER_NO_ROPE;
    }
    return NIB_OK;
}

nib_status config_read_layers(const config_source *s, config *out, nib_error *err) {
    const hparams *hp = &out->hp;
    uint8_t *layer = arena_alloc(s->mem, (size_t)hp->n_layer);
    if (layer == NULL)
        return nib_fail_nomem(err, (size_t)hp->n_layer, "layers");
    out->layer = layer;
    NIB_TRY(config_read_mixers(s, hp, layer, err));
    NIB_TRY(read_slides(s, hp, layer, err));
    if (s->arch->flags & A_LAST_FULL)
        layer[hp->n_layer - 1] &= (uint8_t)~LAYER_SLIDES;
    return read_no_rope(s, hp, layer, err);
}

/* Writes a value in the spelling of arch_only and of the list below. */
static void value_text(const meta_value *v, char *out, size_t size) {
    switch (v->type) {
    case META_BOOL: snprintf(out, size, "%s", v->v.b ? "true" : "false"); break;
    case META_INT: snprintf(out, size, "%lld", (long long)v->v.i); break;
    case META_FLOAT: snprintf(out, size, "%s", num_text(v->v.f, 6)); break;
    case META_STRING: snprintf(out, size, "%s", v->v.s.data); break;
    default: snprintf(out, size, v->n == 0 ? "[]" : "(a list)"); break;
    }
}

static nib_status check_only(const config_source *s, const arch_only *only, nib_error *err) {
    for (; only != NULL && only->key != NULL; only++) {
        const meta_value *v = container_meta(s->c, only->key);
        if (v == NULL)
            continue;
        char text[96], name[96];
        value_text(v, text, sizeof text);
        const char *list = only->values;
        bool known = false;
        while (!known && list_next(&list, name, sizeof name))
            known = strcmp(name, text) == 0;
        if (!known)
            return nib_fail(err, NIB_E_MODEL, "%s: expected %s, found %s; this option is not supported",
                            only->key, only->values, text);
    }
    return NIB_OK;
}

nib_status config_check_supported(const config_source *s, nib_error *err) {
    /* Options that a configuration of any family may contain. */
    static const arch_only everywhere[] = {
        {"is_encoder_decoder", "false"},
        {"add_cross_attention", "false"},
        {"use_bidirectional_attention", "false|vision"}, /* of images */
        {0},
    };
    if (!config_has_slot(s->arch, SLOT_ROUTER)) {
        double n = 0;
        int found;
        NIB_TRY(config_number(s, config_expert_keys(s), &n, &found, err));
        if (found == 1 && n > (s->gguf_arch == NULL))
            return nib_fail(err, NIB_E_MODEL, "%s experts: the architecture %s has no mixtures of experts",
                            num_text(n, 6), s->arch->name);
    }
    if (s->gguf_arch != NULL)
        return NIB_OK;
    NIB_TRY(check_only(s, everywhere, err));
    for (size_t i = 0; i < container_n_meta(s->c) && !container_packed_method(s->c); i++) {
        const char *key;
        container_meta_at(s->c, i, &key);
        if (strncmp(key, "quantization_config.", 20) == 0 || strncmp(key, "compression_config.", 19) == 0) {
            const char *method = config_string(s, "quantization_config.quant_method");
            return nib_fail(err, NIB_E_MODEL,
                            "quantization_config: the method \"%.60s\" of these safetensors is not supported",
                            method != NULL ? method : "?");
        }
    }
    return check_only(s, s->arch->only, err);
}
