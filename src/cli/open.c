/* open.c - opens an engine, and reads a text or token ids, as the arguments say. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/options/residuals.h"
#include "nib_tools.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { PLAN_MAX_BYTES = 8 << 20 };

static bool asks_for_gpu(const cli_args *args) {
    return args->gpu_layers && strcmp(args->gpu_layers, "0") != 0;
}

/* Reads --gpu-layers. 0: as many as fit, also for other words, which other programs accept. */
static int32_t gpu_layers(const cli_args *args) {
    char *end = NULL;
    const long n = args->gpu_layers ? strtol(args->gpu_layers, &end, 10) : 0;
    return n > 0 && !*end ? (int32_t)NUM_MIN(n, INT32_MAX) : 0;
}

void cli_engine_options(const cli_args *args, nib_engine_options *options) {
    nib_engine_options_init(options);
    options->ram = args->ram;
    options->vram = args->vram;
    options->disk = args->disk;
    options->scratch = args->scratch;
    options->n_thread = (int)args->threads;
    options->n_ctx = args->ctx_size == CLI_CTX_UNSET ? 0
                     : args->ctx_size == 0           ? NIB_CTX_WHOLE
                                                     : args->ctx_size;
    options->n_batch = args->batch_size;
    options->stream = !args->no_stream;
    options->learn = !args->no_learn;
    options->kernels = args->kernel_map;
    options->backend = args->backend ? args->backend : asks_for_gpu(args) ? "auto" : NULL;
    options->devices = args->devices;
    options->hosts = args->hosts;
    options->launcher = args->launcher;
    options->program = "/proc/self/exe";
    options->gpu_layers = gpu_layers(args);
    options->cpu_experts = (int32_t)args->cpu_experts;
    cli_residual_options(args, options);
    options->no_fuse = args->no_fuse;
    options->sparse_v = (float)args->sparse_v / 100;
    options->sparse_v_raw = args->sparse_v_raw;
    options->bf16_tiles = args->bf16_tiles;
    options->progress = cli_progress;
    options->log = cli_log;
    options->log_details = args->verbose;
    options->cancel = cli_cancel;
    options->user = (void *)args;
}

static int kv_type(const char *name) {
    static const char *const names[] = {
        [NIB_KV_F16] = "f16", [NIB_KV_F32] = "f32", [NIB_KV_8] = "kv8",  [NIB_KV_4] = "kv4",
        [NIB_KV_8H] = "kv8h", [NIB_KV_4H] = "kv4h", [NIB_KV_4S] = "kv4s"};
    for (int i = NIB_KV_F16; i <= NIB_KV_4S; i++)
        if (!strcasecmp(name, names[i]))
            return i;
    return strcasecmp(name, "auto") ? 0 : NIB_KV_AUTO;
}

/* "kv4", "kv4,0-3=f16", "0-3=f16": the engine reads the part with layers. */
static bool kv_formats(const char *text, nib_engine_options *out) {
    char name[8];
    const size_t n = strcspn(text, ",=");
    if (text[n] != '=') {
        snprintf(name, sizeof name, "%.*s", (int)NUM_MIN(n, sizeof name), text);
        if ((out->kv_type = kv_type(name)) == 0 || (text[n] && !text[n + 1]))
            return false;
        text += n + (text[n] == ',');
    }
    out->kv_layers = *text ? text : NULL;
    return true;
}

static int activation_bits(const char *name) {
    static const struct {
        const char *name;
        int bits;
    } known[] = {{"a4", 4}, {"a8", 8}, {"a16", 16}, {"ax", NIB_ACT_AX}, {"auto", 0}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcasecmp(name, known[i].name))
            return known[i].bits;
    return -1;
}

/* Also llama.cpp's other words: "row" shares matrices too, and without --devices there is one place ("none").
 */
static int split_mode(const char *name) {
    if (!strcasecmp(name, "tensor") || !strcasecmp(name, "row"))
        return NIB_SPLIT_TENSOR;
    return strcasecmp(name, "layer") && strcasecmp(name, "none") ? -1 : NIB_SPLIT_LAYER;
}

