/* bench_residual - QDEC's kernel on a GPU: the rate of its fetches alone and beside products, the time that
 * it adds to the products of llama-3-8b in 3 bits (one row, one graph), and the tuner's choice on these.
 * tests/test_kernels_cuda_residual.c tests its bits. bench_residual [rate | chain | tune | orders | knee |
 * tune-slow[=3 | =7]] ... (default: the first three)
 *
 * knee and tune-slow emulate GPUs with other ratios of memory to link. A slower link: every fetch has `link`
 * times as many channels and bytes, which count once. A slower memory: every product is computed `memory`
 * times, with weights of other layers, which the cache does not hold. Launches, the choice of channels and
 * barriers have the speed of this GPU. */
#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "kernels/cuda/residual_first.h"
#include "kernels/cuda_load.h"
#include "kernels/kernels.h"
#include "kernels/salient.h"
#include "plan/tune.h"
#include "numbers/pack.h"
#include "numbers/residual.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cuda_kernels *cuda;
static cuda_stream stream, side;
static cuda_event before, after, fork_event, join_event;

static void ok(int error, const char *what) {
    if (!error)
        return;
    printf("%s: %s\n", what, cuda->error_text(error));
    exit(1);
}
#define OK(call) ok(call, #call)

static void *device_new(size_t bytes) {
    void *p = NULL;
    OK(cuda->alloc(&p, bytes + 256));
    OK(cuda->fill(p, 0, bytes, stream));
    OK(cuda->stream_sync(stream));
    return p;
}

