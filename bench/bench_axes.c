/* bench_axes - FlexGen's 4-bit formats (section 5), which are here for comparison only: groups of 64 with a
 * scale and a minimum in f16, of weights along the outputs of one input, of keys and values along the
 * channels of one position.
 *
 *   bench_axes weights outputs|inputs FILE.gguf        rounds the layers' f16 matrices in the file
 *   bench_axes cache f16|channels MODEL TEXT N BASE    perplexity of N chunks of 1,024 tokens
 *   bench_axes check FILE.json                         compares the bytes of given vectors
 *
 * `channels`: every key and value is rounded before it is stored. BASE is a file as of nibble eval
 * --kld-base. FILE.json has "vectors": [{"d_head", "x_f16" (64 positions, hexadecimal), "kv4h64", "w4o64" (of
 * x's transpose)}].
 *
 * What rounding gives is in f16 again, as in the paper, so the model is computed as usual. */
#include "base/jsonx.h"
#include "base/num.h"
#include "formats/container.h"
#include "kernels/kernels.h"
#include "nib_tools.h"
#include "numbers/types.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 64, MOST = 15, BLOCK_BYTES = GROUP / 2 };

typedef struct group {
    uint8_t codes[GROUP];
    uint16_t scale, low;
} group;

/* A group of n <= GROUP values. One that is not finite: the scale is NaN. */
static group make_group(const float *x, int n) {
    group g = {.low = 0};
    float low = x[0], high = x[0];
    bool finite = true;
    for (int i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        finite = finite && isfinite(x[i]);
    }
    if (!finite)
        return (group){.scale = 0x7e00};
    g.scale = half_from_float((high - low) / MOST);
    g.low = half_from_float(low);
    const float step = half_to_float(g.scale), inverse = step > 0 ? 1 / step : 0;
    for (int i = 0; i < n; i++) {
        const float code = (x[i] - low) * inverse;
        g.codes[i] = (uint8_t)((code < MOST ? code : MOST) + 0.5f);
    }
    return g;
}

static void round_group(float *x, int n) {
    const group g = make_group(x, n);
    for (int i = 0; i < n; i++)
        x[i] =
            half_to_float(half_from_float(half_to_float(g.scale) * (float)g.codes[i] + half_to_float(g.low)));
}

static int fail(const nib_error *err) {
    fprintf(stderr, "bench_axes: %s\n", err->message);
    return 1;
}

/* ---- weights ---- */

/* Rounds x [n, k] in groups of n or k that are up to GROUP long. */
static void round_matrix(uint16_t *x, int64_t n, int64_t k, bool outputs) {
    const int64_t lines = outputs ? k : n, length = outputs ? n : k, next = outputs ? k : 1;
    for (int64_t l = 0; l < lines; l++)
        for (int64_t i = 0; i < length; i += GROUP) {
            float part[GROUP];
            uint16_t *at = x + (outputs ? l + i * k : l * k + i);
            const int m = (int)NUM_MIN(length - i, (int64_t)GROUP);
            for (int j = 0; j < m; j++)
                part[j] = half_to_float(at[j * next]);
            round_group(part, m);
            for (int j = 0; j < m; j++)
                at[j * next] = half_from_float(part[j]);
        }
}

static bool round_tensor(FILE *f, const container_tensor *t, bool outputs) {
    uint16_t *x = malloc(t->bytes);
    const bool read = x && !fseek(f, (long)t->offset, SEEK_SET) && fread(x, 1, t->bytes, f) == t->bytes;
    if (read)
        round_matrix(x, t->shape[0], t->shape[1], outputs);
    const bool written =
        read && !fseek(f, (long)t->offset, SEEK_SET) && fwrite(x, 1, t->bytes, f) == t->bytes;
    free(x);
    return written;
}

static int round_weights(const char *axis, const char *path) {
    const logger silent = {0};
    container *c;
    nib_error err;
    int n = 0;
    bool fine = true;
    if (container_open(path, &silent, &c, &err))
        return fail(&err);
    FILE *f = fopen(path, "r+b");
    for (size_t i = 0; f && fine && i < container_n_tensor(c); i++) {
        const container_tensor *t = container_tensor_at(c, i);
        if (strncmp(t->name, "blk.", 4) != 0 || t->n_dim != 2 || t->type != TYPE_F16)
            continue;
        fine = round_tensor(f, t, !strcmp(axis, "outputs"));
        n++;
    }
    fine = f && fine && !fclose(f);
    container_close(c);
    printf("%d matrices rounded along the %s%s\n", n, axis, fine ? "" : ", and then an error");
    return fine ? 0 : 1;
}

/* ---- keys and values ---- */

static void (*store)(const kv_view *kv, bool is_value, int64_t position, const float *row);

static void store_rounded(const kv_view *kv, bool is_value, int64_t position, const float *row) {
    float rounded[1 << 14];
    const int64_t n = kv->n_kv_head * kv->d_head;
    if (n > (int64_t)NUM_COUNT(rounded))
        exit(fprintf(stderr, "bench_axes: rows of keys are too wide\n"));
    memcpy(rounded, row, (size_t)n * sizeof *row);
    for (int64_t i = 0; i < n; i += GROUP)
        round_group(rounded + i, (int)NUM_MIN(n - i, (int64_t)GROUP));
    store(kv, is_value, position, rounded);
}

