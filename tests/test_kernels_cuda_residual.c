/* QDEC's fused kernel against its definition, bit by bit: with every number of blocks, a hundred times, for
 * rows together, and beside products in a graph; skipped without a device.
 *   test_kernels_cuda_residual [PATTERN]: the tests with such names */
#include "support/gpu.h"

#include "base/num.h"
#include "kernels/cuda/residual_order.h"
#include "kernels/kernels.h"
#include "kernels/salient.h"
#include "numbers/residual.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_MATRIX = 3, MAX_BLOCKS = 66 /* half of an H100's multiprocessors */, RUNS = 100 };
static const size_t page = (size_t)2 << 20;

/* Matrices of one input: residuals in host memory that the device sees, rows and sums in the device's. */
typedef struct fetch_case {
    const char *name;
    int n_w;
    int64_t n[MAX_MATRIX], k, n_row, k_chunk;
    residual host[MAX_MATRIX];
    uint8_t *memory;
    ptrdiff_t to_device; /* from a host address of it to the device's */
    float *x, *expected; /* [n_row, k], [n_row, outputs] */
    float *x_there, *part, *found;
    void *scratch;
} fetch_case;

static int64_t outputs(const fetch_case *c) {
    return c->n[0] + c->n[1] + c->n[2];
}
static size_t part_bytes(const fetch_case *c) {
    return (size_t)(c->n_row * outputs(c)) * sizeof(float);
}

static void open_residuals(fetch_case *c, uint64_t *seed) {
    uint64_t bytes[MAX_MATRIX] = {0}, all = 0;
    for (int w = 0; w < c->n_w; w++) {
        assert_true(residual_bytes(4, c->n[w], c->k, &bytes[w]));
        all += bytes[w];
    }
    all = (all + page - 1) / page * page;
    uint8_t *at = c->memory = aligned_alloc(page, all);
    assert_non_null(at);
    for (uint64_t i = 0; i < all; i += 8) {
        const uint64_t u = random_next(seed);
        memcpy(at + i, &u, 8);
    }
    for (int w = 0; w < c->n_w; w++) {
        c->host[w] = residual_in(at, 4, c->n[w], c->k);
        for (int64_t o = 0; o < c->n[w]; o++)
            c->host[w].scale[o] = 0.001f + 1e-4f * random_float(seed);
        at += bytes[w];
    }
    void *device = NULL;
    OK(cuda->map(c->memory, all, &device));
    c->to_device = (uint8_t *)device - c->memory;
}

/* The sums in the kernel's order: shares of the channels, then the shares. */
static void by_definition(const fetch_case *c, const float *x, float *out) {
    int32_t *at = malloc((size_t)c->k * sizeof *at);
    const int n_share = cuda_residual_shares(c->n, c->n_w);
    const int64_t n = salient_pick(kernels_table(), SALIENT_APPROX, x, c->k, c->k_chunk, at);
    for (int w = 0; w < c->n_w; out += c->n[w++])
        for (int64_t o = 0; o < c->n[w]; o++) {
            float share[2 * CUDA_RESIDUAL_FEWEST_SHARES] = {0}, sum;
            for (int64_t i = 0; i < n; i++)
                share[i % n_share] = fmaf(x[at[i]], residual_code(&c->host[w], at[i], o), share[i % n_share]);
            sum = share[0];
            for (int i = 1; i < n_share; i++)
                sum += share[i];
            out[o] = sum * c->host[w].scale[o];
        }
    free(at);
}

/* Rows with long tails, as activations are. */
static fetch_case case_open(const fetch_case *shape, uint64_t seed) {
    fetch_case c = *shape;
    open_residuals(&c, &seed);
    c.x = malloc((size_t)(c.n_row * c.k) * sizeof *c.x);
    for (int64_t i = 0; i < c.n_row * c.k; i++) {
        const float a = random_float(&seed), b = random_float(&seed);
        c.x[i] = a * b * b;
    }
    c.expected = malloc(part_bytes(&c));
    c.found = malloc(part_bytes(&c));
    for (int64_t r = 0; r < c.n_row; r++)
        by_definition(&c, c.x + r * c.k, c.expected + r * outputs(&c));
    const size_t n_byte = cuda->residual_scratch(c.n_row, c.k, c.k_chunk);
    c.x_there = device_copy(c.x, (size_t)(c.n_row * c.k) * sizeof *c.x);
    c.part = device_new(part_bytes(&c));
    c.scratch = device_new(n_byte);
    OK(cuda->fill(c.scratch, 0, n_byte, stream));
    return c;
}

static void case_close(fetch_case *c) {
    drop(c->x_there), drop(c->part), drop(c->scratch);
    OK(cuda->unpin(c->memory));
    free(c->memory), free(c->x), free(c->expected), free(c->found);
}

static cuda_residual ask(const fetch_case *c, int n_tb) {
    cuda_residual a = {.n_w = c->n_w,
                       .n_row = c->n_row,
                       .x = c->x_there,
                       .ldx = c->k,
                       .k = c->k,
                       .k_chunk = c->k_chunk,
                       .n_tb = n_tb,
                       .part = c->part,
                       .ldp = outputs(c),
                       .scratch = c->scratch};
    for (int w = 0; w < c->n_w; w++) {
        a.rows[w] = c->host[w].rows + c->to_device;
        a.scale[w] = (const float *)(const void *)((const uint8_t *)c->host[w].scale + c->to_device);
        a.n[w] = c->n[w];
        a.step[w] = c->host[w].step;
    }
    return a;
}

