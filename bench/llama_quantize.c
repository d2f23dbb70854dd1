/* llama_quantize.c - llama.cpp's own quantizer, for quant_table.sh to put beside nibble's. Compiled against
 * the headers and libraries of some llama.cpp; never part of nibble:
 *
 *   cc llama_quantize.c -I INCLUDE -L LIB -lllama -lggml-base -Wl,-rpath,LIB -o llama_quantize
 *   llama_quantize IN.gguf OUT.gguf q3_k_m|q4_k_m|q4_0 [IMATRIX.gguf]
 *
 * The importance matrix is one that `nibble quantize --keep-imatrix` or llama-imatrix wrote. Quantized
 * originals are accepted, as in nibble. */
#include <ggml.h>
#include <gguf.h>
#include <llama.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENTRIES = 4096 };
static const char sums_end[] = ".in_sum2";

static int read_imatrix(const char *path, struct llama_model_imatrix_data *out) {
    struct ggml_context *data = NULL;
    const struct gguf_init_params how = {.no_alloc = false, .ctx = &data};
    const struct gguf_context *file = gguf_init_from_file(path, how);
    int n = 0;
    for (int i = 0; file && i < (int)gguf_get_n_tensors(file) && n < MAX_ENTRIES; i++) {
        const char *name = gguf_get_tensor_name(file, i), *end = strstr(name, sums_end);
        struct ggml_tensor *sums = ggml_get_tensor(data, name);
        if (end)
            out[n++] = (struct llama_model_imatrix_data){strndup(name, (size_t)(end - name)), sums->data,
                                                         (size_t)ggml_nelements(sums)};
    }
    return n;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        enum llama_ftype type;
    } types[] = {{"q3_k_m", LLAMA_FTYPE_MOSTLY_Q3_K_M},
                 {"q4_k_m", LLAMA_FTYPE_MOSTLY_Q4_K_M},
                 {"q4_0", LLAMA_FTYPE_MOSTLY_Q4_0}};
    static struct llama_model_imatrix_data entries[MAX_ENTRIES + 1];
    struct llama_model_quantize_params how = llama_model_quantize_default_params();
    size_t t = 0;
    while (argc >= 4 && t < sizeof types / sizeof *types && strcmp(types[t].name, argv[3]) != 0)
        t++;
    if (argc < 4 || t == sizeof types / sizeof *types) {
        fprintf(stderr, "usage: llama_quantize IN OUT q3_k_m|q4_k_m|q4_0 [IMATRIX]\n");
        return 2;
    }
    how.ftype = types[t].type;
    how.allow_requantize = true;
    if (argc > 4) {
        if (read_imatrix(argv[4], entries) == 0) {
            fprintf(stderr, "%s: no importance matrix\n", argv[4]);
            return 1;
        }
        how.imatrix = entries;
    }
    return llama_model_quantize(argv[1], argv[2], &how) != 0;
}