/* The table is const to everyone else: there is one, of the instruction set that was chosen. */
static void round_cache(void) {
    kernel_table *t = (kernel_table *)(uintptr_t)kernels_table();
    store = t->kv_store;
    t->kv_store = store_rounded;
}

static char *read_text(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    enum { MAX_TEXT = 4 << 20 };
    char *text = malloc(MAX_TEXT);
    *n = f && text ? fread(text, 1, MAX_TEXT, f) : 0;
    if (f)
        fclose(f);
    return text;
}

static int evaluate(const char *model, const char *path, int n_chunk, const char *base) {
    enum { CHUNK = 1024, ROWS = 64 };
    nib_engine_options o;
    nib_engine *engine = NULL;
    nib_session *session = NULL;
    nib_perplexity p;
    nib_error err;
    int32_t *tokens = NULL;
    size_t n_byte, n;
    nib_engine_options_init(&o);
    o.n_ctx = CHUNK;
    o.kv_type = NIB_KV_F16;
    o.activation = 16;
    o.n_logits = ROWS;
    o.shortlist = NIB_SHORTLIST_OFF;
    char *text = read_text(path, &n_byte);
    const nib_perplexity_options how = {.n_ctx = CHUNK, .max_chunk = n_chunk, .kld_base = base};
    if (nib_engine_open(model, &o, &engine, &err) || nib_session_open(engine, NULL, &session, &err) ||
        nib_tokenize(engine, text, n_byte, NIB_TOKENIZE_BOS, &tokens, &n, &err) ||
        nib_session_perplexity(session, tokens, n, &how, &p, &err))
        return fail(&err);
    printf("perplexity %.4f", p.ppl);
    if (p.compared)
        printf(", KL %.6f +/- %.6f, same most probable token %.2f %%", p.kld, p.stderr_kld, 100 * p.same_top);
    printf(", %.0f s\n", p.seconds);
    nib_free(tokens);
    free(text);
    nib_session_close(session);
    nib_engine_close(engine);
    return 0;
}

/* ---- given vectors ---- */

/* Codes of a group of channels, byte i: channel i low, i + 32 high; then all scales, then all minima. */
static void encode(const float *x, int64_t rows, int64_t width, uint8_t *out) {
    const int64_t n = width / GROUP;
    uint8_t *scales = out + rows * n * BLOCK_BYTES, *lows = scales + rows * n * 2;
    for (int64_t i = 0; i < rows * n; i++) {
        const group g = make_group(x + i * GROUP, GROUP);
        for (int j = 0; j < BLOCK_BYTES; j++)
            out[i * BLOCK_BYTES + j] = (uint8_t)(g.codes[j] | g.codes[j + BLOCK_BYTES] << 4);
        memcpy(scales + i * 2, &g.scale, 2);
        memcpy(lows + i * 2, &g.low, 2);
    }
}

static int digit(char c) {
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

static bool is_hex(const uint8_t *x, size_t n, const char *hex) {
    bool same = hex && strlen(hex) == 2 * n;
    for (size_t i = 0; same && i < n; i++)
        same = x[i] == digit(hex[2 * i]) * 16 + digit(hex[2 * i + 1]);
    return same;
}

static int check_vector(const json_t *v) {
    enum { ROWS = 64, BYTES = ROWS * (BLOCK_BYTES + 4) };
    const char *hex = json_string_value(json_object_get(v, "x_f16")),
               *along_channels = json_string_value(json_object_get(v, "kv4h64")),
               *along_outputs = json_string_value(json_object_get(v, "w4o64"));
    float x[ROWS * GROUP];
    uint8_t codes[BYTES];
    if (!along_channels || !hex || strlen(hex) != ROWS * GROUP * 4)
        return 0;
    for (int i = 0; i < ROWS * GROUP; i++, hex += 4)
        x[i] = half_to_float(
            (uint16_t)((digit(hex[0]) * 16 + digit(hex[1])) | (digit(hex[2]) * 16 + digit(hex[3])) << 8));
    encode(x, ROWS, GROUP,
           codes); /* weights [outputs, inputs] are x's transpose, so their groups are these */
    if (!is_hex(codes, sizeof codes, along_channels) || !is_hex(codes, sizeof codes, along_outputs))
        return -1;
    return 1;
}

static int check(const char *path) {
    json_t *all = json_load_file(path, 0, NULL), *v;
    size_t i;
    int n = 0, bad = 0;
    json_array_foreach(json_object_get(all, "vectors"), i, v) {
        const int r = check_vector(v);
        n += r != 0;
        bad += r < 0;
    }
    json_decref(all);
    printf("%d vectors, %d differ\n", n, bad);
    return n > 0 && bad == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (argc == 3 && !strcmp(what, "check"))
        return check(argv[2]);
    if (argc == 4 && !strcmp(what, "weights"))
        return round_weights(argv[2], argv[3]);
    if (argc == 7 && !strcmp(what, "cache")) {
        if (!strcmp(argv[2], "channels"))
            round_cache();
        return evaluate(argv[3], argv[4], atoi(argv[5]), argv[6]);
    }
    fprintf(stderr, "bench_axes: see the top of bench/bench_axes.c\n");
    return 2;
}
