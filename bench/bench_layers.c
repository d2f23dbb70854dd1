/* bench_layers.c - perplexity with some layers changed: the effect of MCAP's threshold (paper 4.5) and of
 * leaving layers out (4.9), beside other orders of the layers.
 *
 *     build/bench/bench_layers MODEL TEXT CHUNKS PROFILE.json [COSTS.json]
 *
 * PROFILE and COSTS are the files that nibble profile MODEL --costs stores. Chunks of 512 tokens, the second
 * half scored, as nibble eval --ppl does. Each line is a measurement: its name, the number of changed layers,
 * perplexity. */
#include "base/file.h"
#include "base/mem.h"
#include "profile/importance.h"
#include "profile/quality.h"
#include "engine/engine.h"
#include "exec/step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512 };

typedef struct bench {
    nib_engine *e;
    kv_pool *pool;
    kv_table kv;
    int32_t *tokens; /* [n_chunk * CHUNK] */
    int n_chunk, n_layer, n_block;
    double nll;
    int64_t n;
    const int32_t *chunk;
    uint8_t *act_bits;
    bool *left_out;
} bench;

static void die(const char *what) {
    fprintf(stderr, "bench_layers: %s\n", what);
    exit(1);
}

static nib_status score(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                        nib_error *err) {
    bench *b = user;
    const int64_t n_vocab = nib_engine_info(b->e)->n_vocab;
    (void)segment_index;
    (void)err;
    for (int64_t r = 0; r < n_row && row + r + 1 < CHUNK; r++) {
        const float *l = logits + r * n_vocab;
        double max = (double)l[0], sum = 0;
        for (int64_t i = 1; i < n_vocab; i++)
            max = fmax(max, (double)l[i]);
        for (int64_t i = 0; i < n_vocab; i++)
            sum += exp((double)l[i] - max);
        b->nll += log(sum) + max - (double)l[b->chunk[row + r + 1]];
        b->n++;
    }
    return NIB_OK;
}

static double perplexity(bench *b) {
    const pass_change change = {.act_bits = b->act_bits, .left_out = b->left_out};
    nib_error err;
    b->nll = 0;
    b->n = 0;
    for (int c = 0; c < b->n_chunk; c++) {
        b->chunk = b->tokens + c * CHUNK;
        const segment all = {
            .kv = &b->kv, .tokens = b->chunk, .length = CHUNK, .n_row = CHUNK, .head_row = CHUNK / 2};
        const pass p = {.segments = &all,
                        .n_segment = 1,
                        .n_head = engine_parts_of(b->e).step->backend->rows.n_head,
                        .rows = score,
                        .user = b,
                        .change = &change};
        if (step_pass(engine_parts_of(b->e).step, &p, &err))
            die(err.message);
    }
    return exp(b->nll / (double)b->n);
}

static void open_all(bench *b, char **argv) {
    nib_engine_options o;
    nib_error err;
    char *text;
    int32_t *tokens;
    size_t n_byte, n;
    nib_engine_options_init(&o);
    o.n_ctx = o.n_batch = CHUNK;
    o.activation = 16;
    if (nib_engine_open(argv[1], &o, &b->e, &err) || file_read_all(argv[2], 64 << 20, &text, &n_byte, &err) ||
        nib_tokenize(b->e, text, n_byte, 0, &tokens, &n, &err))
        die(err.message);
    const engine_parts on = engine_parts_of(b->e);
    if (kv_pool_open(on.layout, kv_formats_all(TYPE_F32), true, false, device_host(), on.ledger, &b->pool,
                     &err) ||
        kv_table_open(&b->kv, b->pool, on.layout, device_host(), on.ledger, CHUNK, NULL, &err))
        die(err.message);
    mem_free(text);
    const bool bos = nib_engine_info(b->e)->add_bos;
    b->n_chunk = atoi(argv[3]);
    if (b->n_chunk < 1 || n < (size_t)b->n_chunk * CHUNK)
        die("the text has too few tokens");
    for (int c = 0; c < b->n_chunk && bos; c++)
        tokens[c * CHUNK] = nib_engine_info(b->e)->bos;
    b->tokens = tokens;
    b->n_layer = (int)nib_engine_info(b->e)->n_layer;
    b->n_block = model_n_block(on.m);
    b->act_bits = mem_calloc((size_t)b->n_block, 1);
    b->left_out = mem_calloc((size_t)b->n_block, sizeof *b->left_out);
    if (!b->act_bits || !b->left_out)
        die("out of memory");
}

