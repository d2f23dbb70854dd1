/* cmd_quantize.c - nibble quantize: converts a model's matrices to smaller number formats. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "nib_tools.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/* Prints the result. residual: the file of residuals; NULL: none. Returns an exit code. */
static int report(const cli_args *args, const char *out, const char *residual, const nib_quantize_report *r) {
    char in_size[32], out_size[32], peak[32];
    if (args->json)
        return cli_write_json(
            json_pack("{s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:i, s:f, s:f, s:s, s:f, s:I}",
                      "file", out, "bytes_in", (json_int_t)r->bytes_in, "bytes", (json_int_t)r->bytes_out,
                      "tensors", r->n_tensor, "quantized", r->n_quantized, "resumed", r->n_resumed,
                      "fallback", r->n_fallback, "coarse", r->n_coarse, "first", r->n_first, "share8",
                      r->share8, "rotated", r->n_rotated, "bits", r->bits, "error", r->error, "importance",
                      r->importance, "seconds", r->seconds, "rss_peak", (json_int_t)r->rss_peak),
            args);
    printf("%s: %s from %s; ", out, num_format_size(r->bytes_out, out_size),
           num_format_size(r->bytes_in, in_size));
    if (r->n_quantized)
        printf("%d of %d tensors in %s bits a weight, relative squared error %s\n", r->n_quantized,
               r->n_tensor, num_text(r->bits, 4), num_text(r->error, 3));
    else
        printf("the values of all %d tensors as they are\n", r->n_tensor);
    printf("importance: %s; %.1f s, peak memory %s\n", r->importance, r->seconds,
           num_format_size(r->rss_peak, peak));
    if (args->permute)
        printf("%d channels with outliers come first; with --activation ax %s %% of the multiply-adds have 8 "
               "bits\n",
               r->n_first, num_text(r->share8, 3));
    if (args->rotate)
        printf("the residual stream and the heads of values of %d layers are rotated\n", r->n_rotated - 1);
    if (residual)
        printf("residuals: %s\n", residual);
    if (r->bytes_out > r->bytes_in)
        cli_note(args, "nibble: the result is larger than %s: a smaller --type takes less", args->model);
    return 0;
}

/* True if the folder of the output exists. Checked before the long measurements. */
static bool has_folder(const char *out) {
    const char *slash = strrchr(out, '/');
    char *folder = slash ? mem_strndup(out, slash == out ? 1 : (size_t)(slash - out)) : NULL;
    const bool there = !slash || !folder || access(folder, W_OK) == 0;
    mem_free(folder);
    return there;
}

/* After a failure, says where the partial output is, if there is one. */
static void say_what_is_left(const cli_args *args, const char *out) {
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s.part", out);
    if (n < (int)sizeof path && path_exists(path))
        cli_note(args, "nibble: the finished part is in %s; the same command continues it", path);
}

/* "OUT.residual"; freed with mem_free. */
static char *residual_path(const char *out) {
    const size_t n = strlen(out);
    char *path = mem_alloc(n + sizeof ".residual");
    if (path)
        snprintf(path, n + sizeof ".residual", "%s.residual", out);
    return path;
}

static int run(cli_args *args) {
    const char *out = args->output ? args->output : args->rest.n ? args->rest.data[0] : NULL;
    nib_engine_options options;
    nib_quantize_report r;
    nib_error err;
    if (!out || (args->output && args->rest.n))
        return cli_usage_error("quantize needs -o FILE: the file to write");
    if (!has_folder(out))
        return cli_usage_error("cannot write %s: %s", out, strerror(errno));
    cli_engine_options(args, &options);
    char *residual = args->keep_residual ? residual_path(out) : NULL;
    if (args->keep_residual && !residual)
        return cli_no_memory();
    const nib_quantize_options q = {.out = out,
                                    .type = args->type,
                                    .bits = args->bits,
                                    .outliers = args->outliers,
                                    .head_type = args->head_type,
                                    .method = args->method,
                                    .calib = args->calib,
                                    .permute = args->permute,
                                    .rotate = args->rotate,
                                    .share8 = args->a8_share,
                                    .imatrix = args->imatrix,
                                    .keep_imatrix = args->keep_imatrix,
                                    .residual = residual};
    const nib_status status = nib_quantize(args->model, &options, &q, &r, &err);
    const int code = status == NIB_OK ? report(args, out, residual, &r) : 0;
    mem_free(residual);
    if (status == NIB_OK)
        return code;
    if (status == NIB_E_CANCELLED || status == NIB_E_IO)
        say_what_is_left(args, out);
    return cli_fail(&err);
}

