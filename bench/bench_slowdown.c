/* bench_slowdown - checks the slowdown that the residual tuner promises. For each target it runs the tuner
 * (nib_residuals_tune), then generates tokens with its choice and without residuals in turns, token by token,
 * since the speed of a processor drifts by more than the smallest targets. The slowdown is the median of the
 * pairs' ratios. bench_slowdown BASE ORIGINAL [PERCENT...] (default: 2.5 5 10 20). For a quiet machine. */
#include "nib_tools.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "engine/engine.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    K_CHUNK = 128 /* channels of each 1,024 */,
    PAIRS = 300,
    PREFIX = 16,
    POSITIONS = PREFIX + 2 * PAIRS + 8
};

static void ok(nib_status status, const nib_error *err) {
    if (status == NIB_OK)
        return;
    printf("%s\n", err->message);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The choice that the tuner returned. */
static tune_choice choice_of(const char *text, double *said, char *names, size_t size) {
    tune_choice c = {{0}, {0}};
    json_t *of = json_loads(text, 0, NULL), *kind;
    size_t i, at = 0;
    *said = json_number_value(json_object_get(of, "slowdown"));
    names[0] = 0;
    json_array_foreach(json_object_get(of, "kinds"), i, kind) {
        c.k_chunk[i] = json_integer_value(json_object_get(kind, "k_chunk"));
        c.n_tb[i] = (int)NUM_MAX(json_integer_value(json_object_get(kind, "n_tb")), (json_int_t)1);
        at += (size_t)snprintf(names + at, size - at, "%s%s %d", i ? ", " : "",
                               json_string_value(json_object_get(kind, "products")), (int)c.k_chunk[i]);
        at = NUM_MIN(at, size - 1);
    }
    json_decref(of);
    return c;
}

/* Seconds of the next token with a choice. */
static double time_token(nib_engine *e, nib_session *s, const tune_choice *c, const int32_t *tokens,
                         size_t n) {
    nib_error err;
    engine_residuals_choose(e, c);
    const double start = time_now();
    ok(nib_session_sync(s, tokens, n, &err), &err);
    return time_now() - start;
}

static void measure(nib_engine *e, double target) {
    static int32_t tokens[POSITIONS];
    static double ratio[PAIRS], plain[PAIRS];
    const tune_choice none = {{0}, {0}};
    const nib_session_options how = {.n_ctx = POSITIONS};
    nib_session *s;
    nib_error err;
    char *text, names[256];
    double said;
    const double start = time_now();
    ok(nib_residuals_tune(e, target / 100, 0, &text, &err), &err);
    const double took = time_now() - start;
    const tune_choice chosen = choice_of(text, &said, names, sizeof names);
    mem_free(text);
    for (int i = 0; i < POSITIONS; i++)
        tokens[i] = (int32_t)((1 + 7919 * (int64_t)i) % nib_engine_info(e)->n_vocab);
    ok(nib_session_open(e, &how, &s, &err), &err);
    ok(nib_session_sync(s, tokens, PREFIX, &err), &err);
    for (int i = 0; i < PAIRS; i++) {
        double t[2]; /* without, with */
        for (int k = 0; k < 2; k++) {
            const int with = (i + k) % 2;
            t[with] = time_token(e, s, with ? &chosen : &none, tokens, (size_t)(PREFIX + 1 + 2 * i + k));
        }
        ratio[i] = t[1] / t[0];
        plain[i] = t[0];
    }
    nib_session_close(s);
    qsort(ratio, PAIRS, sizeof *ratio, by_value);
    qsort(plain, PAIRS, sizeof *plain, by_value);
    const double slower = 100 * (ratio[PAIRS / 2] - 1);
    printf("target %g %%: %s; by the tuner %.1f %% in %.1f s; measured %.1f %% (%d pairs, half of them from "
           "%.1f to %.1f %%; %.2f ms a token without): %s\n",
           target, names, 100 * said, took, slower, PAIRS, 100 * (ratio[PAIRS / 4] - 1),
           100 * (ratio[PAIRS * 3 / 4] - 1), 1e3 * plain[PAIRS / 2], slower <= target ? "kept" : "missed");
    fflush(stdout);
}

int main(int argc, char **argv) {
    static const char *const usual[] = {"2.5", "5", "10", "20"};
    nib_engine_options o;
    nib_engine *e;
    nib_error err;
    if (argc < 3) {
        printf("usage: bench_slowdown BASE ORIGINAL [PERCENT...]\n");
        return 1;
    }
    nib_engine_options_init(&o);
    o.residual = argv[2];
    o.k_chunk = K_CHUNK;
    o.activation = 16;
    o.n_ctx = POSITIONS;
    ok(nib_engine_open(argv[1], &o, &e, &err), &err);
    const int n = argc > 3 ? argc - 3 : (int)NUM_COUNT(usual);
    for (int i = 0; i < n; i++)
        measure(e, strtod(argc > 3 ? argv[3 + i] : usual[i], NULL));
    nib_engine_close(e);
    return 0;
}
