/* The CUDA kernels of the gated delta rule, and of the norm and the gate after it, against the scalar
 * reference; skipped without a device. test_kernels_cuda_recurrent [PATTERN]: the tests with such names */
#include "support/gpu.h"

#include "exec/recurrent.h"
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 3, STEPS = 4, INPUTS = 6 };
/* Inputs of a row, and vectors that all rows share. */
enum { X, BETA, DECAY, GATE, RATE, BIAS };

typedef struct delta_case {
    int64_t n_head, n_group, d_head, d_state;
    bool by_channel;
} delta_case;

typedef struct delta_rows {
    op o;
    int64_t n, width[INPUTS], n_state;
    float *host[INPUTS], *norm, *state[ROWS], *there[INPUTS], *norm_there, *state_there, *out;
    int32_t *position, *number, *save;
    cuda_recurrent a;
} delta_rows;

static delta_rows rows_open(const delta_case *c) {
    static const int32_t number[ROWS] = {0, 1, 2}, none[ROWS] = {CUDA_NO_STATE, CUDA_NO_STATE, CUDA_NO_STATE};
    delta_rows r = {.n = c->n_head * c->d_head, .n_state = c->n_head * c->d_head * c->d_state};
    const int64_t decays = c->by_channel ? c->n_head * c->d_state : c->n_head,
                  width[INPUTS] = {
                      2 * c->n_group * c->d_state + r.n, c->n_head, decays, r.n, c->n_head, decays};
    r.o = (op){.kind = OP_DELTA, .n = r.n, .k = width[X]};
    r.o.u.rec.n_head = c->n_head, r.o.u.rec.n_group = c->n_group;
    r.o.u.rec.d_head = c->d_head, r.o.u.rec.d_state = c->d_state;
    r.o.u.rec.by_channel = c->by_channel;
    for (int i = 0; i < INPUTS; i++) {
        r.width[i] = width[i];
        r.host[i] = random_rows(ROWS * width[i], 31 + (uint64_t)i, 1);
        r.there[i] = device_copy(r.host[i], (size_t)(ROWS * width[i]) * sizeof(float));
    }
    for (int64_t i = 0; i < c->n_head; i++)
        r.host[RATE][i] = -fabsf(r.host[RATE][i]) - 0.1f;
    OK(cuda->to_device(r.there[RATE], r.host[RATE], (size_t)c->n_head * sizeof(float), stream));
    r.norm = random_rows(c->d_head, 41, 1);
    r.norm_there = device_copy(r.norm, (size_t)c->d_head * sizeof(float));
    for (int i = 0; i < ROWS; i++)
        r.state[i] = calloc((size_t)r.n_state, sizeof(float));
    r.state_there = device_new((size_t)(ROWS * r.n_state) * sizeof(float));
    r.out = device_new((size_t)(ROWS * r.n) * sizeof(float));
    r.position = device_new(ROWS * sizeof(int32_t));
    r.number = device_copy(number, sizeof number);
    r.save = device_copy(none, sizeof none);
    r.a = (cuda_recurrent){.kind = OP_DELTA, .x = r.there[X], .x2 = r.there[BETA], .x3 = r.there[DECAY]};
    r.a.ldx = width[X], r.a.ldx2 = width[BETA], r.a.ldx3 = width[DECAY];
    r.a.out = r.out, r.a.ldo = r.n, r.a.n_row = ROWS, r.a.n = r.n;
    r.a.w = r.there[RATE], r.a.b = r.there[BIAS];
    r.a.n_head = c->n_head, r.a.n_group = c->n_group, r.a.d_head = c->d_head, r.a.d_state = c->d_state;
    r.a.by_channel = c->by_channel;
    r.a.position = r.position, r.a.state = r.number, r.a.save = r.save;
    r.a.origin = (uint8_t *)r.state_there;
    r.a.unit = r.n_state * (int64_t)sizeof(float);
    r.a.eps = 1e-6f, r.a.act = ACT_SILU, r.a.ldg = r.n;
    return r;
}

static void rows_close(delta_rows *r) {
    for (int i = 0; i < INPUTS; i++) {
        drop(r->there[i]);
        free(r->host[i]);
    }
    for (int i = 0; i < ROWS; i++)
        free(r->state[i]);
    drop(r->norm_there), drop(r->state_there), drop(r->out), drop(r->position), drop(r->number),
        drop(r->save);
    free(r->norm);
}