static void must_be_same(const fetch_case *c, int n_tb, int run) {
    const cuda_residual a = ask(c, n_tb);
    OK(cuda->fill(c->part, 0xff, part_bytes(c), stream));
    OK(cuda->residual(&a, stream));
    read_back(c->found, c->part, part_bytes(c));
    if (memcmp(c->found, c->expected, part_bytes(c)) != 0)
        fail_msg("%s, %d rows, k_chunk %d, %d blocks, run %d: other bits", c->name, (int)c->n_row,
                 (int)c->k_chunk, n_tb, run);
}

static const fetch_case shapes[] = {
    {.name = "q, k, v", .n_w = 3, .n = {4096, 1024, 1024}, .k = 4096, .n_row = 1},
    {.name = "down", .n_w = 1, .n = {1024}, .k = 14336, .n_row = 1},
    {.name = "gate, up", .n_w = 2, .n = {4608, 4608}, .k = 1024, .n_row = 1},
    {.name = "odd", .n_w = 3, .n = {576, 192, 200}, .k = 1536 + 40, .n_row = 1},
    {.name = "many chunks", .n_w = 1, .n = {300}, .k = 17408, .n_row = 1}};

static void test_blocks(void **state) {
    (void)state;
    static const int64_t chunks[] = {1, 8, 33, 128};
    for (size_t s = 0; s < NUM_COUNT(shapes); s++)
        for (size_t k = 0; k < NUM_COUNT(chunks); k++) {
            fetch_case shape = shapes[s];
            shape.k_chunk = chunks[k];
            fetch_case c = case_open(&shape, s * 10 + k + 1);
            for (int n_tb = 1; n_tb <= MAX_BLOCKS; n_tb++)
                for (int run = 0; run < 2; run++)
                    must_be_same(&c, n_tb, run);
            for (int run = 0; run < RUNS; run++)
                must_be_same(&c, 16, run);
            case_close(&c);
        }
}

/* Each row has channels of its own, and the bits that it has alone. */
static void test_rows(void **state) {
    (void)state;
    for (int64_t n_row = 2; n_row <= CUDA_MAX_FETCH; n_row += n_row < 8 ? 1 : 8) {
        fetch_case shape = shapes[n_row % 2 ? 0 : 3];
        shape.n_row = n_row;
        shape.k_chunk = 9;
        fetch_case c = case_open(&shape, (uint64_t)n_row);
        for (int n_tb = 1; n_tb <= MAX_BLOCKS; n_tb++)
            must_be_same(&c, n_tb, 0);
        for (int run = 0; run < RUNS; run++)
            must_be_same(&c, 16, run);
        case_close(&c);
    }
}

/* A product, the fetch beside it on another stream, and the second pass, as a token's graph has them. */
static cuda_graph token_graph(const fetch_case *c, const view *w, float *y, int n_tb, cuda_stream side,
                              const cuda_event *events) {
    cuda_graph made = NULL;
    const cuda_residual a = ask(c, n_tb);
    const cuda_linear product = {
        .w = {*w}, .n_w = 1, .n_row = 1, .x = c->x_there, .ldx = c->k, .y = {y}, .ldy = {c->n[0]}};
    const cuda_residual_add add = {
        .part = c->part, .ldp = c->n[0], .y = {y}, .ldy = {c->n[0]}, .n = {c->n[0]}, .n_w = 1, .n_row = 1};
    OK(cuda->graph_begin(stream));
    OK(cuda->event_record(events[0], stream));
    OK(cuda->stream_wait(side, events[0]));
    OK(cuda->residual(&a, side));
    OK(cuda->event_record(events[1], side));
    OK(cuda->linear(&product, stream));
    OK(cuda->stream_wait(stream, events[1]));
    OK(cuda->residual_add(&add, stream));
    OK(cuda->graph_end(stream, &made));
    return made;
}

static void test_beside(void **state) {
    (void)state;
    static const int blocks[] = {1, 4, 16, 33, MAX_BLOCKS};
    fetch_case shape = shapes[1];
    shape.k_chunk = 8;
    fetch_case c = case_open(&shape, 3);
    matrix m = matrix_open_uniform("u3g64", c.n[0], c.k, MATRIX_RANDOM, 7);
    const view w = matrix_there(&m);
    const size_t bytes = (size_t)c.n[0] * sizeof(float);
    float *y = device_new(bytes);
    cuda_stream side;
    cuda_event events[2];
    OK(cuda->stream_new(&side));
    OK(cuda->event_new(&events[0]));
    OK(cuda->event_new(&events[1]));
    const cuda_linear alone = {
        .w = {w}, .n_w = 1, .n_row = 1, .x = c.x_there, .ldx = c.k, .y = {y}, .ldy = {c.n[0]}};
    OK(cuda->linear(&alone, stream));
    read_back(c.found, y, bytes);
    for (int64_t i = 0; i < c.n[0]; i++)
        c.expected[i] += c.found[i];
    for (size_t b = 0; b < NUM_COUNT(blocks); b++) {
        cuda_graph token = token_graph(&c, &w, y, blocks[b], side, events);
        for (int run = 0; run < RUNS; run++) {
            OK(cuda->graph_launch(token, stream));
            read_back(c.found, y, bytes);
            if (memcmp(c.found, c.expected, bytes) != 0)
                fail_msg("%d blocks beside a product, run %d: other bits", blocks[b], run);
        }
        OK(cuda->graph_free(token));
    }
    OK(cuda->event_free(events[0]));
    OK(cuda->event_free(events[1]));
    OK(cuda->stream_free(side));
    drop(w.data), drop(y);
    matrix_close(&m);
    case_close(&c);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks), cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_beside)};
    if (gpu_open(argc, argv))
        return cmocka_run_group_tests(tests, NULL, NULL);
    return gpu_missing();
}
