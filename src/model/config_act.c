/* config_act.c - the activation function of the feed-forward layers, and its parameters in each layer. */
#include "model/config.h"

#include "base/num.h"
#include "numbers/types.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const xielu_names[XIELU_N] = {"alpha_p", "alpha_n", "beta", "eps"};

static nib_status read_kind(const config_source *s, config *out, nib_error *err) {
    static const struct {
        const char *name;
        act_kind act;
    } acts[] = {
        {"silu", ACT_SILU},
        {"swish", ACT_SILU},
        {"gelu", ACT_GELU},
        {"gelu_python", ACT_GELU},
        {"gelu_new", ACT_GELU_TANH},
        {"gelu_fast", ACT_GELU_TANH},
        {"gelu_pytorch_tanh", ACT_GELU_TANH},
        {"gelu_python_tanh", ACT_GELU_TANH},
        {"quick_gelu", ACT_GELU_QUICK},
        {"relu", ACT_RELU},
        {"relu2", ACT_RELU2},
        {"xielu", ACT_XIELU},
    };
    out->act = s->arch->act;
    if (s->gguf_arch != NULL)
        return NIB_OK;
    const char *keys = s->arch->hf_act != NULL
                           ? s->arch->hf_act
                           : "hidden_act|hidden_activation|activation_function|activation";
    const char *name = config_string(s, keys);
    if (name == NULL)
        return NIB_OK;
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        if (strcmp(name, acts[i].name) == 0) {
            out->act = acts[i].act;
            return NIB_OK;
        }
    return nib_fail(
        err, NIB_E_MODEL,
        "activation: expected silu, gelu, gelu_pytorch_tanh, relu or another known one, found \"%s\"", name);
}

/* The gate of a delta net's output. */
static nib_status read_gate(const config_source *s, config *out, nib_error *err) {
    const char *name = s->gguf_arch ? NULL : config_string(s, "output_gate_type");
    out->gate = s->arch->mixer == MIXER_KDA ? ACT_SIGMOID : ACT_SILU;
    if (name == NULL || strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0)
        return NIB_OK;
    if (strcmp(name, "sigmoid") != 0)
        return nib_fail(err, NIB_E_MODEL, "output_gate_type: expected silu or sigmoid, found \"%.60s\"",
                        name);
    out->gate = ACT_SIGMOID;
    return NIB_OK;
}

nib_status config_tensor_number(const config_source *s, const container_tensor *t, float *out,
                                nib_error *err) {
    uint8_t raw[sizeof(float)];
    uint64_t bytes;
    const bool is_float = t->type == TYPE_F32 || t->type == TYPE_F16 || t->type == TYPE_BF16;
    if (!is_float || !type_row_bytes(t->type, 1, &bytes) || t->bytes != bytes)
        return nib_fail(err, NIB_E_MODEL,
                        "tensor %s: expected one number of f32, f16 or bf16, found %llu bytes", t->name,
                        (unsigned long long)t->bytes);
    NIB_TRY(file_read_at(container_file(s->c, t->file), raw, t->offset, t->bytes, err));
    type_get(t->type)->dequantize(raw, out, 1);
    return NIB_OK;
}

/* GGUF has an array for each parameter, or one number for all layers. */
static nib_status read_array(const config_source *s, const char *key, float (*out)[XIELU_N], int which,
                             int64_t n_layer, nib_error *err) {
    const meta_value *v = container_meta(s->c, key);
    double one = 0;
    if (container_meta_f64(s->c, key, &one)) {
        for (int64_t i = 0; i < n_layer; i++)
            out[i][which] = (float)one;
        return NIB_OK;
    }
    if (v == NULL || v->type != META_ARRAY || v->elem != META_FLOAT || v->n < (size_t)n_layer)
        return nib_fail(err, NIB_E_MODEL, "%s: expected %lld numbers, found %zu", key, (long long)n_layer,
                        v != NULL && v->type == META_ARRAY ? v->n : (size_t)0);
    for (int64_t i = 0; i < n_layer; i++)
        out[i][which] = (float)v->v.floats[i];
    return NIB_OK;
}

static nib_status tensor_number(const config_source *s, const char *name, float *out, nib_error *err) {
    const container_tensor *t = config_find_hf(s, name);
    return t != NULL ? config_tensor_number(s, t, out, err)
                     : nib_fail(err, NIB_E_MODEL, "tensor %s is missing", name);
}

static nib_status read_xielu(const config_source *s, config *out, nib_error *err) {
    const int64_t n_layer = out->hp.n_layer;
    float(*each)[XIELU_N] = arena_array(s->mem, (size_t)n_layer, sizeof *each);
    char name[96];
    if (each == NULL)
        return nib_fail_nomem(err, (size_t)n_layer * sizeof *each, "the parameters of xIELU");
    out->xielu = (const float(*)[XIELU_N])each;
    for (int p = 0; p < XIELU_N; p++) {
        snprintf(name, sizeof name, "xielu.%s", xielu_names[p]);
        if (s->gguf_arch != NULL)
            NIB_TRY(read_array(s, name, each, p, n_layer, err));
        for (int64_t i = 0; i < n_layer; i++) {
            snprintf(name, sizeof name, "model.layers.%lld.mlp.act_fn.%s", (long long)i, xielu_names[p]);
            if (s->gguf_arch == NULL)
                NIB_TRY(tensor_number(s, name, &each[i][p], err));
            if (!isfinite(each[i][p]))
                return nib_fail(err, NIB_E_MODEL, "xIELU %s of layer %lld: expected a finite number",
                                xielu_names[p], (long long)i);
        }
    }
    return NIB_OK;
}

nib_status config_read_act(const config_source *s, config *out, nib_error *err) {
    NIB_TRY(read_kind(s, out, err));
    NIB_TRY(read_gate(s, out, err));
    return out->act == ACT_XIELU ? read_xielu(s, out, err) : NIB_OK;
}
