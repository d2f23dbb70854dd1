/* serve_options.c - see serve.h. */
#include "cli/serve/serve.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "nib_tools.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { MAX_KEYS_TEXT = 1 << 20, MIN_CACHE = 1 << 20 };

static int read_pooling(serve_job *job) {
    static const char *const names[] = {[NIB_POOLING_MEAN] = "mean", [NIB_POOLING_LAST] = "last"};
    const char *text = job->args->pooling;
    for (int i = NIB_POOLING_MEAN; text && i <= NIB_POOLING_LAST; i++)
        if (!strcmp(text, names[i]))
            job->pooling = i;
    return text && !job->pooling ? cli_usage_error("--pooling: expected mean or last, found '%s'", text) : 0;
}

/* Adds a key without spaces around it, since it is compared with a header's value, which has none. */
static int add_key(serve_job *job, const char *key) {
    if (!*key)
        return cli_usage_error("an API key is empty (--api-key, NIBBLE_API_KEY)");
    return cli_strings_add(&job->keys, key) ? 0 : cli_failure_code();
}

static int read_keys(serve_job *job) {
    size_t n_byte;
    nib_error err;
    char *rest = NULL;
    int code = 0;
    for (size_t i = 0; i < job->args->api_key.n && !code; i++)
        code = add_key(job, job->args->api_key.data[i]);
    if (code || !job->args->api_key_file)
        return code;
    if (file_read_all(job->args->api_key_file, MAX_KEYS_TEXT, &job->key_text, &n_byte, &err))
        return cli_usage_error("--api-key-file: %s", err.message);
    for (char *line = strtok_r(job->key_text, "\r\n", &rest); line && !code;
         line = strtok_r(NULL, "\r\n", &rest))
        code = add_key(job, line);
    if (!code && job->keys.n == 0)
        return cli_usage_error("--api-key-file: %s has no key", job->args->api_key_file);
    return code;
}

/* Makes a model's name from its path: "models/smollm2.gguf" is smollm2. */
static char *name_of(const char *model) {
    const char *slash = strrchr(model, '/'), *base = slash && slash[1] ? slash + 1 : model;
    const size_t n = strlen(base), end = n > 5 && !strcmp(base + n - 5, ".gguf") ? n - 5 : n;
    return mem_strndup(base, end);
}

static int add_model(serve_job *job, const char *name, const char *model) {
    const size_t i = job->n_model;
    if (i == SERVE_MAX_MODELS)
        return cli_usage_error("--models: expected at most %d models", SERVE_MAX_MODELS);
    job->names[i] = name ? mem_strdup(name) : name_of(model);
    if (!job->names[i])
        return cli_no_memory();
    job->paths[i] = model;
    job->openings[i].job = job;
    job->models[job->n_model++] = (server_model){.name = job->names[i]};
    for (size_t k = 0; k < i; k++)
        if (!strcmp(job->names[k], job->names[i]))
            return cli_usage_error("two models are called '%s': NAME=MODEL in --models gives another name",
                                   job->names[i]);
    return *job->names[i] ? 0 : cli_usage_error("--models: a name is empty");
}

/* The number format of most of the model's bytes, in capitals as in names of files. */
static void find_format(const json_t *tensors, char *out, size_t size) {
    json_t *sums = json_object();
    const json_t *one;
    const char *found = "unknown", *key;
    json_t *v;
    json_int_t most = 0;
    size_t i;
    json_array_foreach(tensors, i, one) {
        const char *format = json_string_value(json_object_get(one, "format"));
        const json_int_t n = json_integer_value(json_object_get(one, "bytes"));
        if (format)
            json_object_set_new(sums, format,
                                json_integer(n + json_integer_value(json_object_get(sums, format))));
    }
    json_object_foreach(sums, key, v) {
        if (json_integer_value(v) > most) {
            most = json_integer_value(v);
            found = key;
        }
    }
    snprintf(out, size, "%s", found);
    for (i = 0; out[i]; i++)
        out[i] = (char)toupper((unsigned char)out[i]);
    json_decref(sums);
}

