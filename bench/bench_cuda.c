/* bench_cuda - one generated token after the other on a GPU: every kernel of a llama-shaped model in one
 * graph, with random weights made there, beside a kernel that only reads. bench_cuda [chain | products |
 * floats | rows | wide | batch | roofs] ...    (default: all) The weights of a model are larger than any
 * cache; products alone rotate through 2 GiB of matrices. `roofs` prints what bench/roofline.py --kernels
 * draws.
 *
 * There are two yardsticks: one long read (share of reading), and for products alone a kernel that reads the
 * same matrices, one launch each, in the same graph with the same early starts (share of such reads). */
#include "kernels/cuda_load.h"
#include "kernels/kv_layout.h"
#include "numbers/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cuda_kernels *cuda;
static cuda_stream stream;
static cuda_event before, after;
static double read_rate; /* bytes/s of the reading kernel */

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
    return p;
}

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median seconds of one launch of a graph, over `times` samples of `each` launches. */
static double graph_seconds(cuda_graph g, int times, int each) {
    float ms[64];
    for (int i = 0; i < 3; i++)
        OK(cuda->graph_launch(g, stream));
    for (int i = 0; i < times; i++) {
        OK(cuda->event_record(before, stream));
        for (int e = 0; e < each; e++)
            OK(cuda->graph_launch(g, stream));
        OK(cuda->event_record(after, stream));
        OK(cuda->stream_sync(stream));
        OK(cuda->event_ms(&ms[i], before, after));
    }
    qsort(ms, (size_t)times, sizeof *ms, by_size);
    return (double)ms[times / 2] / 1000 / each;
}

static cuda_graph recorded(void) {
    cuda_graph g = NULL;
    OK(cuda->graph_end(stream, &g));
    return g;
}

static void measure_reading(void) {
    const size_t bytes = (size_t)8 << 30;
    unsigned *sink = device_new(4);
    void *data = device_new(bytes);
    OK(cuda->fill(data, 0x5a, bytes, stream));
    OK(cuda->graph_begin(stream));
    OK(cuda->read_all(data, bytes, sink, stream));
    cuda_graph g = recorded();
    read_rate = (double)bytes / graph_seconds(g, 15, 1);
    printf("reading 8 GiB: %.0f GB/s\n", read_rate / 1e9);
    OK(cuda->graph_free(g));
    OK(cuda->release(data));
    OK(cuda->release(sink));
}

static view matrix_new(const char *format, int64_t n, int64_t k, uint64_t *bytes) {
    static const type_id floats[] = {TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_F8G64, TYPE_F4G64};
    view w = {.n = n, .k = k};
    uint64_t size = 0;
    bool is_float = false;
    for (size_t i = 0; i < sizeof floats / sizeof *floats && !is_float; i++)
        is_float = !strcmp(type_get(floats[i])->name, format) && pack_choose(floats[i], k, &w.format);
    if ((!is_float && !pack_from_name(format, k, &w.format)) || !pack_bytes(&w.format, n, k, &size))
        ok(1, format);
    w.data = device_new(size);
    if (is_float)
        OK(cuda->fill((void *)(uintptr_t)w.data, 0x38, size, stream)); /* 1 in e4m3 */
    else
        OK(cuda->random_matrix(&w, 1.0f / (4.6f * 64), (uint64_t)n * 31 + *bytes, stream));
    *bytes += size;
    return w;
}

/* ---- a token ---- */

