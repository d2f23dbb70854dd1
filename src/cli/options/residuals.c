/* residuals.c - see residuals.h: --residual, --k-chunk, --slowdown and others. */
#include "cli/options/residuals.h"

#include "base/mem.h"
#include "base/num.h"
#include "cli/fields.h"
#include "nib_tools.h"

#include <string.h>

enum {
    USUAL_CHANNELS = 8, /* of each 1,024: --k-chunk's default */
    MAX_TUNED = 128,    /* the largest --k-chunk that --slowdown chooses */
    IDLE_SLOWDOWN = 5   /* percent that --quality high allows where memory and link are idle */
};

void cli_residual_options(const cli_args *args, nib_engine_options *options) {
    options->residual = args->residual;
    options->residual_rule = args->residual_rule;
    options->residual_bits = (int32_t)args->residual_bits;
    options->k_chunk = (int32_t)(args->k_chunk == CLI_K_CHUNK_UNSET ? USUAL_CHANNELS : args->k_chunk);
    if (args->slowdown > 0)
        options->k_chunk = NUM_MAX(options->k_chunk, (int32_t)MAX_TUNED);
}

int cli_check_residuals(const cli_args *args) {
    if (args->residual || (args->slowdown <= 0 && args->k_chunk <= 0))
        return 0;
    return cli_usage_error("%s needs --residual ORIGINAL: the model whose weights were rounded",
                           args->slowdown > 0 ? "--slowdown" : "--k-chunk");
}

int cli_idle_residuals(cli_args *args, const char *model, nib_engine_options *options,
                       const nib_plan_options *how) {
    nib_error err;
    nib_residuals_worth worth;
    if (!args->residual || !args->quality || strcmp(args->quality, "high") != 0 || args->slowdown > 0 ||
        args->k_chunk != CLI_K_CHUNK_UNSET)
        return 0;
    options->k_chunk = MAX_TUNED;
    if (nib_residuals_fit(model, options, how, &worth, &err))
        return cli_fail(&err);
    if (worth == NIB_RESIDUALS_FIT) {
        args->slowdown = IDLE_SLOWDOWN;
        return 0;
    }
    if (worth == NIB_RESIDUALS_MORE_BITS)
        cli_note(args, "nibble: no residuals: %s fits in the same RAM and loses less (--quality high)",
                 args->residual);
    else
        cli_note(args, "nibble: no residuals: RAM cannot hold them beside all weights");
    args->residual = options->residual = NULL;
    return 0;
}

/* ---- --slowdown ---- */

/* "q+k+v 3, o 0, gate+up 4, down 4" */
static void channels_text(const json_t *kinds, char *out, size_t size) {
    const json_t *one;
    size_t i, at = 0;
    *out = 0;
    json_array_foreach(kinds, i, one) if (at < size) at +=
        (size_t)snprintf(out + at, size - at, "%s%s %lld", i ? ", " : "", field_text(one, "products"),
                         field_int(one, "k_chunk"));
}

void cli_residual_step(const json_t *step, char *out, size_t size) {
    char channels[256], read[32], ppl[32] = "-";
    if (!step) {
        snprintf(out, size, "%9s %10s %12s  %s", "slower, %", "read", "perplexity", "channels of each 1,024");
        return;
    }
    if (json_object_get(step, "perplexity"))
        snprintf(ppl, sizeof ppl, "%s", num_text(field_real(step, "perplexity"), 4));
    channels_text(json_object_get(step, "kinds"), channels, sizeof channels);
    num_format_size(field_bytes(step, "read"), read);
    snprintf(out, size, "%9.1f %10s %12s  %s", 100 * field_real(step, "slowdown"), read, ppl, channels);
}

static void note_steps(const cli_args *args, const json_t *found) {
    char line[384];
    const json_t *step;
    size_t i;
    cli_residual_step(NULL, line, sizeof line);
    cli_note(args, "%s", line);
    json_array_foreach(json_object_get(found, "steps"), i, step) {
        cli_residual_step(step, line, sizeof line);
        cli_note(args, "%s", line);
    }
}

int cli_tune_residuals(const cli_args *args, nib_engine *engine, double max_s, char **json) {
    char channels[256], gain[96] = "", *text;
    nib_error err;
    json_t *found;
    if (nib_residuals_tune(engine, args->slowdown / 100, max_s, &text, &err))
        return cli_fail(&err);
    char *kept = json ? mem_strdup(text) : NULL;
    const int code = cli_document(text, &found);
    if (json)
        *json = kept;
    if (code)
        return code;
    if (args->verbose && !json)
        note_steps(args, found);
    if (json_object_get(found, "perplexity")) {
        const size_t n = (size_t)snprintf(gain, sizeof gain, "; perplexity of nibble's prompts %s",
                                          num_text(field_real(found, "perplexity"), 4));
        snprintf(gain + n, sizeof gain - n, ", without %s",
                 num_text(field_real(found, "perplexity_without"), 4));
    }
    channels_text(json_object_get(found, "kinds"), channels, sizeof channels);
    cli_note(args, "residuals: %s channels of each 1,024, %s %% slower%s", channels,
             num_text(100 * field_real(found, "slowdown"), 3), gain);
    json_decref(found);
    return 0;
}