int cli_named_options(const cli_args *args, nib_engine_options *options) {
    if (args->activation && (options->activation = activation_bits(args->activation)) < 0)
        return cli_usage_error("--activation: expected auto, a16, a8, a4 or ax, found '%s'",
                               args->activation);
    if (args->kv && !kv_formats(args->kv, options))
        return cli_usage_error("--kv: expected auto, f16, f32, kv8, kv4, kv8h, kv4h or kv4s, found '%s'",
                               args->kv);
    if (args->split_mode && (options->split = split_mode(args->split_mode)) < 0)
        return cli_usage_error("--split-mode: expected layer or tensor, found '%s'", args->split_mode);
    static const char *const when[] = {"auto", "on", "off"}; /* nib_shortlist */
    for (size_t i = 0; args->shortlist && i < sizeof when / sizeof *when; i++)
        if (!strcmp(args->shortlist, when[i]))
            options->shortlist = (int)i;
    if (args->shortlist && strcmp(args->shortlist, when[options->shortlist]))
        return cli_usage_error("--shortlist: expected on, off or auto, found '%s'", args->shortlist);
    if (args->packed_cache && !strcmp(args->packed_cache, "on"))
        options->packed = NIB_PACKED_ON;
    else if (args->packed_cache && !strcmp(args->packed_cache, "off"))
        options->packed = NIB_PACKED_OFF;
    else if (args->packed_cache && strcmp(args->packed_cache, "auto"))
        return cli_usage_error("--packed-cache: expected on, off or auto, found '%s'", args->packed_cache);
    return 0;
}

int cli_parallel(const cli_args *args, int usual, int *out) {
    enum { MAX = 4096 };
    const char *text = args->parallel;
    char *end;
    const long n = text ? strtol(text, &end, 10) : usual;
    if (text && (end == text || *end || n < 1 || n > MAX))
        return cli_usage_error("--parallel: expected a whole number from 1 to %d, found '%s'", MAX, text);
    *out = (int)n;
    return 0;
}

int cli_plan_options(const cli_args *args, nib_plan_options *how) {
    *how = (nib_plan_options){.quality = args->quality, .speed = args->speed};
    if (args->mode && (args->mode[0] < 'a' || args->mode[0] > 'c' || args->mode[1]))
        return cli_usage_error("--mode: expected a, b or c, found '%s'", args->mode);
    how->mode = args->mode ? args->mode[0] : 0;
    return 0;
}

/* Reads a plan's file. A missing file is a usage error, not a damaged model. */
static nib_status read_plan(const char *path, char **text, nib_error *err) {
    size_t n_byte;
    const nib_status status = file_read_all(path, PLAN_MAX_BYTES, text, &n_byte, err);
    if (status != NIB_E_NOTFOUND)
        return status;
    return nib_fail(err, NIB_E_USAGE, "--plan: no such file: %s", path);
}

int cli_plan_cap(const char *path, uint64_t *ram) {
    nib_error err;
    char *text = NULL;
    if (read_plan(path, &text, &err))
        return cli_fail(&err);
    json_t *plan = NULL;
    const nib_status status = jsonx_parse(text, strlen(text), &plan, &err);
    mem_free(text);
    if (status == NIB_E_NOMEM)
        return cli_fail(&err);
    const json_t *cap = json_object_get(json_object_get(plan, "budget"), "ram");
    if (json_is_integer(cap) && json_integer_value(cap) > 0)
        *ram = (uint64_t)json_integer_value(cap);
    json_decref(plan); /* NULL: the engine says what is wrong with it */
    return 0;
}

/* Opens the engine by --plan, by a plan made for --quality, --speed or --mode, or without a plan. */
static int open_by_plan(cli_args *args, nib_engine_options *options, nib_engine **out) {
    nib_error err;
    nib_plan_options how;
    char *text = NULL;
    int code = cli_plan_options(args, &how);
    if (code)
        return code;
    const bool targets = args->quality || args->speed > 0 || args->mode;
    if (args->plan && targets)
        return cli_usage_error("--plan cannot be combined with --quality, --speed or --mode");
    if (args->plan && read_plan(args->plan, &text, &err))
        return cli_fail(&err);
    options->plan = text;
    options->plan_name = args->plan;
    options->planning = targets ? &how : NULL;
    nib_status status = nib_engine_open(args->model, options, out, &err);
    options->plan = NULL;
    options->planning = NULL;
    mem_free(text);
    return status ? cli_fail(&err) : 0;
}

int cli_open_engine(cli_args *args, nib_engine_options *options, nib_engine **out) {
    nib_plan_options how;
    int code = cli_check_residuals(args);
    if (!code)
        code = cli_named_options(args, options);
    if (!code)
        code = cli_plan_options(args, &how);
    if (!code && !args->plan)
        code = cli_idle_residuals(args, args->model, options, &how);
    if (!code)
        code = open_by_plan(args, options, out);
    if (!code && args->slowdown > 0)
        code = cli_tune_residuals(args, *out, args->verbose ? CLI_SCORING_S : 0, NULL);
    return code;
}

typedef struct text_limit {
    size_t max; /* bytes */
    int64_t n_ctx;
} text_limit;

/* Limits a text's length. Texts have 3 to 5 bytes a token. While a text is read and tokenized, the KV cache
 * is reserved but not yet resident, and its memory for each position is many times that of the text. */
