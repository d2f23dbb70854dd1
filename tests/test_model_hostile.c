/* Hostile configurations and tensors: each is a clear NIB_E_MODEL, without a crash, a large allocation or a
 * leak (the sanitizers check). A failure of any allocation or read is an error too. */
#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "model/model.h"
#include "support/faults.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const logger silent = {0};

static nib_status open_and_close(const char *path, nib_error *err) {
    model *m = NULL;
    nib_status status = model_open(path, &silent, &m, err);
    if (status == NIB_OK) {
        float freqs[8192], factor; /* opened: then it can be used */
        for (int i = 0; i < model_n_rope(m); i++)
            if (model_rope_dim(m, i) <= 16384) {
                model_rope_freqs(m, i, 100, freqs, &factor);
                fault_made(freqs, (size_t)model_rope_dim(m, i) / 2 * sizeof *freqs);
            }
        for (int b = 0; b < model_n_block(m); b++) {
            const int64_t ops[] = {model_block(m, b)->n_weight, model_block(m, b)->program.n_op};
            fault_made(ops, sizeof ops);
        }
        model_close(m);
    }
    return status;
}

/* --- configurations ------------------------------------------------------------------------------ */

/* A folder in the temporary one with its own config.json and the fixture's weights. */
static const char *folder_with(const char *fixture, const json_t *config) {
    char target[600];
    const char *folder = temp_path("model");
    char *text = json_dumps(config, 0);
    assert_non_null(text);
    mkdir(folder, 0700);
    temp_file("model/config.json", text, strlen(text));
    free(text);
    char *cwd = getcwd(NULL, 0);
    assert_non_null(cwd);
    snprintf(target, sizeof target, "%s/tests/data/%s/model.safetensors", cwd, fixture);
    free(cwd);
    unlink(temp_path("model/model.safetensors"));
    assert_int_equal(symlink(target, temp_path("model/model.safetensors")), 0);
    return folder;
}

static json_t *config_of(const char *fixture) {
    char path[256];
    nib_error err;
    json_t *config;
    snprintf(path, sizeof path, "tests/data/%s/config.json", fixture);
    assert_int_equal(jsonx_load(path, 1 << 20, &config, &err), NIB_OK);
    return config;
}

/* config[key] = value, where dots go into objects. */
static void set(json_t *config, const char *key, json_t *value) {
    char name[64];
    const char *dot;
    while ((dot = strchr(key, '.')) != NULL) {
        snprintf(name, sizeof name, "%.*s", (int)(dot - key), key);
        if (!json_is_object(json_object_get(config, name)))
            json_object_set_new(config, name, json_object());
        config = json_object_get(config, name);
        key = dot + 1;
    }
    json_object_set_new(config, key, value);
}

typedef struct lie {
    const char *fixture, *key, *json, *says; /* says: a part of the message; NULL: it must open */
} lie;