typedef struct shape {
    const char *name;
    int64_t n_layer, d_model, n_head, n_kv, d_head, d_ff, n_vocab;
} shape;
static const shape shapes[] = {{"llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256},
                               {"llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256}};
enum {
    CONTEXT = 4096,
    PAGES = CONTEXT / CUDA_PAGE,
    EACH = PAGES + 1 /* entries of a sequence: that of the newest block's page, with codes, and its pages */
};

typedef struct layer {
    view q, k, v, o, gate, up, down;
    cuda_kv kv;
} layer;

typedef struct chain {
    shape s;
    layer layers[32];
    view embed, head;
    uint64_t bytes; /* of weights that a token reads */
    float *x, *qkv, *a, *h, *logits, *norm, *rope;
    float *top_logits;
    int32_t *token, *position, *pages, *first_page;
    void *recent[2]; /* the newest block of each sequence, with codes */
    void *linear_scratch, *attend_scratch, *sample_scratch;
    void *x_codes, *a_codes, *h_codes; /* the codes that launches leave for the next product */
    void *held[24];                    /* all of these */
    int n_held;
} chain;

static void *chain_new(chain *c, size_t bytes) {
    return c->held[c->n_held++] = device_new(bytes);
}

static void chain_open(chain *c, const shape *s, const char *format, int64_t n_row) {
    int32_t *pages = malloc((size_t)(n_row * EACH) * sizeof *pages);
    const int64_t nq = s->n_head * s->d_head, nk = s->n_kv * s->d_head;
    const size_t cache = (size_t)(n_row * CONTEXT * nk) * 2;
    uint64_t unread = 0;
    *c = (chain){.s = *s};
    for (int64_t l = 0; l < s->n_layer; l++) {
        layer *y = &c->layers[l];
        y->q = matrix_new(format, nq, s->d_model, &c->bytes);
        y->k = matrix_new(format, nk, s->d_model, &c->bytes);
        y->v = matrix_new(format, nk, s->d_model, &c->bytes);
        y->o = matrix_new(format, s->d_model, nq, &c->bytes);
        y->gate = matrix_new(format, s->d_ff, s->d_model, &c->bytes);
        y->up = matrix_new(format, s->d_ff, s->d_model, &c->bytes);
        y->down = matrix_new(format, s->d_model, s->d_ff, &c->bytes);
        y->kv = (cuda_kv){.k = device_new(cache),
                          .v = device_new(cache),
                          .n_kv_head = s->n_kv,
                          .d_head = s->d_head,
                          .page = nk * CUDA_PAGE};
    }
    c->head = matrix_new(format, s->n_vocab, s->d_model, &c->bytes);
    c->embed = matrix_new(format, s->n_vocab, s->d_model, &unread);
    c->x = chain_new(c, (size_t)(n_row * s->d_model) * 4);
    c->qkv = chain_new(c, (size_t)(n_row * (nq + 2 * nk)) * 4);
    c->a = chain_new(c, (size_t)(n_row * nq) * 4);
    c->h = chain_new(c, (size_t)(n_row * s->d_ff) * 4);
    c->logits = chain_new(c, (size_t)(n_row * s->n_vocab) * 4);
    c->rope = chain_new(c, (size_t)(CONTEXT * s->d_head) * 4);
    c->token = chain_new(c, (size_t)n_row * 4);
    c->position = chain_new(c, (size_t)n_row * 4);
    c->top_logits = chain_new(c, (size_t)n_row * 4);
    c->pages = chain_new(c, (size_t)(n_row * EACH) * 4);
    c->first_page = chain_new(c, (size_t)n_row * 4);
    const size_t bytes = cuda->linear_scratch(n_row, s->d_ff, false),
                 more = cuda->wide_scratch(n_row, s->d_ff);
    c->linear_scratch = chain_new(c, bytes > more ? bytes : more);
    c->attend_scratch = chain_new(c, cuda->attend_scratch(n_row, s->n_head, s->d_head));
    c->sample_scratch = chain_new(c, cuda->sample_scratch(n_row));
    c->a_codes = chain_new(c, cuda->codes_bytes(nq));
    c->x_codes = chain_new(c, cuda->codes_bytes(s->d_model));
    c->h_codes = chain_new(c, cuda->codes_bytes(s->d_ff));
    for (int i = 0; i < 2; i++)
        c->recent[i] = chain_new(c, (size_t)(n_row * nk * CUDA_PAGE) * 2);
    c->norm = chain_new(c, (size_t)s->d_model * 4);
    float *ones = malloc((size_t)s->d_model * 4);
    for (int64_t i = 0; i < s->d_model; i++)
        ones[i] = 1;
    for (int64_t i = 0; i < n_row * EACH; i++)
        pages[i] = (int32_t)(i % EACH ? i - i / EACH - 1 : i / EACH);
    OK(cuda->to_device(c->norm, ones, (size_t)s->d_model * 4, stream));
    OK(cuda->to_device(c->pages, pages, (size_t)(n_row * EACH) * 4, stream));
    for (int64_t i = 0; i < n_row; i++)
        pages[i] = (int32_t)(i * EACH + 1);
    OK(cuda->to_device(c->first_page, pages, (size_t)n_row * 4, stream));
    OK(cuda->stream_sync(stream));
    free(ones);
    free(pages);
}

static void chain_close(chain *c) {
    for (int64_t l = 0; l < c->s.n_layer; l++) {
        layer *y = &c->layers[l];
        const void *all[] = {y->q.data,  y->k.data,    y->v.data, y->o.data, y->gate.data,
                             y->up.data, y->down.data, y->kv.k,   y->kv.v};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            OK(cuda->release((void *)(uintptr_t)all[i]));
    }
    OK(cuda->release((void *)(uintptr_t)c->head.data));
    OK(cuda->release((void *)(uintptr_t)c->embed.data));
    for (int i = 0; i < c->n_held; i++)
        OK(cuda->release(c->held[i]));
}

static void chain_positions(const chain *c, int32_t position, int64_t n_row) {
    int32_t at[CUDA_MAX_ROWS];
    for (int64_t i = 0; i < n_row; i++)
        at[i] = position;
    OK(cuda->to_device(c->position, at, (size_t)n_row * 4, stream));
    OK(cuda->stream_sync(stream));
}

/* Which kernels of a token are recorded. */
enum { PRODUCTS = 1, ATTENTION = 2, ENDS = 4, EVERYTHING = 7, BATCH = 8 /* products by `batch` */ };

/* Whether the products of a model take and leave codes for this number of rows. */
static bool has_codes(const chain *c, int64_t n_row) {
    const layer *y = c->layers;
    return n_row <= cuda->left_rows(&y->o) && n_row <= cuda->left_rows(&y->down);
}

/* Whether it leaves whole codes, not products and magnitudes. */
static bool product(const chain *c, cuda_linear a, int64_t n_row, bool batch) {
    a.n_row = n_row;
    a.eps = 1e-5f;
    a.scratch = c->linear_scratch;
    if (batch || !has_codes(c, n_row))
        a.codes = a.leaves.data = NULL;
    OK((batch ? cuda->batch : cuda->linear)(&a, stream));
    return !batch && cuda->leaves_whole(&a);
}

static void record_attention(const chain *c, const layer *y, int64_t n_row, bool leaves) {
    const shape *s = &c->s;
    const int64_t nq = s->n_head * s->d_head, nk = s->n_kv * s->d_head, ld = nq + 2 * nk;
    cuda_attend attend = {.kv = y->kv,
                          .q = c->qkv,
                          .k = c->qkv + nq,
                          .v = c->qkv + nq + nk,
                          .ldq = ld,
                          .ldk = ld,
                          .ldv = ld,
                          .out = c->a,
                          .ldo = nq,
                          .n_row = n_row,
                          .n_head = s->n_head,
                          .position = c->position,
                          .pages = c->pages,
                          .first_page = c->first_page,
                          .cos_sin = c->rope,
                          .n_rot = s->d_head,
                          .scale = 0.1f,
                          .scratch = c->attend_scratch,
                          .leaves = {.data = c->a_codes, .group = c->head.format.group}};
    if (!leaves)
        attend.leaves.data = NULL;
    OK(cuda->attend(&attend, stream));
}

static void record_sample(const chain *c, int64_t n_row) {
    const cuda_sample sample = {.logits = c->logits,
                                .n_row = n_row,
                                .ld = c->s.n_vocab,
                                .n_vocab = c->s.n_vocab,
                                .top = 1,
                                .top_ids = c->token,
                                .top_logits = c->top_logits,
                                .scratch = c->sample_scratch};
    OK(cuda->sample(&sample, stream));
}

static void record_embed(const chain *c, int64_t n_row) {
    const int64_t d = c->s.d_model;
    OK(cuda->embed(
        &(cuda_embed){
            .w = c->embed, .row = c->token, .n = d, .factor = 1.0f, .out = c->x, .ldo = d, .n_row = n_row},
        stream));
}

static void record_token(const chain *c, int what, int64_t n_row) {
    const shape *s = &c->s;
    const int64_t nq = s->n_head * s->d_head, nk = s->n_kv * s->d_head, ld = nq + 2 * nk, d = s->d_model;
    const bool batch = what & BATCH;
    if (what & ENDS)
        record_embed(c, n_row);
    for (int64_t l = 0; l < s->n_layer; l++) {
        const layer *y = &c->layers[l];
        if (what & PRODUCTS)
            product(c,
                    (cuda_linear){.w = {y->q, y->k, y->v},
                                  .n_w = 3,
                                  .x = c->x,
                                  .ldx = d,
                                  .norm = c->norm,
                                  .codes = l > 0 ? c->x_codes : NULL,
                                  .y = {c->qkv, c->qkv + nq, c->qkv + nq + nk},
                                  .ldy = {ld, ld, ld}},
                    n_row, batch);
        if (what & ATTENTION)
            record_attention(c, y, n_row, !batch && has_codes(c, n_row));
        if (!(what & PRODUCTS))
            continue;
        product(c,
                (cuda_linear){.w = {y->o},
                              .n_w = 1,
                              .x = c->a,
                              .ldx = nq,
                              .codes = c->a_codes,
                              .adds = true,
                              .y = {c->x},
                              .ldy = {d},
                              .leaves = {c->x_codes, c->norm, c->head.format.group}},
                n_row, batch);
        const bool whole =
            product(c,
                    (cuda_linear){.w = {y->gate, y->up},
                                  .n_w = 2,
                                  .x = c->x,
                                  .ldx = d,
                                  .norm = c->norm,
                                  .gated = true,
                                  .act = ACT_SILU,
                                  .codes = c->x_codes,
                                  .y = {c->h},
                                  .ldy = {s->d_ff},
                                  .leaves = {.data = c->h_codes, .group = c->head.format.group}},
                    n_row, batch);
        product(c,
                (cuda_linear){.w = {y->down},
                              .n_w = 1,
                              .x = c->h,
                              .ldx = s->d_ff,
                              .codes = c->h_codes,
                              .codes_whole = whole,
                              .adds = true,
                              .y = {c->x},
                              .ldy = {d},
                              .leaves = {c->x_codes, c->norm, c->head.format.group}},
                n_row, batch);
    }
    if (what & PRODUCTS)
        product(c,
                (cuda_linear){.w = {c->head},
                              .n_w = 1,
                              .x = c->x,
                              .ldx = d,
                              .norm = c->norm,
                              .codes = c->x_codes,
                              .y = {c->logits},
                              .ldy = {s->n_vocab}},
                n_row, batch);
    if (what & ENDS)
        record_sample(c, n_row);
}

/* Returns the seconds of a token. */
static double time_chain(const chain *c, const char *format, int what, int32_t position, int64_t n_row) {
    chain_positions(c, position, n_row);
    OK(cuda->graph_begin(stream));
    record_token(c, what, n_row);
    cuda_graph g = recorded();
    const double t = graph_seconds(g, 15, 10);
    static const char *const names[] = {[PRODUCTS] = "products",
                                        [ATTENTION] = "attention",
                                        [PRODUCTS | ATTENTION] = "products, attention",
                                        [EVERYTHING] = "token"};
    char name[40];
    snprintf(name, sizeof name, "%s%s", names[what % BATCH], what & BATCH ? " by batch" : "");
    printf(
        "%-13s %-7s %-20s rows %2d position %4d+: %8.1f us %7.1f tok/s %6.0f GB/s, share of reading %.3f\n",
        c->s.name, format, name, (int)n_row, (int)position, t * 1e6, (double)n_row / t,
        (double)c->bytes / t / 1e9, (double)c->bytes / t / read_rate);
    OK(cuda->graph_free(g));
    return t;
}

static void chains(void) {
    static const char *const formats[] = {"u4g32", "u4g128"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
            chain *c = malloc(sizeof *c);
            chain_open(c, &shapes[i], formats[f], CUDA_MAX_ROWS);
            time_chain(c, formats[f], PRODUCTS, 0, 1);
            time_chain(c, formats[f], ATTENTION, 64, 1);
            time_chain(c, formats[f], PRODUCTS | ATTENTION, 64, 1);
            time_chain(c, formats[f], EVERYTHING, 64, 1);
            time_chain(c, formats[f], EVERYTHING, 1024, 1);
            time_chain(c, formats[f], EVERYTHING, 3500, 1);
            for (int64_t n_row = 4; n_row <= CUDA_MAX_ROWS; n_row *= 2)
                time_chain(c, formats[f], EVERYTHING, 64, n_row);
            time_chain(c, formats[f], PRODUCTS, 64, 16);
            time_chain(c, formats[f], PRODUCTS, 64, CUDA_MAX_ROWS);
            time_chain(c, formats[f], ATTENTION, 64, CUDA_MAX_ROWS);
            chain_close(c);
            free(c);
        }
}

/* ---- products alone ---- */

enum { MAX_MATRICES = 512 };

typedef struct turns { /* matrices that are multiplied in turn */
    view all[MAX_MATRICES];
    int count;
    uint64_t bytes;
} turns;

static double reads_seconds(const turns *m) {
    const size_t each = (size_t)(m->bytes / (uint64_t)m->count);
    unsigned *sink = device_new(4);
    OK(cuda->graph_begin(stream));
    for (int i = 0; i < m->count; i++)
        OK(cuda->read_all(m->all[i].data, each, sink, stream));
    cuda_graph g = recorded();
    const double t = graph_seconds(g, 15, 1) / m->count;
    OK(cuda->graph_free(g));
    OK(cuda->release(sink));
    return t;
}

static double products_seconds(const turns *m, cuda_linear a, bool batch) {
    OK(cuda->graph_begin(stream));
    for (int i = 0; i < m->count; i++) {
        a.w[0] = m->all[i];
        OK((batch ? cuda->batch : cuda->linear)(&a, stream));
    }
    cuda_graph g = recorded();
    const double t = graph_seconds(g, 15, 1) / m->count;
    OK(cuda->graph_free(g));
    return t;
}

static void print_product(const char *format, cuda_linear a, bool batch, const turns *m, double t,
                          double reads) {
    const double bytes = (double)m->bytes / m->count;
    printf("%-7s %6d x %5d, %2d rows%s: %7.2f us %6.0f GB/s, share of reading %.3f, of such reads %.3f "
           "(%.2f us)\n",
           format, (int)m->all[0].n, (int)m->all[0].k, (int)a.n_row,
           batch           ? ", batch"
           : a.codes_whole ? ", codes left whole"
           : a.codes       ? ", codes left"
                           : "",
           t * 1e6, bytes / t / 1e9, bytes / t / read_rate, reads / t, reads * 1e6);
}

static double time_product(const char *format, int64_t n, int64_t k, int64_t n_row, bool batch) {
    static turns m;
    m.bytes = 0;
    m.count = 0;
    while (m.count < MAX_MATRICES && m.bytes < (uint64_t)2 << 30)
        m.all[m.count++] = matrix_new(format, n, k, &m.bytes);
    float *x = device_new((size_t)(n_row * k) * 4), *y = device_new((size_t)(n_row * n) * 4);
    float *host = malloc((size_t)(n_row * k) * 4);
    for (int64_t i = 0; i < n_row * k; i++)
        host[i] = (float)(i * 7919 % 1000) / 500 - 1;
    OK(cuda->to_device(x, host, (size_t)(n_row * k) * 4, stream));
    void *scratch = device_new(batch ? cuda->wide_scratch(n_row, k) : cuda->linear_scratch(n_row, k, false)),
         *codes = device_new(cuda->codes_bytes(k));
    cuda_linear a = {.n_w = 1, .n_row = n_row, .x = x, .ldx = k, .y = {y}, .ldy = {n}, .scratch = scratch};
    const double reads = reads_seconds(&m), t = products_seconds(&m, a, batch);
    print_product(format, a, batch, &m, t, reads);
    if (n_row <= cuda->left_rows(&m.all[0]) && m.all[0].format.layout == PACK_TILE &&
        !batch) { /* as in a model, in which the previous launch leaves them */
        a.codes = codes;
        print_product(format, a, false, &m, products_seconds(&m, a, false), reads);
        a.codes_whole = true;
        if (n_row == 1 && m.all[0].format.group > 32)
            print_product(format, a, false, &m, products_seconds(&m, a, false), reads);
    }
    for (int i = 0; i < m.count; i++)
        OK(cuda->release((void *)(uintptr_t)m.all[i].data));
    OK(cuda->release(x));
    OK(cuda->release(y));
    OK(cuda->release(scratch));
    OK(cuda->release(codes));
    free(host);
    return t;
}

static void products(void) {
    static const char *const formats[] = {"u2g128", "u3g128", "u4g128", "u4g32", "u5g128",
                                          "u6g128", "u8g128", "u2g32",  "u8g32"};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        time_product(formats[f], 14336, 4096, 1, false);
        time_product(formats[f], 4096, 14336, 1, false);
    }
    static const int64_t more[][2] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {128256, 4096}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        time_product("u4g32", more[i][0], more[i][1], 1, false);
}

static void floats(void) {
    static const char *const formats[] = {"f32", "bf16", "f16", "f8g64", "f4g64"};
    static const int64_t opt[][2] = {{12288, 4096}, {4096, 4096}, {16384, 4096}, {4096, 16384}};
    for (int64_t n_row = 1; n_row <= 16; n_row += n_row == 1 ? 9 : 6)
        for (size_t i = 0; i < sizeof opt / sizeof *opt; i++)
            time_product("f16", opt[i][0], opt[i][1], n_row, false);
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (int64_t n_row = 1; n_row <= CUDA_MAX_ROWS; n_row *= 8) {
            time_product(formats[f], 14336, 4096, n_row, false);
            time_product(formats[f], 4096, 14336, n_row, false);
        }
}

static void rows(void) {
    static const char *const formats[] = {"u4g32", "u4g128"};
    static const int64_t sizes[][2] = {{14336, 4096}, {4096, 14336}, {6144, 4096}, {4096, 4096}};
    for (size_t f = 0; f < 2; f++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            double one = 0;
            for (int64_t n_row = 1; n_row <= CUDA_MAX_ROWS; n_row *= 2) {
                const double t = time_product(formats[f], sizes[i][0], sizes[i][1], n_row, false);
                one = n_row == 1 ? t : one;
                if (n_row > 1)
                    printf("    t(%d) / t(1) = %.2f\n", (int)n_row, t / one);
            }
        }
}

/* ---- products of many rows ---- */

/* Random floats of 16 bits, or packed weights (matrix_new). */
static view floats_new(const char *format, int64_t n, int64_t k, uint64_t *bytes) {
    const bool half = !strcmp(format, "f16");
    view w = {.n = n, .k = k, .format = {.layout = PACK_ROWS, .type = half ? TYPE_F16 : TYPE_BF16}};
    const size_t count = (size_t)(n * k);
    uint16_t *host = malloc(count * 2);
    uint64_t state = 88172645463325252u + *bytes;
    if (!half && strcmp(format, "bf16")) {
        free(host);
        return matrix_new(format, n, k, bytes);
    }
    for (size_t i = 0; i < count; i++) { /* magnitudes of 2^-9 to 2^-5, either sign */
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        host[i] = half ? (uint16_t)((state & 0x83ff) | (uint16_t)((6 + (state >> 20) % 4) << 10))
                       : (uint16_t)((state & 0x807f) | (uint16_t)((118 + (state >> 20) % 4) << 7));
    }
    w.data = device_new(count * 2);
    OK(cuda->to_device((void *)(uintptr_t)w.data, host, count * 2, stream));
    OK(cuda->stream_sync(stream));
    free(host);
    *bytes += count * 2;
    return w;
}

/* Returns seconds. */
static double time_wide(const char *format, int64_t n, int64_t k, int64_t n_row) {
    static turns m;
    m.bytes = 0;
    m.count = 0;
    while (m.count < MAX_MATRICES && m.bytes < (uint64_t)200 << 20)
        m.all[m.count++] = floats_new(format, n, k, &m.bytes);
    float *x = device_new((size_t)(n_row * k) * 4), *y = device_new((size_t)(n_row * n) * 4);
    float *host = malloc((size_t)(n_row * k) * 4);
    for (int64_t i = 0; i < n_row * k; i++)
        host[i] = (float)(i * 7919 % 1000) / 500 - 1;
    OK(cuda->to_device(x, host, (size_t)(n_row * k) * 4, stream));
    void *scratch = device_new(cuda->wide_scratch(n_row, k));
    cuda_linear a = {.n_w = 1, .n_row = n_row, .x = x, .ldx = k, .y = {y}, .ldy = {n}, .scratch = scratch};
    OK(cuda->graph_begin(stream));
    for (int i = 0; i < m.count; i++) {
        a.w[0] = m.all[i];
        OK(cuda->wide(&a, stream));
    }
    cuda_graph g = recorded();
    const double t = graph_seconds(g, 15, 1) / m.count;
    printf("%-7s %6d x %5d, %4d rows: %8.2f us %6.0f TFLOP/s\n", format, (int)n, (int)k, (int)n_row, t * 1e6,
           2e-12 * (double)(n * k * n_row) / t);
    OK(cuda->graph_free(g));
    for (int i = 0; i < m.count; i++)
        OK(cuda->release((void *)(uintptr_t)m.all[i].data));
    OK(cuda->release(x));
    OK(cuda->release(y));
    OK(cuda->release(scratch));
    free(host);
    return t;
}

static void many_rows(void) {
    static const char *const formats[] = {"f16", "bf16", "u4g32"};
    static const int64_t sizes[][2] = {{14336, 4096}, {4096, 14336}, {4096, 4096}},
                         rows_of[] = {128, 512, 2048};
    for (size_t f = 0; f < 3; f++)
        for (size_t i = 0; i < 3; i++)
            for (size_t r = 0; r < 3; r++)
                time_wide(formats[f], sizes[i][0], sizes[i][1], rows_of[r]);
}

/* Many decoding sequences: `batch` beside `linear`. */
static void batches(void) {
    static const char *const format = "u4g32";
    static const int64_t sizes[][2] = {{14336, 4096}, {4096, 14336}, {6144, 4096},
                                       {4096, 4096},  {28672, 4096}, {128256, 4096}};
    if (!cuda->has_batch())
        return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t n_row = 1; n_row <= CUDA_MAX_ROWS; n_row *= n_row == 1 ? 4 : 2)
            for (int batch = 0; batch < 2; batch++)
                time_product(format, sizes[i][0], sizes[i][1], n_row, batch);
    chain *c = malloc(sizeof *c);
    chain_open(c, &shapes[0], format, CUDA_MAX_ROWS);
    for (int64_t n_row = 8; n_row <= CUDA_MAX_ROWS; n_row *= 2) {
        time_chain(c, format, PRODUCTS, 64, n_row);
        time_chain(c, format, PRODUCTS | BATCH, 64, n_row);
        time_chain(c, format, ATTENTION, 64, n_row);
        time_chain(c, format, EVERYTHING, 64, n_row);
        time_chain(c, format, EVERYTHING | BATCH, 64, n_row);
    }
    chain_close(c);
    free(c);
}

/* ---- rooflines ---- */

/* Size: outputs of a product, the position of attention. */
static void print_roof(const char *name, int64_t size, int64_t n_row, double flop, double bytes, double t) {
    printf("roof\t%s\t%d\t%d\t%.0f\t%.0f\t%.2f\n", name, (int)size, (int)n_row, flop, bytes, t * 1e6);
}

/* A product by the kernel for so many rows. Bytes: weights, inputs and outputs, once each. */
static void product_roof(const char *format, int64_t n, int64_t k, int64_t n_row) {
    const bool packed = format[0] == 'u';
    pack_format f;
    uint64_t bytes = (uint64_t)(n * k) * 2;
    if (packed && (!pack_from_name(format, k, &f) || !pack_bytes(&f, n, k, &bytes)))
        ok(1, format);
    const double t = n_row > CUDA_MAX_ROWS ? time_wide(format, n, k, n_row)
                                           : time_product(format, n, k, n_row, packed && cuda->has_batch());
    print_roof(format, n, n_row, 2.0 * (double)(n * k * n_row),
               (double)bytes + 4.0 * (double)(n_row * (n + k)), t);
}

/* Attention of one new row of each sequence in the layers of 8b. Bytes: keys and values, and their scales. */
static void attention_roofs(chain *c, const char *name, type_id type, int code_bits) {
    const shape *s = &c->s;
    const int64_t page = s->n_kv * kv_head_bytes(type, s->d_head);
    for (int64_t l = 0; l < s->n_layer; l++) { /* the newest blocks are few, so layers may share them */
        cuda_kv *kv = &c->layers[l].kv;
        *kv = (cuda_kv){kv->k, kv->v, s->n_kv, s->d_head, page / 2, c->recent[0], c->recent[1], code_bits};
    }
    for (int32_t at = 1024; at < CONTEXT; at += 3008)
        for (int64_t n_row = 16; n_row <= CUDA_MAX_ROWS; n_row *= 4) {
            const double t = time_chain(c, name, ATTENTION, at, n_row) / (double)s->n_layer;
            const double n = (double)(n_row * at), flop = 4 * (double)(s->n_head * s->d_head) * n;
            print_roof(name, at, n_row, flop, n * 2 * (double)page / CUDA_PAGE, t);
        }
}

static void roofs(void) {
    static const int64_t sizes[][2] = {{14336, 4096}, {4096, 14336}, {6144, 4096}};
    print_roof("read", 0, 0, 0, read_rate, 1);
    for (int64_t n_row = 16; n_row <= 256; n_row *= 4)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            product_roof("u4g128", sizes[i][0], sizes[i][1], n_row);
            product_roof("f16", sizes[i][0], sizes[i][1], n_row);
        }
    chain *c = malloc(sizeof *c);
    chain_open(c, &shapes[0], "u4g128", CUDA_MAX_ROWS);
    attention_roofs(c, "attention f16", TYPE_F16, 0);
    attention_roofs(c, "attention kv8", TYPE_KV8, 8);
    attention_roofs(c, "attention kv4", TYPE_KV4, 4);
    chain_close(c);
    free(c);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"products", products}, {"floats", floats}, {"rows", rows},  {"wide", many_rows},
                 {"batch", batches},     {"chain", chains},  {"roofs", roofs}};
    cuda_device_info info;
    nib_error err;
    if (cuda_load(&cuda, &err) != NIB_OK) {
        printf("skipped: %s\n", err.message);
        return 0;
    }
    OK(cuda->device_open(0, &info));
    OK(cuda->stream_new(&stream));
    OK(cuda->event_new(&before));
    OK(cuda->event_new(&after));
    printf("%s, %d multiprocessors, compute capability %d.%d\n", info.name, info.n_sm, info.major,
           info.minor);
    measure_reading();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int a = 1; a < argc || (argc == 1 && a == 1); a++)
            if (argc == 1 || !strcmp(argv[a], parts[i].name))
                parts[i].run();
    OK(cuda->event_free(before));
    OK(cuda->event_free(after));
    return cuda->stream_free(stream);
}