const cli_command cmd_quantize = {
    .name = "quantize",
    .usage = "MODEL -o OUT.gguf [--type q4_k_m | --bits 3.5] [--method rtn]",
    .summary = "convert a model to smaller number formats, as a GGUF file",
    .details =
        "--type is a format for all matrices (q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0, iq4_xs,\n"
        "iq4_nl, q3_k, q2_k, bf16, f16, f32; nibble's own n4g128, n4g64, n4g32, n3g64, n2g64, c3 and c4)\n"
        "or a mix, which gives more bits to the matrices that lose most: q5_k_m, q4_k_m (the default),\n"
        "q3_k_m, q2_k_m. Rows that blocks of 256 do not divide get a format in blocks of 32. llama.cpp "
        "loads\n"
        "the file. Uniform formats have their names in plans too: u4g64 is n4g64, u4g32 is q4_0.\n\n"
        "MODEL is a GGUF file or a folder with config.json, safetensors and tokenizer.json, best in f16,\n"
        "bf16 or f32. A folder's model that GGUF cannot express is refused before the work begins.\n"
        "A folder with packed weights (AWQ, GPTQ, compressed-tensors, bitsandbytes nf4, mxfp4) keeps\n"
        "exact values unless --type is given; --type packed keeps them in fewer bits (n4g128).\n\n"
        "--bits 3.5 allocates an average instead: each block gets 2, 3, 4, 5 or 8 bits such that the summed\n"
        "cost (KL divergence at the logits, measured block by block) is minimal. Scales add about half a "
        "bit.\n"
        "With --type c3,c4 these formats are allocated.\n\n"
        "--head-type q8_0 sets the format of embedding and output head, which --bits then does not count.\n\n"
        "Scales are searched for with an importance matrix: the mean square of the activations of each\n"
        "column, measured once with nibble's own prompts or the lines of --calib, and stored.\n"
        "--imatrix reads the matrix from a file of llama.cpp instead (none: rounding uses none),\n"
        "--keep-imatrix writes one.\n\n"
        "--type c3 and c4 give each row its own 8 or 16 values, the centres of a k-means weighted by the\n"
        "importance matrix (SqueezeLLM; --method squeezellm selects c4, and q8_0 for embedding and head).\n"
        "--outliers 0.45 stores 0.45 % of each row, those with the largest error, in 16 bits beside them.\n\n"
        "--keep-residual (or --residual) also writes OUT.gguf.residual: what rounding took, in\n"
        "--residual-bits (4) a weight. 'nibble run OUT.gguf --residual OUT.gguf.residual' then restores the\n"
        "strongest channels without the original (docs/paper-qdec.md).\n\n"
        "--method awq multiplies channels with large activations before rounding, and divides the tensor "
        "that\n"
        "produces them; gptq lets columns that are not yet rounded compensate for those that are. Both use\n"
        "the activations of some thousand tokens, of nibble's own texts or of --calib. A file by awq is "
        "kept\n"
        "only if held-back text is no less likely with it than with the same type by rtn.\n\n"
        "--permute puts the channels in which activations have outliers first, in all tensors together,\n"
        "so the model computes the same. --activation ax then has 8 bits for the first blocks of 128\n"
        "channels and 4 for the others (docs/paper-comet.md). Any program reads the file.\n\n"
        "--rotate multiplies the residual stream and the heads of values by orthogonal matrices, in all\n"
        "tensors together, so the model computes the same and activations have fewer outliers. Weights of\n"
        "norms move into the next products; a tied output head becomes a tensor. Norms after a sub-layer\n"
        "or with a mean cannot move: such a model is refused. Any program reads the file; --permute and\n"
        "other methods than rtn take it as their input. A matrix that writes to the stream is in memory\n"
        "as a whole.\n\n"
        "Memory does not depend on the model's size, and --ram is kept. The file is written as "
        "OUT.gguf.part.\n"
        "After an interruption the same command continues after the last finished tensor.\n\n"
        "  nibble quantize f16.gguf -o q4.gguf\n"
        "  nibble quantize folder/ -o q4.gguf\n"
        "  nibble quantize f16.gguf -o q3.gguf --type q3_k_m --calib text.txt\n"
        "  nibble quantize f16.gguf -o q4.gguf --method gptq --calib text.txt\n"
        "  nibble quantize f16.gguf -o q4.gguf --imatrix imatrix.gguf\n"
        "  nibble quantize f16.gguf -o q3.gguf --type u3g64 --keep-residual\n",
    .groups = CLI_MODEL | CLI_MEMORY | CLI_QUANTIZE,
    .n_rest = 1,
    .run = run,
};