static uint64_t random_bits(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static float random_value(uint64_t *s) {
    const float a = (float)(random_bits(s) >> 40) / (1 << 23) - 1,
                b = (float)(random_bits(s) >> 40) / (1 << 23) - 1;
    return a * b * b;
}

/* ---- matrices ---- */

enum { MAX_MATRIX = 3, N_LAYER = 32, N_GROUP = 4 };

/* Products of one input: residuals in host memory, weights in the device's. */
typedef struct group {
    const char *name;
    int n_w;
    int64_t n[MAX_MATRIX], k;
    bool gated;
    residual host[MAX_MATRIX];
    uint8_t *memory; /* of the residuals, mapped */
    size_t n_byte;
    ptrdiff_t to_device; /* offset from a host address in it to the device's */
    view w[MAX_MATRIX];
    uint64_t weight_bytes;
} group;

static const group shapes[N_GROUP] = {
    {.name = "qkv", .n_w = 3, .n = {4096, 1024, 1024}, .k = 4096},
    {.name = "o", .n_w = 1, .n = {4096}, .k = 4096},
    {.name = "gate+up", .n_w = 2, .n = {14336, 14336}, .k = 4096, .gated = true},
    {.name = "down", .n_w = 1, .n = {4096}, .k = 14336}};

static group group_open(const group *shape, const char *format, uint64_t seed) {
    group g = *shape;
    void *device = NULL;
    for (int i = 0; i < g.n_w; i++) {
        uint64_t bytes = 0;
        residual_bytes(4, g.n[i], g.k, &bytes);
        g.n_byte += bytes;
    }
    g.n_byte = (g.n_byte + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1);
    g.memory = aligned_alloc(2 << 20, g.n_byte);
    if (!g.memory)
        ok(2, "host memory");
    memset(g.memory, (int)(0x50 + seed % 100), g.n_byte);
    uint8_t *at = g.memory;
    for (int i = 0; i < g.n_w; i++) {
        uint64_t bytes = 0;
        residual_bytes(4, g.n[i], g.k, &bytes);
        g.host[i] = residual_in(at, 4, g.n[i], g.k);
        for (int64_t o = 0; o < g.n[i]; o++)
            g.host[i].scale[o] = 0.001f + 1e-6f * (float)(o % 100);
        at += bytes;
    }
    OK(cuda->map(g.memory, g.n_byte, &device));
    g.to_device = (uint8_t *)device - g.memory;
    for (int i = 0; i < g.n_w && format; i++) {
        uint64_t size = 0;
        g.w[i] = (view){.n = g.n[i], .k = g.k};
        if (!pack_from_name(format, g.k, &g.w[i].format) || !pack_bytes(&g.w[i].format, g.n[i], g.k, &size))
            ok(1, format);
        g.w[i].data = device_new(size);
        g.weight_bytes += size;
        OK(cuda->random_matrix(&g.w[i], 1.0f / (4.6f * 64), seed * 31 + (uint64_t)i, stream));
    }
    return g;
}

static void group_close(group *g) {
    for (int i = 0; i < g->n_w; i++)
        if (g->w[i].data)
            OK(cuda->release((void *)(uintptr_t)g->w[i].data));
    OK(cuda->unpin(g->memory));
    free(g->memory);
}

static int64_t outputs(const group *g) {
    return g->n[0] + g->n[1] + g->n[2];
}

static cuda_residual ask(const group *g, const float *x, int64_t k_chunk, int n_tb, float *part,
                         void *scratch) {
    cuda_residual a = {.n_w = g->n_w,
                       .n_row = 1,
                       .x = x,
                       .ldx = g->k,
                       .k = g->k,
                       .k_chunk = k_chunk,
                       .n_tb = n_tb,
                       .part = part,
                       .ldp = outputs(g),
                       .scratch = scratch};
    for (int i = 0; i < g->n_w; i++) {
        a.rows[i] = g->host[i].rows + g->to_device;
        a.scale[i] = (const float *)(const void *)((const uint8_t *)g->host[i].scale + g->to_device);
        a.n[i] = g->n[i];
        a.step[i] = g->host[i].step;
    }
    return a;
}

/* Bytes that it fetches: codes of the channels, and the scales. */
static double fetched(const group *g, int64_t k_chunk) {
    double bytes = 0;
    for (int i = 0; i < g->n_w; i++)
        bytes += (double)salient_count(g->k, k_chunk) * (double)g->host[i].step + (double)g->n[i] * 4;
    return bytes;
}

/* ---- rates ---- */

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double median(float *ms, int n) {
    qsort(ms, (size_t)n, sizeof *ms, by_size);
    return (double)ms[n / 2] / 1000;
}

static float *random_row(int64_t k, uint64_t seed) {
    float *x = malloc((size_t)k * 4), *d = device_new((size_t)k * 4);
    for (int64_t i = 0; i < k; i++)
        x[i] = random_value(&seed);
    OK(cuda->to_device(d, x, (size_t)k * 4, stream));
    OK(cuda->stream_sync(stream));
    free(x);
    return d;
}

static void multiply(const group *g, const float *x, float *y, bool adds, bool gated, void *linear_scratch,
                     cuda_stream on) {
    cuda_linear a = {.n_w = g->n_w,
                     .n_row = 1,
                     .x = x,
                     .ldx = g->k,
                     .adds = adds,
                     .gated = gated,
                     .scratch = linear_scratch};
    for (int i = 0; i < g->n_w; i++) {
        a.w[i] = g->w[i];
        a.y[i] = y + (i > 0 ? g->n[0] : 0) + (i > 1 ? g->n[1] : 0);
        a.ldy[i] = g->n[i];
    }
    OK(cuda->linear(&a, on));
}

/* A graph of enough products to run beside all fetches of a sample. */
static cuda_graph background(const group *g, const float *x, float *y, void *linear_scratch, int n) {
    cuda_graph made = NULL;
    OK(cuda->graph_begin(stream));
    for (int i = 0; i < n; i++)
        multiply(g, x, y, false, false, linear_scratch, stream);
    OK(cuda->graph_end(stream, &made));
    return made;
}

/* Seconds of one fetch among several, one after the other. products: a graph that runs meanwhile; NULL: none.
 */
static double fetch_seconds(const cuda_residual *a, cuda_graph products) {
    enum { TIMES = 5, EACH = 8 };
    float ms[TIMES];
    for (int t = 0; t < TIMES; t++) {
        if (products)
            OK(cuda->graph_launch(products, stream));
        OK(cuda->event_record(before, side));
        for (int e = 0; e < EACH; e++)
            OK(cuda->residual(a, side));
        OK(cuda->event_record(after, side));
        OK(cuda->stream_sync(side));
        OK(cuda->event_ms(&ms[t], before, after));
        OK(cuda->stream_sync(stream));
    }
    return median(ms, TIMES) / EACH;
}

static double zero_copy_rate(void) {
    const size_t bytes = (size_t)1 << 30;
    float ms[5];
    void *host = aligned_alloc(2 << 20, bytes), *data = NULL;
    unsigned *sink = device_new(4);
    memset(host, 0x5a, bytes);
    OK(cuda->map(host, bytes, &data));
    for (int t = 0; t < 5; t++) {
        OK(cuda->event_record(before, stream));
        OK(cuda->read_all(data, bytes, sink, stream));
        OK(cuda->event_record(after, stream));
        OK(cuda->stream_sync(stream));
        OK(cuda->event_ms(&ms[t], before, after));
    }
    OK(cuda->unpin(host));
    free(host);
    OK(cuda->release(sink));
    return (double)bytes / median(ms, 5);
}

static void measure_rates(void) {
    static const int blocks[] = {8, 16, 24, 32, 66};
    static const int64_t chunks[] = {8, 64, 128, 256};
    double beside_before[NUM_COUNT(blocks)], bytes_before = 0;
    const double max_rate = zero_copy_rate();
    printf("zero-copy, a kernel that only reads 1 GiB: %.1f GB/s\n", max_rate / 1e9);
    void *linear_scratch = device_new(cuda->linear_scratch(1, 14336, true));
    for (int s = 0; s < N_GROUP; s++) {
        group g = group_open(&shapes[s], "u3g64", (uint64_t)s + 3);
        float *x = random_row(g.k, 7), *part = device_new((size_t)outputs(&g) * 4),
              *y = device_new((size_t)outputs(&g) * 4);
        void *scratch = device_new(cuda->residual_scratch(1, g.k, 256));
        cuda_graph products = background(&g, x, y, linear_scratch, 1000);
        for (size_t c = 0; c < NUM_COUNT(chunks); c++) {
            printf("%s, k_chunk %d, %.2f MB a fetch; blocks: GB/s alone, beside products (its share of "
                   "zero-copy, "
                   "that of the added bytes):",
                   g.name, (int)chunks[c], fetched(&g, chunks[c]) / 1e6);
            for (size_t b = 0; b < NUM_COUNT(blocks); b++) {
                const cuda_residual a = ask(&g, x, chunks[c], blocks[b], part, scratch);
                const double alone = fetch_seconds(&a, NULL), beside = fetch_seconds(&a, products);
                const double bytes = fetched(&g, chunks[c]);
                printf("  %d: %.1f %.1f (%.2f", blocks[b], bytes / alone / 1e9, bytes / beside / 1e9,
                       bytes / beside / max_rate);
                if (c > 0) /* of the bytes that this line has more than the line before: without the cost of a
                              launch */
                    printf(" %.2f", (bytes - bytes_before) / (beside - beside_before[b]) / max_rate);
                printf(")");
                beside_before[b] = beside;
            }
            bytes_before = fetched(&g, chunks[c]);
            printf("\n");
            fflush(stdout);
        }
        OK(cuda->graph_free(products));
        OK(cuda->release(x));
        OK(cuda->release(part));
        OK(cuda->release(y));
        OK(cuda->release(scratch));
        group_close(&g);
    }
    OK(cuda->release(linear_scratch));
}

/* ---- all products of a token ---- */

typedef struct chain {
    group groups[N_LAYER][N_GROUP];
    float *x[N_GROUP], *y, *part;
    void *linear_scratch, *scratch;
} chain;

static struct { int link, memory; /* times as slow */ } emulated = {1, 1};

/* Its products, `memory` times: all but the first are of other layers. */
static void multiply_slowly(const chain *c, int l, int s, bool adds, bool gated, cuda_stream on) {
    for (int i = 0; i < emulated.memory; i++)
        multiply(&c->groups[(l + i * N_LAYER / emulated.memory) % N_LAYER][s], c->x[s], c->y, adds, gated,
                 c->linear_scratch, on);
}

static enum {
    BY_RULE,
    PRODUCT_FIRST,
    FETCH_FIRST
} order; /* whether the products or the fetch are in the first stream */

/* A fetch, its products and the addition, as in exec/cuda/residual.c. */
static void fetch_and_multiply(const chain *c, int l, int s, const cuda_residual *a,
                               const cuda_residual_add *add) {
    const bool first = order == BY_RULE ? cuda_residual_first(a) : order == FETCH_FIRST;
    OK(cuda->event_record(fork_event, stream));
    OK(cuda->stream_wait(side, fork_event));
    OK(cuda->residual(a, first ? stream : side));
    multiply_slowly(c, l, s, a->n_w == 1, false, first ? side : stream);
    OK(cuda->event_record(join_event, side));
    OK(cuda->stream_wait(stream, join_event));
    OK(cuda->residual_add(add, stream));
}

/* k_chunk[i] 0: the product alone, as without residuals; negative: no product either. */
static double chain_seconds(const chain *c, const int64_t *k_chunk, const int *n_tb) {
    enum { TIMES = 9 };
    float ms[TIMES];
    cuda_graph g = NULL;
    OK(cuda->graph_begin(stream));
    for (int l = 0; l < N_LAYER; l++)
        for (int s = 0; s < N_GROUP; s++) {
            const group *p = &c->groups[l][s];
            if (k_chunk[s] < 0)
                continue;
            if (k_chunk[s] == 0) {
                multiply_slowly(c, l, s, p->n_w == 1, p->gated, stream);
                continue;
            }
            const cuda_residual a = ask(p, c->x[s], k_chunk[s] * emulated.link, n_tb[s], c->part, c->scratch);
            cuda_residual_add add = {.part = c->part,
                                     .ldp = outputs(p),
                                     .n_w = p->n_w,
                                     .n_row = 1,
                                     .gated = p->gated,
                                     .out = c->y,
                                     .ldo = outputs(p)};
            for (int i = 0; i < p->n_w; i++) {
                add.y[i] = c->y + (i > 0 ? p->n[0] : 0) + (i > 1 ? p->n[1] : 0);
                add.n[i] = add.ldy[i] = p->n[i];
            }
            fetch_and_multiply(c, l, s, &a, &add);
        }
    OK(cuda->graph_end(stream, &g));
    for (int t = -2; t < TIMES; t++) {
        OK(cuda->event_record(before, stream));
        OK(cuda->graph_launch(g, stream));
        OK(cuda->event_record(after, stream));
        OK(cuda->stream_sync(stream));
        OK(cuda->event_ms(&ms[t < 0 ? 0 : t], before, after));
    }
    OK(cuda->graph_free(g));
    return median(ms, TIMES);
}

static chain all_layers;

static uint64_t chain_open(chain *c) {
    uint64_t weights = 0;
    for (int l = 0; l < N_LAYER; l++)
        for (int s = 0; s < N_GROUP; s++) {
            c->groups[l][s] = group_open(&shapes[s], "u3g64", (uint64_t)(l * N_GROUP + s) + 3);
            weights += c->groups[l][s].weight_bytes;
        }
    for (int s = 0; s < N_GROUP; s++)
        c->x[s] = random_row(shapes[s].k, (uint64_t)s + 5);
    c->y = device_new(3 * 28672 * 4);
    c->part = device_new(28672 * 4);
    c->linear_scratch = device_new(cuda->linear_scratch(1, 14336, true));
    c->scratch = device_new(cuda->residual_scratch(1, 14336, 1024));
    return weights;
}

static void chain_close(chain *c) {
    for (int l = 0; l < N_LAYER; l++)
        for (int s = 0; s < N_GROUP; s++)
            group_close(&c->groups[l][s]);
    void *all[] = {c->x[0], c->x[1], c->x[2], c->x[3], c->y, c->part, c->linear_scratch, c->scratch};
    for (size_t i = 0; i < NUM_COUNT(all); i++)
        OK(cuda->release(all[i]));
}

static void measure_chain(void) {
    static const int64_t chunks[] = {1, 2, 4, 8, 16, 32, 64, 128};
    static const int max_tb[] = {4, 8, 16, 24, 32};
    chain *c = &all_layers;
    const uint64_t weights = chain_open(c);
    const double base = chain_seconds(c, (int64_t[]){0, 0, 0, 0}, (int[]){1, 1, 1, 1});
    printf("llama-3-8b in u3g64: %d products, %.2f GB: %.0f us, %.0f GB/s\n", N_LAYER * N_GROUP,
           (double)weights / 1e9, base * 1e6, (double)weights / base / 1e9);
    for (size_t k = 0; k < NUM_COUNT(chunks); k++) {
        printf("k_chunk %d; blocks: us, times as long:", (int)chunks[k]);
        for (size_t m = 0; m < NUM_COUNT(max_tb); m++) {
            const int64_t all[] = {chunks[k], chunks[k], chunks[k], chunks[k]};
            const int n_tb[] = {max_tb[m], max_tb[m] > 16 ? 16 : max_tb[m], max_tb[m],
                                max_tb[m] > 16 ? 16 : max_tb[m]};
            const double s = chain_seconds(c, all, n_tb);
            printf("  %d: %.0f %.3f", max_tb[m], s * 1e6, s / base);
        }
        printf("\n");
        fflush(stdout);
    }
    for (int s = 0; s < N_GROUP; s++) { /* one kind of product alone has residuals */
        int64_t one[N_GROUP] = {0};
        printf("%s alone, 16 blocks:", shapes[s].name);
        for (size_t k = 0; k < NUM_COUNT(chunks); k++) {
            one[s] = chunks[k];
            const double t = chain_seconds(c, one, (int[]){16, 16, 16, 16});
            printf("  %d: %.1f us a product", (int)chunks[k], (t - base) / N_LAYER * 1e6);
        }
        printf("\n");
        fflush(stdout);
    }
    chain_close(c);
}

/* Both orders in turns: for one kind of product, then for all. */
static void measure_orders(void) {
    static const int64_t chunks[] = {1, 2, 4, 8, 16, 32, 64};
    chain *c = &all_layers;
    chain_open(c);
    const double base = chain_seconds(c, (int64_t[]){0, 0, 0, 0}, (int[]){1, 1, 1, 1});
    for (int s = 0; s <= N_GROUP; s++) {
        printf("%s, 16 blocks; k_chunk: us more a product, product first, fetch first, by the rule:",
               s < N_GROUP ? shapes[s].name : "all");
        for (size_t k = 0; k < NUM_COUNT(chunks); k++) {
            int64_t of[N_GROUP] = {0};
            for (int i = 0; i < N_GROUP; i++)
                of[i] = s == N_GROUP || s == i ? chunks[k] : 0;
            printf("  %d:", (int)chunks[k]);
            for (int o = 0; o < 3; o++) {
                order = (const int[]){PRODUCT_FIRST, FETCH_FIRST, BY_RULE}[o];
                const double t = chain_seconds(c, of, (int[]){16, 16, 16, 16});
                if (s < N_GROUP)
                    printf(" %.1f", (t - base) / N_LAYER * 1e6);
                else
                    printf(" %.3f", t / base);
            }
        }
        printf("\n");
        fflush(stdout);
    }
    order = BY_RULE;
    chain_close(c);
}

/* ---- the tuner ---- */

enum { TUNE_K = 128, TUNE_BLOCKS = 66 };

static nib_status time_of_chain(void *user, const tune_choice *choice, double *seconds, nib_error *err) {
    (void)err;
    *seconds = chain_seconds(user, choice->k_chunk, choice->n_tb);
    return NIB_OK;
}

static void tune_chain(chain *c, const double *targets, size_t n_target) {
    tune_kind kinds[N_GROUP];
    nib_error err;
    for (int s = 0; s < N_GROUP; s++)
        kinds[s] = (tune_kind){shapes[s].k, outputs(&shapes[s])};
    for (size_t i = 0; i < n_target; i++) {
        const tune_problem problem = {kinds,      N_GROUP,       TUNE_BLOCKS, TUNE_K,
                                      targets[i], time_of_chain, NULL,        c};
        const double start = time_now();
        tuned t;
        if (tune(&problem, &t, &err) != NIB_OK)
            ok(1, err.message);
        const double took = time_now() - start,
                     base = chain_seconds(c, (int64_t[]){0, 0, 0, 0}, (int[]){1, 1, 1, 1}),
                     all = chain_seconds(c, t.choice.k_chunk, t.choice.n_tb);
        printf("target %.1f %%: blocks (%d, %d, %d, %d), k_chunk (%d, %d, %d, %d); by the tuner "
               "%.1f %% slower, measured again %.1f %%; %d chains in %.1f s\n",
               targets[i] * 100, t.choice.n_tb[0], t.choice.n_tb[1], t.choice.n_tb[2], t.choice.n_tb[3],
               (int)t.choice.k_chunk[0], (int)t.choice.k_chunk[1], (int)t.choice.k_chunk[2],
               (int)t.choice.k_chunk[3], (t.seconds / t.base - 1) * 100, (all / base - 1) * 100, t.n_timed,
               took);
        fflush(stdout);
    }
}

static void measure_tuner(void) {
    static const double targets[] = {0.025, 0.05, 0.1, 0.2, 0.5, 1};
    chain_open(&all_layers);
    tune_chain(&all_layers, targets, NUM_COUNT(targets));
    chain_close(&all_layers);
}

/* ---- other ratios of memory to link ---- */

/* One kind of product by k_chunk, with the best of some numbers of blocks, until it is far beyond the knee.
 */
static void print_knee(const chain *c, int s) {
    static const int64_t chunks[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    static const int blocks[] = {8, 16, 32};
    int64_t k_chunk[N_GROUP] = {-1, -1, -1, -1};
    int n_tb[N_GROUP] = {1, 1, 1, 1};
    k_chunk[s] = 0;
    const double base = chain_seconds(c, k_chunk, n_tb);
    double best = 0;
    printf("%s, link 1/%d, memory 1/%d: %.2f us a product; k_chunk: times as long (blocks):", shapes[s].name,
           emulated.link, emulated.memory, base / N_LAYER * 1e6);
    for (size_t i = 0; i < NUM_COUNT(chunks) && best < 1.6 && chunks[i] * emulated.link <= 1024; i++) {
        int of = 0;
        k_chunk[s] = chunks[i];
        best = INFINITY;
        for (size_t b = 0; b < NUM_COUNT(blocks); b++) {
            n_tb[s] = blocks[b];
            const double t = chain_seconds(c, k_chunk, n_tb) / base;
            of = t < best ? blocks[b] : of;
            best = t < best ? t : best;
        }
        printf("  %d: %.3f (%d)", (int)chunks[i], best, of);
    }
    printf("\n");
    fflush(stdout);
}

static void measure_knee(void) {
    static const int slower[][2] = {{1, 1}, {2, 1}, {4, 1}, {1, 3}, {1, 7}};
    chain_open(&all_layers);
    for (size_t i = 0; i < NUM_COUNT(slower); i++) {
        emulated.link = slower[i][0];
        emulated.memory = slower[i][1];
        for (int s = 0; s < N_GROUP; s++)
            print_knee(&all_layers, s);
    }
    emulated.link = emulated.memory = 1;
    chain_close(&all_layers);
}

/* With memory as slow as on one of the paper's GPUs; 0: as on all of them. */
static void tune_slow(int only) {
    static const double targets[] = {0.025, 0.05, 0.1, 0.2};
    chain_open(&all_layers);
    for (int memory = 3; memory <= 7; memory += 4) {
        if (only && only != memory)
            continue;
        printf("memory 1/%d\n", memory);
        emulated.memory = memory;
        tune_chain(&all_layers, targets, NUM_COUNT(targets));
    }
    emulated.memory = 1;
    chain_close(&all_layers);
}

int main(int argc, char **argv) {
    nib_error err;
    cuda_device_info info;
    bool all = argc < 2;
    if (cuda_load(&cuda, &err) != NIB_OK) {
        printf("%s\n", err.message);
        return 1;
    }
    OK(cuda->device_open(0, &info));
    OK(cuda->stream_new(&stream));
    OK(cuda->stream_new(&side));
    cuda_event *events[] = {&before, &after, &fork_event, &join_event};
    for (size_t i = 0; i < NUM_COUNT(events); i++)
        OK(cuda->event_new(events[i]));
    printf("%s, %d multiprocessors\n", info.name, info.n_sm);
    for (int i = all ? 0 : 1; i < (all ? 1 : argc); i++) {
        if (all || !strcmp(argv[i], "rate"))
            measure_rates();
        if (all || !strcmp(argv[i], "chain"))
            measure_chain();
        if (all || !strcmp(argv[i], "tune"))
            measure_tuner();
        if (!all && !strcmp(argv[i], "orders"))
            measure_orders();
        if (!all && !strcmp(argv[i], "knee"))
            measure_knee();
        if (!all && !strncmp(argv[i], "tune-slow", 9))
            tune_slow(argv[i][9] ? (int)strtol(argv[i] + 10, NULL, 10) : 0);
    }
    return 0;
}