/* The outputs of STEPS positions of ROWS sequences, with the same inputs each time. apart: the norm and the
 * gate are launches of their own; alone: so is each row. */
static void run(delta_rows *r, bool apart, bool alone, float *found) {
    for (int32_t step = 0; step < STEPS; step++) {
        const int32_t at[ROWS] = {step, step, step};
        OK(cuda->to_device(r->position, at, sizeof at, stream));
        for (int64_t row = 0; row < ROWS; row += alone ? 1 : ROWS) {
            cuda_recurrent a = r->a;
            a.n_row = alone ? 1 : ROWS;
            a.x += row * a.ldx, a.x2 += row * a.ldx2, a.x3 += row * a.ldx3, a.out += row * a.ldo;
            a.position += row, a.state += row, a.save += row;
            a.norm = apart ? NULL : r->norm_there;
            a.gate = apart ? NULL : r->there[GATE] + row * r->n;
            OK(cuda->recurrent(&a, stream));
            if (!apart)
                continue;
            cuda_norm norm = {.kind = NORM_RMS, .x = a.out, .w = r->norm_there, .out = a.out};
            norm.n_row = a.n_row, norm.ldx = norm.ldo = norm.k = r->n;
            norm.n_group = a.n_head, norm.eps = a.eps;
            OK(cuda->norm(&norm, stream));
            cuda_each gate = {.kind = OP_GATE, .act = a.act, .x = r->there[GATE] + row * r->n, .y = a.out};
            gate.out = a.out, gate.n_row = a.n_row, gate.n = gate.ldx = gate.ldy = gate.ldo = r->n;
            OK(cuda->each(&gate, stream));
        }
    }
    read_back(found, r->out, (size_t)(ROWS * r->n) * sizeof *found);
}

static void expect(delta_rows *r, float *out) {
    const kernel_table *t = kernels_table_for("ref");
    for (int step = 0; step < STEPS; step++)
        for (int64_t i = 0; i < ROWS; i++) {
            const recurrent_rows one = {.x = r->host[X] + i * r->width[X],
                                        .x2 = r->host[BETA] + i * r->width[BETA],
                                        .x3 = r->host[DECAY] + i * r->width[DECAY],
                                        .out = out + i * r->n,
                                        .n_row = 1,
                                        .begins = step == 0,
                                        .state = r->state[i],
                                        .w = r->host[RATE],
                                        .b = r->host[BIAS]};
            recurrent_run(t, &r->o, &one, 0, recurrent_n_part(&r->o));
            t->norm(NORM_RMS, one.out, r->norm, NULL, one.out, r->n, r->a.n_head, false, r->a.eps);
            t->gate(r->a.act, r->host[GATE] + i * r->n, one.out, one.out, r->n);
        }
}

/* A product of the first row has the same bits with the codes that are left. */
static void check_left(delta_rows *r) {
    matrix m = matrix_open(TYPE_Q4_0, 48, r->n, MATRIX_RANDOM, 9);
    float is[2][48];
    cuda_codes left = {device_new(cuda->codes_bytes(r->n)), NULL, 32};
    cuda_linear product = {.n_w = 1, .w = {matrix_there(&m)}, .n_row = 1, .x = r->out, .ldx = r->n};
    cuda_recurrent a = r->a;
    OK(cuda->fill(left.data, 0, cuda->codes_bytes(r->n), stream));
    product.y[0] = device_new(sizeof is[0]);
    product.ldy[0] = 48;
    product.scratch = device_new(cuda->linear_scratch(1, r->n, false));
    a.n_row = 1;
    a.norm = r->norm_there, a.gate = r->there[GATE], a.leaves = left;
    OK(cuda->recurrent(&a, stream));
    for (int i = 0; i < 2; i++) {
        product.codes = i ? left.data : NULL;
        OK(cuda->linear(&product, stream));
        read_back(is[i], product.y[0], sizeof is[i]);
    }
    assert_true(isfinite(is[0][0]));
    assert_memory_equal(is[0], is[1], sizeof is[0]);
    drop(left.data), drop(product.w[0].data), drop(product.y[0]), drop(product.scratch);
    matrix_close(&m);
}