static const lie lies[] = {
    {"arch/llama", "model_type", "\"nosuch\"", NULL}, /* its class still names the family */
    {"arch/llama", "architectures", "null", NULL},
    {"arch/llama", "num_hidden_layers", "1000000000", "n_layer"},
    {"arch/llama", "num_hidden_layers", "5", "model.layers.4.input_layernorm.weight is missing"},
    {"arch/llama", "num_hidden_layers", "0", "n_layer"},
    {"arch/llama", "num_hidden_layers", "-1", "n_layer"},
    {"arch/llama", "num_hidden_layers", "4.5", "n_layer"},
    {"arch/llama", "num_hidden_layers", "\"four\"", "num_hidden_layers"},
    {"arch/llama", "num_hidden_layers", "[4, 3]", "num_hidden_layers"},
    {"arch/llama", "num_hidden_layers", "null", "n_layer"},
    {"arch/llama", "hidden_size", "0", "d_model"},
    {"arch/llama", "hidden_size", "65", "shape"},
    {"arch/llama", "hidden_size", "1000000000000000", "d_model"},
    {"arch/llama", "hidden_size", "1e300", "d_model"},
    {"arch/llama", "num_attention_heads", "0", "n_head"},
    {"arch/llama", "num_attention_heads", "3", "n_kv_head"},
    {"arch/llama", "num_attention_heads", "8", "shape"},
    {"arch/llama", "num_key_value_heads", "3", "n_kv_head"},
    {"arch/llama", "num_key_value_heads", "4", "shape"},
    {"arch/llama", "num_key_value_heads", "8", "n_kv_head"},
    {"arch/llama", "head_dim", "-16", "d_head"},
    {"arch/llama", "head_dim", "15", "n_rot"},
    {"arch/llama", "head_dim", "32", "shape"},
    {"arch/llama", "head_dim", "9000000000000000", "d_head"},
    {"arch/llama", "head_dim", "null", NULL},
    {"arch/llama", "intermediate_size", "143", "shape"},
    {"arch/llama", "intermediate_size", "1000000000000", "d_ff"},
    {"arch/llama", "vocab_size", "321", "shape"},
    {"arch/llama", "vocab_size", "1099511627776", "n_vocab"},
    {"arch/llama", "max_position_embeddings", "0", "n_ctx_train"},
    {"arch/llama", "rms_norm_eps", "-1", "norm_eps"},
    {"arch/llama", "hidden_act", "\"swoosh\"", "swoosh"},
    {"arch/llama", "hidden_act", "\"gelu\"", NULL},
    {"arch/llama", "tie_word_embeddings", "true", NULL},
    {"arch/llama", "rope_parameters.rope_theta", "0", "rope_theta"},
    {"arch/llama", "rope_parameters.rope_theta", "-5", "rope_theta"},
    {"arch/llama", "rope_parameters.rope_type", "\"mrope\"", "mrope"},
    {"arch/llama", "rope_parameters.rope_type", "\"linear\"", "factor"},
    {"arch/llama", "rope_parameters.rope_type", "\"longrope\"", "short_factor"},
    {"arch/llama", "rope_parameters.rope_type", "\"yarn\"", NULL},
    {"arch/llama", "rope_parameters.partial_rotary_factor", "7", "partial_rotary_factor"},
    {"arch/llama", "rope_scaling.type", "\"strange\"", NULL}, /* rope_parameters comes first */
    {"arch/ministral3", "rope_parameters", "null", "expected rope_parameters"}, /* not silently plain */
    {"arch/apertus", "rope_parameters", "{}", "expected rope_parameters"},
    {"arch/apertus", "rope_parameters.rope_type", "\"default\"", NULL},
    {"arch/gpt_oss", "rope_parameters", "null", "expected rope_parameters"},
    {"arch/llama", "rope_parameters", "null", NULL},
    {"arch/llama", "quantization_config.quant_method", "\"gptq\"", "gptq"},
    {"arch/llama", "num_local_experts", "8", "n_expert_used"},
    {"arch/llama", "is_encoder_decoder", "true", "is_encoder_decoder"},
    {"arch/gpt2", "add_cross_attention", "true", "add_cross_attention"},
    {"arch/gpt2", "n_inner", "128", "shape"},
    {"arch/gpt2", "tie_word_embeddings", "false", "lm_head.weight is missing"},
    {"arch/gptj", "rotary_dim", "9", "n_rot"},
    {"arch/gptj", "rotary_dim", "18", "n_rot"},
    {"arch/gemma2", "layer_types", "[\"sliding_attention\"]", "layer_types"},
    {"arch/gemma2", "layer_types", "[\"sliding_attention\", \"full_attention\", \"linear_attention\", \"x\"]",
     "linear_attention"},
    {"arch/gemma2", "query_pre_attn_scalar", "0", "attn_scale"},
    {"arch/gemma2", "query_pre_attn_scalar", "-4", "attn_scale"},
    {"arch/gemma2", "sliding_window", "-2", "window"},
    {"arch/opt", "word_embed_proj_dim", "32", "shape"},
    {"arch/opt", "_remove_final_layer_norm", "true",
     NULL}, /* its tensor is then left over, outside the layers */
    {"arch/phi3", "rope_parameters",
     "{\"type\": \"longrope\", \"short_factor\": [1, 2], \"long_factor\": [1, 2]}", "short_factor"},
    {"arch/falcon", "new_decoder_architecture", "true", "shape"},
    {"arch/falcon", "multi_query", "false", "shape"},
    {"arch/qwen2", "text_config", "{}", NULL},
    {"arch/stablelm", "qk_layernorm", "true", "q_layernorm"},
    {"arch/stablelm", "use_parallel_residual", "true", NULL},
};

