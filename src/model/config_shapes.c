/* config_shapes.c - what differs from layer to layer: the heads of layers that slide and of full ones, layers
 * that share keys and values, the widths of feed-forward layers, a factor of the layer's output. */
#include "model/config.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* per_layer_config.N.NAME of transformers: overrides of a layer. Other names would be ignored silently. */
static nib_status read_overrides(const config_source *s, const hparams *hp, layer_shape *shape,
                                 nib_error *err) {
    static const char prefix[] = "per_layer_config.";
    bool any = false;
    for (size_t i = 0; i < container_n_meta(s->c); i++) {
        const char *key;
        const meta_value *v = container_meta_at(s->c, i, &key);
        char name[32];
        int layer;
        if (strncmp(key, prefix, sizeof prefix - 1) != 0)
            continue;
        if (sscanf(key + sizeof prefix - 1, "%d.%31s", &layer, name) != 2 || layer < 0 ||
            layer >= hp->n_layer || v->type != META_INT || v->v.i < 1 || v->v.i > 1 << 14)
            return nib_fail(err, NIB_E_MODEL, "%.100s: expected a layer's head_dim or num_key_value_heads",
                            key);
        for (int64_t l = 0; l < hp->n_layer && !any; l++) { /* they replace the sizes of full layers */
            shape[l].d_head = hp->d_head;
            shape[l].n_kv_head = hp->n_kv_head;
        }
        any = true;
        if (strcmp(name, "head_dim") == 0)
            shape[layer].d_head = v->v.i;
        else if (strcmp(name, "num_key_value_heads") == 0)
            shape[layer].n_kv_head = v->v.i;
        else
            return nib_fail(err, NIB_E_MODEL, "%.100s: this option is not supported", key);
    }
    return NIB_OK;
}

static const meta_value *find_array(const config_source *s, const char *name, char *key, size_t size) {
    if (s->gguf_arch != NULL)
        snprintf(key, size, "%.100s.%s", s->gguf_arch, name);
    else
        snprintf(key, size, "%s", name);
    return container_meta(s->c, key);
}

/* A number for each layer under a key, if the key has an array. */
static nib_status read_array(const config_source *s, const char *name, int64_t n_layer, layer_shape *shape,
                             size_t field, nib_error *err) {
    char key[200];
    const meta_value *v = find_array(s, name, key, sizeof key);
    if (v == NULL || v->type != META_ARRAY)
        return NIB_OK;
    if (v->elem != META_INT || v->n < (size_t)n_layer)
        return nib_fail(err, NIB_E_MODEL, "%s: expected %lld numbers, found %zu", key, (long long)n_layer,
                        v->n);
    for (int64_t i = 0; i < n_layer; i++)
        if (v->v.ints[i] != 0) /* 0: the layer has no such part */
            memcpy((char *)&shape[i] + field, &v->v.ints[i], sizeof v->v.ints[i]);
    return NIB_OK;
}

/* The last layer before the shared ones that is of the same kind. */
static nib_status share(const hparams *hp, const uint8_t *layer, layer_shape *shape, nib_error *err) {
    const int64_t own = hp->n_layer - hp->n_kv_shared;
    if (own < 1)
        return nib_fail(err, NIB_E_MODEL, "num_kv_shared_layers: expected less than %lld, found %lld",
                        (long long)hp->n_layer, (long long)hp->n_kv_shared);
    for (int64_t i = own; i < hp->n_layer; i++) {
        int64_t from = own - 1;
        while (from >= 0 && (layer[from] ^ layer[i]) & LAYER_SLIDES)
            from--;
        if (from < 0)
            return nib_fail(err, NIB_E_MODEL,
                            "layer %lld shares keys and values, but no earlier layer has its kind",
                            (long long)i);
        shape[i].kv_layer = from;
    }
    return NIB_OK;
}

/* Heads of one kind of layers have one size, which the rotary table of this kind has. */
static nib_status note_full_heads(hparams *hp, const uint8_t *layer, const layer_shape *shape,
                                  nib_error *err) {
    int64_t *const size[] = {&hp->d_head, &hp->d_head_full};
    bool seen[2] = {false, false};
    for (int64_t i = 0; i < hp->n_layer; i++) {
        const int full = !(layer[i] & LAYER_SLIDES);
        if (seen[full] && *size[full] != shape[i].d_head)
            return nib_fail(err, NIB_E_MODEL,
                            "layer %lld: expected heads of %lld as in other layers, found %lld", (long long)i,
                            (long long)*size[full], (long long)shape[i].d_head);
        *size[full] = shape[i].d_head;
        seen[full] = true;
    }
    hp->d_value = hp->n_rot = hp->d_head;
    return NIB_OK;
}

static nib_status check_shapes(const hparams *hp, const layer_shape *shape, nib_error *err) {
    for (int64_t i = 0; i < hp->n_layer; i++) {
        const layer_shape *l = &shape[i], *from = &shape[l->kv_layer];
        if (l->n_kv_head < 1 || l->n_head < 1 || l->n_head > 1 << 16 || l->n_head % l->n_kv_head != 0 ||
            l->d_head < 1 || l->d_head > 1 << 14 || l->d_ff < 1 || l->d_ff > 1 << 24 ||
            from->n_kv_head != l->n_kv_head || from->d_head != l->d_head)
            return nib_fail(err, NIB_E_MODEL,
                            "layer %lld: %lld key/value heads of %lld and %lld neurons are not possible",
                            (long long)i, (long long)l->n_kv_head, (long long)l->d_head, (long long)l->d_ff);
    }
    return NIB_OK;
}

