/* cmd_info.c - nibble info: describes a model from its headers. */
#include "cli/cli.h"

#include "base/num.h"
#include "cli/fields.h"
#include "nib_tools.h"

#include <string.h>

enum { MAX_FORMAT = 64 };

static void print_formats(const json_t *tensors) {
    struct {
        const char *name;
        size_t n;
        uint64_t bytes;
    } formats[MAX_FORMAT];
    size_t i, n = 0;
    const json_t *t;
    char size[32];
    json_array_foreach(tensors, i, t) {
        const char *name = field_text(t, "format");
        size_t f = 0;
        while (f < n && strcmp(formats[f].name, name) != 0)
            f++;
        if (f == MAX_FORMAT)
            continue;
        if (f == n) {
            formats[n].name = name;
            formats[n].bytes = formats[n].n = 0;
            n++;
        }
        formats[f].n++;
        formats[f].bytes += field_bytes(t, "bytes");
    }
    for (size_t f = 0; f < n; f++)
        printf("  %-8s %5zu tensors  %10s\n", formats[f].name, formats[f].n,
               num_format_size(formats[f].bytes, size));
}

static void print_tensors(const json_t *tensors) {
    char size[32];
    size_t i, d;
    const json_t *t, *dim;
    printf("\ntensors\n");
    json_array_foreach(tensors, i, t) {
        char shape[128] = "";
        size_t n = 0;
        json_array_foreach(json_object_get(t, "shape"), d, dim) if (n < sizeof shape) n += (size_t)snprintf(
            shape + n, sizeof shape - n, "%s%lld", d ? " x " : "", (long long)json_integer_value(dim));
        printf("  %-44s %-8s %10s  %s\n", field_text(t, "name"), field_text(t, "format"),
               num_format_size(field_bytes(t, "bytes"), size), shape);
    }
}

static void print_text(const cli_args *args, const json_t *d) {
    const uint64_t params = field_bytes(d, "params"), ahead = field_bytes(d, "ahead_params"),
                   bytes = field_bytes(d, "bytes");
    const json_t *tensors = json_object_get(d, "tensors");
    char size[32];
    printf("%s\n", field_text(d, "name"));
    printf("  architecture   %s (%s)\n", field_text(d, "arch"),
           strcmp(field_text(d, "container"), "gguf") ? "safetensors" : "GGUF");
    printf("  parameters     %.1f M in %s, %.2f bits each\n", (double)params / 1e6,
           num_format_size(bytes, size), (double)bytes * 8 / (double)NUM_MAX(params + ahead, (uint64_t)1));
    if (field_int(d, "n_expert") > 0)
        printf("  experts        %lld of %lld in a mixture for each token: %.1f M parameters are active\n",
               field_int(d, "n_expert_used"), field_int(d, "n_expert"),
               (double)field_bytes(d, "active_params") / 1e6);
    if (ahead > 0)
        printf("  speculation    a head of %.1f M parameters predicts later tokens (--draft-model mtp)\n",
               (double)ahead / 1e6);
    printf("  layers         %lld\n", field_int(d, "n_layer"));
    printf("  width          %lld, feed-forward %lld\n", field_int(d, "d_model"), field_int(d, "d_ff"));
    printf("  heads          %lld query, %lld key/value, %lld wide\n", field_int(d, "n_head"),
           field_int(d, "n_kv_head"), field_int(d, "d_head"));
    printf("  vocabulary     %lld\n", field_int(d, "n_vocab"));
    printf("  context        %lld\n", field_int(d, "n_ctx_train"));
    printf("  cache          %s for each token (f16)\n", num_format_size(field_bytes(d, "kv_bytes"), size));
    printf("formats\n");
    print_formats(tensors);
    if (args->tensors)
        print_tensors(tensors);
}

static int run(cli_args *args) {
    char *text;
    json_t *d;
    nib_error err;
    if (nib_model_describe(args->model, &text, &err))
        return cli_fail(&err);
    const int code = cli_document(text, &d);
    if (code)
        return code;
    if (args->json)
        return cli_write_json(d, args);
    print_text(args, d);
    json_decref(d);
    return 0;
}

const cli_command cmd_info = {
    .name = "info",
    .usage = "MODEL [options]",
    .summary = "architecture, shapes, formats and bytes of a model",
    .details = "Reads headers only.\n\n"
               "  nibble info smollm2\n"
               "  nibble info model.gguf --tensors\n",
    .groups = CLI_MODEL | CLI_INFO,
    .run = run,
};