static void lies_are_told(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        json_t *config = config_of(lies[i].fixture);
        json_error_t e;
        json_t *value = json_loads(lies[i].json, JSON_DECODE_ANY, &e);
        assert_non_null(value);
        set(config, lies[i].key, value);
        nib_error err = {0};
        nib_status status = open_and_close(folder_with(lies[i].fixture, config), &err);
        json_decref(config);
        bool opens = lies[i].says == NULL;
        if (status != (opens ? NIB_OK : NIB_E_MODEL) || (!opens && strstr(err.message, lies[i].says) == NULL))
            fail_msg("%s %s = %s: status %d, \"%s\"", lies[i].fixture, lies[i].key, lies[i].json, (int)status,
                     err.message);
    }
}

/* Every key of a configuration with every kind of wrong value: it opens, or the error has a reason. */
static void any_key_any_value(void **state) {
    (void)state;
    static const char *const fixtures[] = {"arch/llama", "arch/gemma3", "arch/falcon", "arch-extra/smollm3"};
    static const char *const values[] = {"null",
                                         "[]",
                                         "{}",
                                         "\"\"",
                                         "\"x\"",
                                         "-1",
                                         "0",
                                         "1",
                                         "3",
                                         "true",
                                         "false",
                                         "1e308",
                                         "1e-300",
                                         "9223372036854775807",
                                         "[1, 2, 3, 4]",
                                         "[\"a\", \"b\"]"};
    for (size_t f = 0; f < sizeof fixtures / sizeof fixtures[0]; f++) {
        json_t *plain = config_of(fixtures[f]);
        const char *key;
        json_t *old;
        json_object_foreach(plain, key, old) {
            for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
                json_t *config = json_deep_copy(plain);
                json_error_t e;
                json_object_set_new(config, key, json_loads(values[v], JSON_DECODE_ANY, &e));
                nib_error err = {0};
                nib_status status = open_and_close(folder_with(fixtures[f], config), &err);
                if (status != NIB_OK && (status != NIB_E_MODEL || err.message[0] == '\0'))
                    fail_msg("%s %s = %s: status %d, \"%s\"", fixtures[f], key, values[v], (int)status,
                             err.message);
                json_decref(config);
            }
        }
        json_decref(plain);
    }
}

/* --- tensors ------------------------------------------------------------------------------------- */

typedef struct tensors {
    char *bytes; /* the file */
    size_t n_byte;
    json_t *header;
    size_t n_header;
} tensors;

static void tensors_load(const char *fixture, tensors *t) {
    char path[256];
    nib_error err;
    uint64_t n;
    snprintf(path, sizeof path, "tests/data/%s/model.safetensors", fixture);
    assert_int_equal(file_read_all(path, 64 << 20, &t->bytes, &t->n_byte, &err), NIB_OK);
    memcpy(&n, t->bytes, 8);
    t->n_header = (size_t)n;
    assert_int_equal(jsonx_parse(t->bytes + 8, t->n_header, &t->header, &err), NIB_OK);
}

/* The same file with another header; returns the status of opening it. */
static nib_status open_with_header(const char *fixture, const tensors *t, const json_t *header,
                                   nib_error *err) {
    json_t *config = config_of(fixture);
    const char *folder = folder_with(fixture, config);
    json_decref(config);
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t n = strlen(text);
    size_t n_data = t->n_byte - 8 - t->n_header;
    char *all = mem_alloc(8 + n + n_data);
    assert_non_null(all);
    memcpy(all, &n, 8);
    memcpy(all + 8, text, n);
    memcpy(all + 8 + n, t->bytes + 8 + t->n_header, n_data);
    unlink(temp_path("model/model.safetensors"));
    temp_file("model/model.safetensors", all, 8 + n + n_data);
    mem_free(all);
    free(text);
    return open_and_close(folder, err);
}

typedef json_t *(*change)(json_t *header, const char *name, const json_t *tensor);

static json_t *rename_it(json_t *header, const char *name, const json_t *tensor) {
    char other[256];
    snprintf(other, sizeof other, "%.200s_", name);
    json_object_set(header, other, (json_t *)tensor);
    json_object_del(header, name);
    return header;
}