static nib_status read_scale(const config_source *s, int64_t i, float *out, nib_error *err) {
    char name[64];
    *out = 1;
    if (!(s->arch->flags & A_LAYER_SCALE))
        return NIB_OK;
    snprintf(name, sizeof name,
             s->gguf_arch ? "blk.%lld.layer_output_scale.weight" : "model.layers.%lld.layer_scalar",
             (long long)i);
    const container_tensor *t = s->gguf_arch ? container_find(s->c, name) : config_find_hf(s, name);
    if (t == NULL)
        return NIB_OK;
    NIB_TRY(config_tensor_number(s, t, out, err));
    return isfinite(*out) ? NIB_OK : nib_fail(err, NIB_E_MODEL, "tensor %s: expected a finite number", name);
}

/* x with P(normal < x) = p, to the precision of floats: Newton's method on the distribution function. */
static double normal_quantile(double p) {
    double x = 0;
    for (int i = 0; i < 60; i++) {
        const double density = exp(-x * x / 2) / 2.5066282746310002;
        const double step = (erfc(-x / 1.4142135623730951) / 2 - p) / fmax(density, 1e-300);
        x -= fmin(fmax(step, -1), 1);
    }
    return x;
}

/* Gates of a layer's neurons that count: config.json has their share that does not (one number, or one for
 * each layer), GGUF how many standard deviations above the mean that is. */
static nib_status read_sparsity(const config_source *s, int64_t n_layer, layer_shape *shape, nib_error *err) {
    char key[200];
    const meta_value *v = find_array(
        s, s->gguf_arch ? "activation_sparsity_scale" : "activation_sparsity_pattern", key, sizeof key);
    if (v == NULL)
        return NIB_OK;
    const bool list = v->type == META_ARRAY && v->elem == META_FLOAT && v->n >= (size_t)n_layer;
    if (!list && v->type != META_FLOAT)
        return nib_fail(err, NIB_E_MODEL, "%s: expected %lld numbers", key, (long long)n_layer);
    for (int64_t i = 0; i < n_layer; i++) {
        const double p = list ? v->v.floats[i] : v->v.f;
        if (!(s->gguf_arch ? p < 30 : p >= 0 && p < 1))
            return nib_fail(err, NIB_E_MODEL, "%s: expected numbers from 0 to 1, found %s", key,
                            num_text(p, 6));
        shape[i].sparsity = s->gguf_arch ? (float)p : p == 0 ? -INFINITY : (float)normal_quantile(p);
    }
    return NIB_OK;
}

nib_status config_read_shapes(const config_source *s, config *out, nib_error *err) {
    hparams *hp = &out->hp;
    layer_shape *shape = arena_array(s->mem, (size_t)hp->n_layer, sizeof *shape);
    if (shape == NULL)
        return nib_fail_nomem(err, (size_t)hp->n_layer * sizeof *shape, "layers");
    out->shape = shape;
    for (int64_t i = 0; i < hp->n_layer; i++) {
        const bool full = !(out->layer[i] & LAYER_SLIDES), shares = i >= hp->n_layer - hp->n_kv_shared;
        shape[i].kv_layer = i;
        shape[i].n_head = hp->n_head;
        shape[i].sparsity = -INFINITY;
        shape[i].d_head = full && hp->d_head_full > 0 ? hp->d_head_full : hp->d_head;
        if (hp->kv_low_rank > 0 && hp->d_value > hp->d_head) /* keys are padded */
            shape[i].d_head = hp->d_value;
        shape[i].n_kv_head = full && hp->n_kv_head_full > 0 ? hp->n_kv_head_full : hp->n_kv_head;
        shape[i].d_ff = hp->d_ff * (shares && hp->wide_shared ? 2 : 1);
        shape[i].rec_head = hp->rec_head;
        shape[i].rec_group = hp->rec_group;
        shape[i].rec_inner = s->arch->mixer == MIXER_CONV ? hp->d_model : hp->rec_inner;
        NIB_TRY(read_scale(s, i, &shape[i].scale, err));
    }
    if (s->gguf_arch != NULL) {
        NIB_TRY(read_array(s, "attention.head_count_kv", hp->n_layer, shape, offsetof(layer_shape, n_kv_head),
                           err));
        NIB_TRY(read_array(s, "feed_forward_length", hp->n_layer, shape, offsetof(layer_shape, d_ff), err));
        NIB_TRY(
            read_array(s, "attention.head_count", hp->n_layer, shape, offsetof(layer_shape, n_head), err));
    } else {
        NIB_TRY(read_array(s, "intermediate_size", hp->n_layer, shape, offsetof(layer_shape, d_ff), err));
        NIB_TRY(read_array(s, "num_attention_heads_per_layer", hp->n_layer, shape,
                           offsetof(layer_shape, n_head), err));
        NIB_TRY(read_overrides(s, hp, shape, err));
    }
    for (int64_t i = 0; i < hp->n_layer && hp->kv_low_rank > 0; i++) {
        shape[i].n_kv_head = 1; /* the row of low rank and the rotated part */
        shape[i].d_head = hp->kv_low_rank + hp->n_rot;
    }
    NIB_TRY(read_sparsity(s, hp->n_layer, shape, err));
    hp->n_head = shape[0].n_head;
    for (int64_t i = 1; i < hp->n_layer; i++) /* of the widest layer */
        hp->n_head = NUM_MAX(hp->n_head, shape[i].n_head);
    if (hp->d_head_full > 0)
        NIB_TRY(note_full_heads(hp, out->layer, shape, err));
    if (hp->n_kv_shared > 0)
        NIB_TRY(share(hp, out->layer, shape, err));
    return check_shapes(hp, shape, err);
}