static void check_delta(delta_case c) {
    delta_rows r = rows_open(&c);
    const size_t bytes = (size_t)(ROWS * r.n) * sizeof(float);
    float *expected = malloc(bytes), *apart = malloc(bytes), *found = malloc(bytes), largest = 0;
    expect(&r, expected);
    run(&r, true, false, apart);
    for (int64_t i = 0; i < ROWS * r.n; i++)
        largest = fmaxf(largest, fabsf(expected[i]));
    for (int64_t i = 0; i < ROWS * r.n; i++)
        if (!(fabsf(apart[i] - expected[i]) <= 2e-5f * largest))
            fail_msg("heads of %d, element %d: %.9g, expected %.9g", (int)c.d_head, (int)i, (double)apart[i],
                     (double)expected[i]);
    for (int alone = 0; alone < 2; alone++) {
        run(&r, false, alone, found);
        if (memcmp(found, apart, bytes) != 0)
            fail_msg("heads of %d: other bits in one launch", (int)c.d_head);
    }
    check_left(&r);
    rows_close(&r);
    free(expected), free(apart), free(found);
}
static void test_delta(void **state) {
    (void)state;
    check_delta((delta_case){4, 2, 128, 128, false});
    check_delta((delta_case){2, 2, 256, 64, false});
    check_delta((delta_case){8, 4, 64, 32, true});
    check_delta((delta_case){3, 1, 32, 128, false});
}

/* Products of elements before and after a convolution, in its launch and in launches of their own, for rows
 * of several sequences and for those of a prompt. */
static void check_conv(int64_t n, int64_t n_row, bool together) {
    enum { TAPS = 3 };
    const size_t bytes = (size_t)(n_row * n) * sizeof(float),
                 taken = (size_t)(n_row * n * TAPS) * sizeof(float);
    float *host[4], *in[4], *found[2] = {malloc(bytes), malloc(bytes)}, *x = device_new(bytes);
    int32_t *number = malloc(3 * (size_t)n_row * sizeof *number);
    for (int i = 0; i < 4; i++) { /* x, times, gate; taps */
        host[i] = random_rows(i == 3 ? n * TAPS : n_row * n, 51 + (uint64_t)i, 1);
        in[i] = device_copy(host[i], i == 3 ? (size_t)(n * TAPS) * sizeof(float) : bytes);
    }
    for (int32_t r = 0; r < n_row; r++) {
        number[r] = together ? 0 : r;
        number[n_row + r] = together ? r : 0;
        number[2 * n_row + r] = CUDA_NO_STATE;
    }
    int32_t *const numbers = device_copy(number, 3 * (size_t)n_row * sizeof *number);
    cuda_recurrent a = {.kind = OP_CONV, .together = together, .x = x, .ldx = n, .out = x, .ldo = n};
    a.n_row = n_row, a.n = n, a.n_tap = TAPS, a.w = in[3];
    a.state = numbers, a.position = numbers + n_row, a.save = numbers + 2 * n_row;
    a.origin = device_new(taken);
    a.unit = n * TAPS * (int64_t)sizeof(float);
    a.scratch = device_new((size_t)cuda_recurrent_scratch(n_row, n, TAPS) + 256);
    for (int one = 0; one < 2; one++) {
        OK(cuda->to_device(x, host[0], bytes, stream));
        cuda_each gate = {.kind = OP_GATE, .act = ACT_NONE, .x = in[1], .y = x, .out = x};
        gate.n_row = n_row, gate.n = gate.ldx = gate.ldy = gate.ldo = n;
        a.times = one ? in[1] : NULL, a.gate = one ? in[2] : NULL;
        a.ldt = a.ldg = n;
        if (!one)
            OK(cuda->each(&gate, stream));
        OK(cuda->recurrent(&a, stream));
        gate.x = in[2];
        if (!one)
            OK(cuda->each(&gate, stream));
        read_back(found[one], x, bytes);
    }
    assert_true(isfinite(found[0][0]));
    assert_memory_equal(found[0], found[1], bytes);
    for (int i = 0; i < 4; i++) {
        drop(in[i]);
        free(host[i]);
    }
    drop(x), drop(numbers), drop(a.origin), drop(a.scratch);
    free(found[0]), free(found[1]), free(number);
}
static void test_conv(void **state) {
    (void)state;
    check_conv(256, 1, false);
    check_conv(320, 3, false);
    check_conv(96, 150, true);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_delta), cmocka_unit_test(test_conv)};
    if (!gpu_open(argc, argv))
        return gpu_missing();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
