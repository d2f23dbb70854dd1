/* cmd_info.c - nibble info: what a model is, from its headers. */
#include "cli/cli.h"

#include "base/num.h"
#include "model/find.h"
#include "model/model.h"

#include <inttypes.h>

static json_t *tensors_json(const container *c) {
    json_t *list = json_array();
    for (size_t i = 0; i < container_n_tensor(c); i++) {
        const container_tensor *t = container_tensor_at(c, i);
        json_t *shape = json_array();
        for (int d = 0; d < t->n_dim; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_array_append_new(list,
                              json_pack("{s:s, s:o, s:s, s:I}", "name", t->name, "shape", shape, "format",
                                        type_get(t->type)->name, "bytes", (json_int_t)t->bytes));
    }
    return list;
}

static uint64_t file_bytes(const container *c) {
    uint64_t n = 0;
    for (size_t i = 0; i < container_n_tensor(c); i++)
        n += container_tensor_at(c, i)->bytes;
    return n;
}

static int write_json(const cli_args *args, const model *m) {
    const hparams *hp = model_hparams(m);
    const container *c = model_container(m);
    json_t *document = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "arch", model_arch(m), "name",
        model_name(m), "n_layer", (json_int_t)hp->n_layer, "d_model", (json_int_t)hp->d_model, "n_head",
        (json_int_t)hp->n_head, "n_kv_head", (json_int_t)hp->n_kv_head, "d_head", (json_int_t)hp->d_head,
        "d_ff", (json_int_t)hp->d_ff, "n_vocab", (json_int_t)hp->n_vocab, "n_ctx_train",
        (json_int_t)hp->n_ctx_train, "params", (json_int_t)model_n_param(m), "bytes",
        (json_int_t)file_bytes(c), "tensors", tensors_json(c));
    return cli_write_json(document, args);
}

static void print_formats(const container *c) {
    uint64_t bytes[TYPE_COUNT] = {0};
    size_t count[TYPE_COUNT] = {0};
    for (size_t i = 0; i < container_n_tensor(c); i++) {
        const container_tensor *t = container_tensor_at(c, i);
        bytes[t->type] += t->bytes;
        count[t->type]++;
    }
    char size[32];
    for (int t = 0; t < TYPE_COUNT; t++)
        if (count[t])
            printf("  %-8s %5zu tensors  %10s\n", type_get((type_id)t)->name, count[t],
                   num_format_size(bytes[t], size));
}

static void print_tensors(const container *c) {
    char size[32];
    printf("\ntensors\n");
    for (size_t i = 0; i < container_n_tensor(c); i++) {
        const container_tensor *t = container_tensor_at(c, i);
        char shape[128] = "";
        size_t n = 0;
        for (int d = 0; d < t->n_dim && n < sizeof shape; d++)
            n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%" PRId64, d ? " x " : "", t->shape[d]);
        printf("  %-44s %-8s %10s  %s\n", t->name, type_get(t->type)->name, num_format_size(t->bytes, size),
               shape);
    }
}

static void print_text(const cli_args *args, const model *m) {
    const hparams *hp = model_hparams(m);
    const container *c = model_container(m);
    char size[32];
    printf("%s\n", model_name(m));
    printf("  architecture   %s (%s)\n", model_arch(m),
           container_get_kind(c) == CONTAINER_GGUF ? "GGUF" : "safetensors");
    printf("  parameters     %.1f M in %s, %.2f bits each\n", (double)model_n_param(m) / 1e6,
           num_format_size(file_bytes(c), size),
           (double)file_bytes(c) * 8 / (double)NUM_MAX(model_n_param(m), (uint64_t)1));
    printf("  layers         %" PRId64 "\n", hp->n_layer);
    printf("  width          %" PRId64 ", feed-forward %" PRId64 "\n", hp->d_model, hp->d_ff);
    printf("  heads          %" PRId64 " query, %" PRId64 " key/value, %" PRId64 " wide\n", hp->n_head,
           hp->n_kv_head, hp->d_head);
    printf("  vocabulary     %" PRId64 "\n", hp->n_vocab);
    printf("  context        %" PRId64 "\n", hp->n_ctx_train);
    uint64_t kv = 0;
    for (int i = 0; i < model_n_kv_layer(m); i++) {
        int64_t k_width, v_width;
        model_kv_widths(m, i, &k_width, &v_width);
        kv += (uint64_t)(k_width + v_width) * 2;
    }
    printf("  cache          %s for each token (f16)\n", num_format_size(kv, size));
    printf("formats\n");
    print_formats(c);
    if (args->tensors)
        print_tensors(c);
}

static int run(cli_args *args) {
    char *path;
    model *m;
    nib_error err;
    if (model_find(args->model, &path, &err))
        return cli_fail(&err);
    nib_status status = model_open(path, NULL, &m, &err);
    nib_free(path);
    if (status)
        return cli_fail(&err);
    int code = 0;
    if (args->json)
        code = write_json(args, m);
    else
        print_text(args, m);
    model_close(m);
    return code;
}

const cli_command cmd_info = {
    .name = "info",
    .usage = "MODEL [options]",
    .summary = "what a model is: architecture, shapes, formats, bytes",
    .details = "Reads headers only.\n\n  nibble info smollm2\n  nibble info model.gguf --tensors\n",
    .groups = CLI_MODEL | CLI_INFO,
    .run = run,
};
