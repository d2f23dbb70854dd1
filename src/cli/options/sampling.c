/* sampling.c - how tokens are drawn, from the options of the command line. */
#include "cli/cli.h"

#include "base/mem.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void set_dry(const cli_args *args, nib_sampling *sampling) {
    const cli_strings *breakers = &args->dry_sequence_breaker;
    sampling->dry_multiplier = (float)args->dry_multiplier;
    sampling->dry_base = (float)args->dry_base;
    sampling->dry_allowed_length = (int32_t)args->dry_allowed_length;
    sampling->dry_window = (int32_t)args->dry_penalty_last_n;
    sampling->dry_breakers = breakers->data;
    sampling->n_dry_breaker = breakers->n == 1 && !strcmp(breakers->data[0], "none") ? 0 : breakers->n;
}

/* The order in which the samplers run. */
static nib_status set_order(const cli_args *args, nib_sampling *sampling, nib_error *err) {
    char letters[2 * NIB_MAX_SAMPLERS + 3] = ""; /* one more than allowed, which is refused */
    const char *given = args->sampler_seq;
    for (size_t i = 0; given && given[i] && i <= NIB_MAX_SAMPLERS; i++)
        snprintf(letters + 2 * i, 3, "%c;", given[i]);
    if (!given && !args->samplers)
        return NIB_OK;
    return nib_sampling_order(sampling, given ? letters : args->samplers, err);
}

void cli_sampling(const cli_args *args, nib_sampling *sampling) {
    nib_sampling_init(sampling);
    sampling->temperature = (float)args->temp;
    sampling->top_k = (int32_t)args->top_k;
    sampling->top_p = (float)args->top_p;
    sampling->min_p = (float)args->min_p;
    sampling->repeat_penalty = (float)args->repeat_penalty;
    sampling->frequency_penalty = (float)args->frequency_penalty;
    sampling->presence_penalty = (float)args->presence_penalty;
    sampling->penalty_window = (int32_t)args->repeat_last_n;
    sampling->typical_p = (float)args->typical;
    sampling->top_n_sigma = (float)args->top_n_sigma;
    sampling->xtc_probability = (float)args->xtc_probability;
    sampling->xtc_threshold = (float)args->xtc_threshold;
    sampling->dynatemp_range = (float)args->dynatemp_range;
    sampling->dynatemp_exponent = (float)args->dynatemp_exp;
    sampling->mirostat = (int32_t)args->mirostat;
    sampling->mirostat_tau = (float)args->mirostat_ent;
    sampling->mirostat_eta = (float)args->mirostat_lr;
    set_dry(args, sampling);
    set_order(args, sampling, NULL);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    sampling->seed =
        args->seed >= 0 ? (uint64_t)args->seed : (uint64_t)now.tv_sec * 1000000007u + (uint64_t)now.tv_nsec;
}

int32_t cli_n_best(const cli_args *args, const nib_sampling *sampling) {
    nib_sampling own;
    if (args->logit_bias.n)
        return 0; /* a raised token may not be among the best */
    if (!sampling)
        cli_sampling(args, &own);
    return nib_sampling_n_best(sampling ? sampling : &own);
}

/* Reads "ID+X" or "ID-X", as llama.cpp spells a bias. */
static bool read_bias(const char *text, nib_logit_bias *out) {
    char *sign = NULL, *end;
    const long long token = isdigit((unsigned char)*text) ? strtoll(text, &sign, 10) : -1;
    if (token < 0 || token > INT32_MAX || (*sign != '+' && *sign != '-') ||
        !(isdigit((unsigned char)sign[1]) || sign[1] == '.' || !strcmp(sign, "-inf")))
        return false;
    *out = (nib_logit_bias){(int32_t)token, strtof(sign, &end)};
    return !*end && (isfinite(out->bias) || *sign == '-');
}

int cli_sampling_check(const cli_args *args, nib_logit_bias **bias) {
    nib_sampling sampling;
    nib_error err;
    const size_t n = args->logit_bias.n;
    nib_sampling_init(&sampling);
    if (args->samplers && args->sampler_seq)
        return cli_usage_error("--samplers and --sampler-seq: expected one of them");
    if (set_order(args, &sampling, &err))
        return cli_fail(&err);
    if (!n || !bias)
        return 0;
    if (!(*bias = mem_array(n, sizeof **bias)))
        return cli_no_memory();
    for (size_t i = 0; i < n; i++)
        if (!read_bias(args->logit_bias.data[i], &(*bias)[i]))
            return cli_usage_error("--logit-bias: expected a token's id and a number, as 198+1.5, 198-2 or "
                                   "198-inf (never), found '%s'",
                                   args->logit_bias.data[i]);
    return 0;
}