/* Identifies a model by its headers and its path, as 64 hexadecimal digits. */
static void make_digest(const char *path, const char *headers, char out[65]) {
    const uint64_t of_path = XXH3_64bits(path, strlen(path));
    for (int i = 0; i < 2; i++) {
        const XXH128_hash_t h = XXH3_128bits_withSeed(headers, strlen(headers), of_path + (uint64_t)i);
        snprintf(out + 32 * i, 33, "%016llx%016llx", (unsigned long long)h.high64,
                 (unsigned long long)h.low64);
    }
}

/* Reads the model's headers, for reports before it is loaded. */
static int describe(serve_job *job, size_t i) {
    server_model *m = &job->models[i];
    nib_error err;
    char *text = NULL;
    if (nib_model_describe(job->paths[i], &text, &err))
        return cli_fail(&err);
    make_digest(job->paths[i], text, job->digests[i]);
    json_t *value = NULL;
    const int code = cli_document(text, &value); /* frees text */
    const char *arch = json_string_value(json_object_get(value, "arch"));
    m->arch = job->archs[i] = arch ? mem_strdup(arch) : NULL;
    const char *container = json_string_value(json_object_get(value, "container"));
    m->container = container && !strcmp(container, "safetensors") ? "safetensors" : "gguf";
    const size_t lost = jsonx_lost();
    find_format(json_object_get(value, "tensors"), job->formats[i], sizeof job->formats[i]);
    m->format = job->formats[i];
    m->digest = job->digests[i];
    m->n_param = (uint64_t)json_integer_value(json_object_get(value, "params"));
    m->n_byte = (uint64_t)json_integer_value(json_object_get(value, "bytes"));
    m->n_ctx_train = json_integer_value(json_object_get(value, "n_ctx_train"));
    json_decref(value);
    const bool whole = (m->arch || !arch) && jsonx_lost() == lost;
    return code || whole ? code : cli_no_memory();
}

/* Reads MODEL, and --models: NAME=MODEL or MODEL, separated by commas. */
static int read_models(serve_job *job) {
    const cli_args *args = job->args;
    char *rest = NULL;
    int code = args->model ? add_model(job, args->alias, args->model) : 0;
    if (args->models && args->plan)
        return cli_usage_error("--plan is for one model and cannot be combined with --models");
    job->list = args->models ? mem_strdup(args->models) : NULL;
    for (char *one = job->list ? strtok_r(job->list, ",", &rest) : NULL; one && !code;
         one = strtok_r(NULL, ",", &rest)) {
        char *equals = strchr(one, '=');
        if (equals)
            *equals = '\0';
        code = add_model(job, equals ? one : NULL, equals ? equals + 1 : one);
    }
    if (!code && job->n_model == 0)
        return cli_usage_error("which model? usage: nibble serve MODEL, or --models NAME,NAME");
    for (size_t i = 0; i < job->n_model && !code; i++)
        code = describe(job, i);
    return code;
}

/* In other programs --cache-ram counts MiB. */
static int check_unit(const cli_args *args) {
    const uint64_t n_byte = args->cache_ram;
    return n_byte > 0 && n_byte < MIN_CACHE
               ? cli_usage_error("--cache-ram: expected 0, or a size with a unit such as 8G, found %d bytes",
                                 (int)n_byte)
               : 0;
}

int serve_read(serve_job *job, int usual) {
    int code = cli_parallel(job->args, usual, &job->n_sequence);
    if (!code)
        code = check_unit(job->args);
    if (!code)
        code = read_pooling(job);
    if (!code)
        code = read_keys(job);
    if (!code)
        code = read_models(job);
    if (!code && job->args->plan && job->args->ram == NIB_AUTO) /* for requests too */
        code = cli_plan_cap(job->args->plan, &job->args->ram);
    return code;
}

void serve_forget(serve_job *job) {
    for (size_t i = 0; i < job->n_model; i++) {
        mem_free(job->names[i]);
        mem_free(job->archs[i]);
    }
    mem_free(job->list);
    mem_free(job->key_text);
    mem_free(job->files);
    free(job->keys.data);
}