/* The same number of elements in another shape. */
static json_t *reshape_it(json_t *header, const char *name, const json_t *tensor) {
    json_t *shape = json_object_get(json_object_get(header, name), "shape");
    (void)tensor;
    if (json_array_size(shape) == 1)
        json_array_append_new(shape, json_integer(1));
    else
        json_array_insert_new(shape, 0, json_integer(1));
    json_array_append_new(shape, json_integer(1));
    return header;
}

static json_t *retype_it(json_t *header, const char *name, const json_t *tensor) {
    (void)tensor;
    json_object_set_new(json_object_get(header, name), "dtype", json_string("I16"));
    return header;
}

static void change_each(const char *fixture, change how) {
    tensors t;
    tensors_load(fixture, &t);
    const char *name;
    json_t *tensor;
    json_object_foreach(t.header, name, tensor) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        json_t *header = json_deep_copy(t.header);
        nib_error err = {0};
        nib_status status = open_with_header(fixture, &t, how(header, name, tensor), &err);
        json_decref(header);
        if (status != NIB_E_MODEL || strstr(err.message, name) == NULL)
            fail_msg("%s: %s changed: status %d, \"%s\"", fixture, name, (int)status, err.message);
    }
    json_decref(t.header);
    mem_free(t.bytes);
}

static void tensors_that_are_missing(void **state) {
    (void)state;
    change_each("arch/llama", rename_it);
    change_each("arch/phi", rename_it);
}

static void tensors_of_another_shape(void **state) {
    (void)state;
    change_each("arch/llama", reshape_it);
    change_each("arch/gpt_neox", reshape_it);
    change_each("arch-extra/llama-sinks", reshape_it);
}

static void tensors_of_another_type(void **state) {
    (void)state;
    change_each("arch/llama", retype_it);
    change_each("arch-extra/llama-sinks", retype_it);
}

/* A bias in one layer only is a damaged checkpoint; an unknown tensor in a layer would be maths left out. */
static void uneven_layers(void **state) {
    (void)state;
    tensors t;
    nib_error err = {0};
    tensors_load("arch/stablelm", &t);
    json_t *header = json_deep_copy(t.header);
    json_object_del(header, "model.layers.2.self_attn.k_proj.bias");
    assert_int_equal(open_with_header("arch/stablelm", &t, header, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "layer 2 has no k bias, but layer 0 has one"));
    json_decref(header);
    header = json_deep_copy(t.header);
    for (int i = 0; i < 4; i++) {
        char name[96], other[96];
        snprintf(name, sizeof name, "model.layers.%d.self_attn.k_proj.bias", i);
        snprintf(other, sizeof other, "model.layers.%d.self_attn.extra_norm.weight", i);
        json_object_set(header, other, json_object_get(header, name));
        json_object_del(header, name);
    }
    assert_int_equal(open_with_header("arch/stablelm", &t, header, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "extra_norm.weight: expected a tensor that the architecture"));
    json_decref(header);
    json_decref(t.header);
    mem_free(t.bytes);
    tensors_load("arch-extra/llama-sinks", &t);
    json_object_del(t.header, "model.layers.1.self_attn.sinks");
    assert_int_equal(open_with_header("arch-extra/llama-sinks", &t, t.header, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "layer 1 has no sinks"));
    json_decref(t.header);
    mem_free(t.bytes);
}

/* --- faults -------------------------------------------------------------------------------------- */

static nib_status step(void *user, nib_error *err) {
    return open_and_close(user, err);
}

static void any_allocation_or_read_fails(void **state) {
    (void)state;
    static const char *const paths[] = {"tests/data/arch/llama", "tests/data/arch-extra/phi3-longrope-long",
                                        "tests/data/arch-gguf/gemma3.gguf",
                                        "tests/data/arch-gguf/llama-llama3.gguf"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        assert_true(fault_sweep(FAULT_ALLOC, 7, step, (void *)paths[i]) > 5);
        assert_true(fault_sweep(FAULT_READ, 1, step, (void *)paths[i]) > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies_are_told),
        cmocka_unit_test(any_key_any_value),
        cmocka_unit_test(tensors_that_are_missing),
        cmocka_unit_test(tensors_of_another_shape),
        cmocka_unit_test(tensors_of_another_type),
        cmocka_unit_test(uneven_layers),
        cmocka_unit_test(any_allocation_or_read_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