static text_limit limit_of(const nib_engine *engine) {
    enum { MIN = 64 << 10, EACH = 64 };
    nib_memory now;
    if (!engine)
        return (text_limit){SIZE_MAX, 0};
    nib_engine_memory(engine, &now);
    const int64_t n_ctx = nib_engine_info(engine)->n_ctx;
    const size_t max = NUM_MAX((size_t)n_ctx * EACH, (size_t)MIN);
    return (text_limit){now.tier[NIB_TIER_RAM].cap == NIB_AUTO ? SIZE_MAX : max, n_ctx};
}

static int too_long(const char *name, const text_limit *limit) {
    char size[32];
    return cli_usage_error("%s: a text of more than %s is too long for the context of %lld (-c)", name,
                           num_format_size(limit->max, size), (long long)limit->n_ctx);
}

static int read_stream(int in, const char *name, const text_limit *limit, char **text, size_t *n_byte) {
    size_t n = 0, cap = 1 << 16;
    char *data = malloc(cap + 1);
    ssize_t got = 1;
    while (data && got > 0 && cli_wait_input(in, -1)) {
        got = read(in, data + n, cap - n);
        n += got > 0 ? (size_t)got : 0;
        if (n > limit->max) {
            free(data);
            return too_long(name, limit);
        }
        if (n < cap)
            continue;
        char *grown = realloc(data, (cap *= 2) + 1);
        if (!grown)
            free(data);
        data = grown;
    }
    if (!data)
        return cli_no_memory();
    if (cli_interrupted()) {
        free(data);
        return nib_status_exit_code(NIB_E_CANCELLED);
    }
    if (got < 0) {
        free(data);
        nib_error err = {NIB_E_IO, ""};
        snprintf(err.message, sizeof err.message, "cannot read %s: %s", name, strerror(errno));
        return cli_fail(&err);
    }
    data[n] = 0;
    *text = data;
    *n_byte = n;
    return 0;
}

/* The text of -p or of an argument; NULL: none. */
static const char *text_argument(const cli_args *args, size_t first_rest) {
    return args->prompt ? args->prompt : args->rest.n > first_rest ? args->rest.data[first_rest] : NULL;
}

int cli_check_text(const cli_args *args, size_t first_rest) {
    const char *given = text_argument(args, first_rest);
    const bool two = args->prompt && args->rest.n > first_rest;
    if (two || (given && args->file))
        return cli_usage_error("the text is given twice: '%s' and '%s'", given,
                               args->file ? args->file : args->rest.data[first_rest]);
    if (!given && (!args->file || !strcmp(args->file, "-")) && cli_stdin_closed())
        return cli_usage_error("stdin is closed: give the text as an argument, or -f FILE");
    return 0;
}

int cli_read_text(const cli_args *args, const nib_engine *engine, size_t first_rest, char **text,
                  size_t *n_byte) {
    const text_limit limit = limit_of(engine);
    const char *given = text_argument(args, first_rest);
    const int code = cli_check_text(args, first_rest);
    if (code)
        return code;
    if (given) {
        *n_byte = strlen(given);
        *text = strdup(given);
        return *text ? 0 : cli_no_memory();
    }
    if (!args->file && isatty(STDIN_FILENO))
        cli_note(args, "nibble: type the text; Ctrl-D at the beginning of a line ends it");
    if (!args->file || !strcmp(args->file, "-"))
        return read_stream(STDIN_FILENO, "stdin", &limit, text, n_byte);
    const int in = open(args->file, O_RDONLY | O_CLOEXEC);
    if (in < 0) {
        nib_error err = {NIB_E_USAGE, ""};
        snprintf(err.message, sizeof err.message, "cannot open %s: %s", args->file, strerror(errno));
        return cli_fail(&err);
    }
    const int done = read_stream(in, args->file, &limit, text, n_byte);
    close(in);
    return done;
}

int cli_parse_tokens(const char *list, int32_t **tokens, size_t *n_token) {
    size_t n = 0;
    int32_t *ids = malloc((strlen(list) / 2 + 1) * sizeof *ids);
    if (!ids)
        return cli_no_memory();
    for (const char *c = list; *c;) {
        if (strchr(", \t\n[]", *c)) {
            c++;
            continue;
        }
        char *end;
        errno = 0;
        long id = strtol(c, &end, 10);
        if (end == c || errno || id < 0 || id > INT32_MAX) {
            free(ids);
            return cli_usage_error("expected token ids such as 1,2,3, found '%.20s'", c);
        }
        ids[n++] = (int32_t)id;
        c = end;
    }
    if (n == 0) {
        free(ids);
        return cli_usage_error("expected token ids such as 1,2,3, found none");
    }
    *tokens = ids;
    *n_token = n;
    return 0;
}