/* Layers below each threshold have few bits. */
static void thresholds(bench *b, const double *layer_score, int bits) {
    static const double taus[] = {0, 0.05, 0.1, 0.2, 0.5, 0.7, 1.01};
    for (size_t t = 0; t < sizeof taus / sizeof *taus; t++) {
        int n = 0;
        for (int l = 0; l < b->n_layer; l++) {
            const bool low = layer_score[l] < taus[t];
            b->act_bits[l + 1] = low ? (uint8_t)bits : 0;
            n += low;
        }
        printf("a%d below tau %.2f\t%d\t%.4f\n", bits, taus[t], n, perplexity(b));
        fflush(stdout);
    }
    memset(b->act_bits, 0, (size_t)b->n_block);
}

/* All layers have few bits, except the first n of an order, which it protects. */
static void protecting(bench *b, const char *name, const double *layer_score, int bits) {
    int *order = mem_array((size_t)b->n_layer, sizeof *order);
    importance_rank(layer_score, b->n_layer, order);
    for (int n = 1; n <= 8; n *= 2) {
        for (int i = 0; i < b->n_layer; i++)
            b->act_bits[order[i] + 1] = i < n ? 0 : (uint8_t)bits;
        printf("a%d but the first by %s\t%d\t%.4f\n", bits, name, n, perplexity(b));
        fflush(stdout);
    }
    memset(b->act_bits, 0, (size_t)b->n_block);
    mem_free(order);
}

/* Without the n layers of the lowest score. */
static void without(bench *b, const char *name, const double *layer_score) {
    static const int counts[] = {1, 2, 3, 4, 6, 8, 12};
    int *order = mem_array((size_t)b->n_layer, sizeof *order);
    importance_rank(layer_score, b->n_layer, order);
    for (size_t c = 0; c < sizeof counts / sizeof *counts && counts[c] < b->n_layer; c++) {
        for (int i = 0; i < counts[c]; i++)
            b->left_out[order[b->n_layer - 1 - i] + 1] = true;
        printf("without, by %s\t%d\t%.4f\n", name, counts[c], perplexity(b));
        fflush(stdout);
        memset(b->left_out, 0, (size_t)b->n_block * sizeof *b->left_out);
    }
    mem_free(order);
}

int main(int argc, char **argv) {
    bench b = {0};
    importance p;
    quality q = {0};
    nib_error err;
    if (argc < 5)
        die("usage: bench_layers MODEL TEXT CHUNKS PROFILE.json [COSTS.json]");
    open_all(&b, argv);
    if (importance_load(argv[4], NULL, &p, &err) || (argc > 5 && quality_load(argv[5], NULL, &q, &err)))
        die(err.message);
    if (p.n_layer != b.n_layer || (argc > 5 && q.n_block != b.n_block))
        die("the profile is another model's");
    double *other = mem_array((size_t)b.n_layer, sizeof *other);
    thresholds(&b, p.score, 8);
    thresholds(&b, p.score, 4);
    protecting(&b, "mcap", p.score, 4);
    without(&b, "mcap", p.score);
    without(&b, "input norm", p.raw[IMPORTANCE_INPUT]);
    without(&b, "cosine", p.raw[IMPORTANCE_COSINE]);
    for (int l = 0; l < b.n_layer; l++)
        other[l] = l; /* late layers stay */
    protecting(&b, "last", other, 4);
    for (int l = 0; l < b.n_layer; l++)
        other[l] = b.n_layer - l;
    without(&b, "last goes first", other);
    for (int l = 0; l < b.n_layer; l++)
        other[l] = (l * 7 + 3) % 31; /* any order */
    protecting(&b, "chance", other, 4);
    without(&b, "chance", other);
    if (argc > 5) {
        without(&b, "measured KL", q.kl_left_out + 1);
        for (int l = 0; l < b.n_layer; l++)
            other[l] = q.kl_activation[2 * (l + 1) + 1];
        protecting(&b, "measured KL", other, 4);
    }
    return 0;
}
