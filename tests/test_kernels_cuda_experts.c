/* The kernels of mixtures of experts on a CUDA device: choices against route_row, products against sums in
 * double, and a row's bits alone and among others; skipped without a device.
 *   test_kernels_cuda_experts [PATTERN]: the tests with such names */
#include "support/fakecuda.h"
#include "support/gpu.h"

#include "kernels/route.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROWS = 300 };

/* ---- routing ---- */

static op router(score_kind score, int64_t n, int64_t n_used, int64_t n_group, int64_t group_used) {
    op o = {.kind = OP_ROUTE, .k = n, .n = 2 * n_used};
    o.u.route.score = score;
    o.u.route.n_used = n_used;
    o.u.route.n_group = n_group;
    o.u.route.group_used = group_used;
    o.u.route.group_best = score == SCORE_SOFTMAX ? 1 : 2;
    o.u.route.normalise = score != SCORE_SOFTMAX_LATE;
    o.u.route.scale = 1.5f;
    return o;
}

static cuda_route route_of(const op *o, float *logits, const float *bias, int64_t n_row, float *out,
                           bool two) {
    const int64_t n_pair = n_row * o->u.route.n_used;
    return (cuda_route){.logits = logits,
                        .bias = bias,
                        .out = out,
                        .n_row = n_row,
                        .ldx = o->k,
                        .ldo = o->n,
                        .n_expert = o->k,
                        .n_used = o->u.route.n_used,
                        .score = o->u.route.score,
                        .n_group = o->u.route.n_group,
                        .group_used = o->u.route.group_used,
                        .group_best = o->u.route.group_best,
                        .normalise = o->u.route.normalise,
                        .two = two,
                        .scale = o->u.route.scale,
                        .few = device_new((size_t)cuda_expert_few_of(n_pair, o->k, two).end),
                        .wide = device_new((size_t)cuda_expert_wide_of(n_pair, o->k).end)};
}

static void check_list(const cuda_route *a, const void *there, cuda_expert_list l, int64_t tile,
                       int64_t align, const float *chosen) {
    uint8_t *list = malloc((size_t)l.end);
    const int64_t n_pair = a->n_row * a->n_used;
    int *seen = calloc((size_t)n_pair, sizeof *seen);
    read_back(list, there, (size_t)l.end);
    const int32_t *n = (const int32_t *)(const void *)list,
                  *pairs = (const int32_t *)(const void *)(list + l.pairs);
    const cuda_expert_tile *tiles = (const cuda_expert_tile *)(const void *)(list + l.tiles);
    assert_true(n[0] >= 1 && n[0] <= l.max_tile && n[1] <= l.max_pair);
    for (int32_t i = 0; i < n[0]; i++) {
        assert_true(tiles[i].n >= 1 && tiles[i].n <= tile);
        if (i == 0 || tiles[i].expert != tiles[i - 1].expert)
            assert_int_equal(tiles[i].first % align, 0);
        for (int32_t p = 0; p < tiles[i].n; p++) {
            const int32_t pair = pairs[tiles[i].first + p];
            assert_true(pair >= 0 && pair < n_pair && !seen[pair]++);
            assert_int_equal(route_expert(chosen + pair / a->n_used * a->ldo, pair % a->n_used),
                             tiles[i].expert);
        }
    }
    for (int64_t p = 0; p < n_pair; p++)
        assert_int_equal(seen[p], 1);
    free(list), free(seen);
}

static void routes(const op *o, int64_t n_row, bool biased) {
    float *logits = random_rows(n_row * o->k, 3, 4), *bias = random_rows(o->k, 4, 0.3f);
    float *out = malloc((size_t)(n_row * o->n) * sizeof *out), want[2 * ROUTE_MAX_USED];
    float *there = device_copy(logits, (size_t)(n_row * o->k) * sizeof *there),
          *bias_there = device_copy(bias, (size_t)o->k * sizeof *bias),
          *out_there = device_new((size_t)(n_row * o->n) * sizeof *out);
    const cuda_route a = route_of(o, there, biased ? bias_there : NULL, n_row, out_there, false);
    OK(cuda->route(&a, stream));
    read_back(out, out_there, (size_t)(n_row * o->n) * sizeof *out);
    for (int64_t r = 0; r < n_row; r++) {
        route_row(o, logits + r * o->k, biased ? bias : NULL, NULL, NULL, want);
        for (int64_t i = 0; i < o->n; i++) {
            const float is = out[r * o->n + i];
            if (i < o->u.route.n_used ? is != want[i]
                                      : !(fabsf(is - want[i]) <= 1e-5f * fabsf(want[i]) + 1e-7f))
                fail_msg("score %d of %d experts, row %d of %d: %g, not %g", (int)o->u.route.score, (int)o->k,
                         (int)r, (int)n_row, (double)is, (double)want[i]);
        }
    }
    check_list(&a, a.few, cuda_expert_few_of(n_row * a.n_used, o->k, false), CUDA_EXPERT_FEW, 1, out);
    check_list(&a, a.wide, cuda_expert_wide_of(n_row * a.n_used, o->k), CUDA_EXPERT_WIDE, CUDA_EXPERT_ALIGN,
               out);
    drop(there), drop(bias_there), drop(out_there), drop(a.few), drop(a.wide);
    free(logits), free(bias), free(out);
}

static void routing(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 3, 64, MAX_ROWS};
    for (int score = SCORE_SOFTMAX; score <= SCORE_SIGMOID_LATE; score++)
        for (int i = 0; i < 4; i++) {
            const op few = router((score_kind)score, 6, 2, 1, 1),
                     many = router((score_kind)score, 128, 8, 1, 1),
                     groups = router((score_kind)score, 256, 8, 8, 4),
                     most = router((score_kind)score, 1000, 10, 1, 1);
            routes(&few, rows[i], i % 2);
            routes(&many, rows[i], score == SCORE_SIGMOID);
            routes(&groups, rows[i], true);
            routes(&most, rows[i], false);
        }
}

/* The codes that a router leaves of its input x [k], where `experts` reads them (experts.cuh). */
static void check_codes(const float *x, const uint8_t *row, int64_t k) {
    const struct {
        float scale;
        int32_t sum;
    } *meta = (const void *)(row + (k + 255) / 256 * 256);
    for (int64_t g = 0; g < k / 32; g++) {
        float largest = 0;
        int32_t sum = 0;
        for (int64_t i = 32 * g; i < 32 * g + 32; i++)
            largest = fmaxf(largest, fabsf(x[i]));
        for (int64_t i = 32 * g; i < 32 * g + 32; i++) {
            const int64_t quad = i / 4, at = quad / 16 * 16 + quad % 4 * 4 + quad / 8 % 2 * 2 + quad / 4 % 2;
            const int8_t code = (int8_t)row[4 * at + i % 4];
            assert_int_equal(code, (int)rintf(x[i] * (127 / largest)));
            sum += code;
        }
        assert_true(meta[g].scale == largest / 127);
        assert_int_equal(meta[g].sum, sum);
    }
}

/* With the router's product: logits against sums in double, and choices by these logits. */
static void router_of(type_id type, int64_t n_expert, int64_t k, int64_t n_row, bool normed, bool many) {
    const op o = router(SCORE_SOFTMAX, n_expert, 4, 1, 1);
    matrix m = matrix_open(type, n_expert, k, MATRIX_RANDOM, 3);
    const view w = matrix_there(&m);
    float *x = random_rows(n_row * k, 7, 2), *norm = random_rows(k, 8, 1),
          *row = malloc((size_t)k * sizeof *row);
    float *there = device_copy(x, (size_t)(n_row * k) * sizeof *x),
          *norm_there = device_copy(norm, (size_t)k * sizeof *x);
    float *logits = malloc((size_t)(n_row * n_expert) * sizeof *logits),
          *out = malloc((size_t)(n_row * o.n) * sizeof *out);
    float *normed_there = device_new((size_t)(n_row * k) * sizeof *x), want[2 * ROUTE_MAX_USED];
    unsigned *none = calloc((size_t)cuda_route_ended(n_row), sizeof *none);
    cuda_route a = route_of(&o, device_new((size_t)(n_row * n_expert) * sizeof(float)), NULL, n_row,
                            device_new((size_t)(n_row * o.n) * sizeof(float)), false);
    a.w = w;
    a.x = there;
    a.ld_row = a.ld_normed = k;
    a.norm = normed ? norm_there : NULL;
    a.eps = 1e-5f;
    a.normed = normed_there;
    a.many = many;
    const int64_t code_bytes = cuda_expert_row(k);
    uint8_t *codes = malloc((size_t)(n_row * code_bytes));
    float *input = malloc((size_t)(n_row * k) * sizeof *input);
    a.codes = !many && k % 64 == 0 ? device_new((size_t)(n_row * code_bytes)) : NULL;
    a.ended = device_copy(none, (size_t)cuda_route_ended(n_row) * sizeof *none);
    for (int again = 0; again < 2; again++) /* counters are zeros again */
        OK(cuda->route(&a, stream));
    read_back(logits, a.logits, (size_t)(n_row * n_expert) * sizeof *logits);
    read_back(out, a.out, (size_t)(n_row * o.n) * sizeof *out);
    read_back(input, normed ? a.normed : there, (size_t)(n_row * k) * sizeof *input);
    if (a.codes) {
        read_back(codes, a.codes, (size_t)(n_row * code_bytes));
        drop(a.codes);
    }
    for (int64_t r = 0; r < n_row; r++) {
        double squares = 0;
        for (int64_t i = 0; i < k; i++)
            squares += (double)x[r * k + i] * (double)x[r * k + i];
        const double factor = normed ? 1 / sqrt(squares / (double)k + 1e-5) : 1;
        for (int64_t e = 0; e < n_expert; e++) {
            double sum = 0, size = 0;
            matrix_row(&m, e, row);
            for (int64_t i = 0; i < k; i++) {
                const double p =
                    (double)row[i] * (double)x[r * k + i] * (normed ? factor * (double)norm[i] : 1);
                sum += p, size += fabs(p);
            }
            if (!(fabs(sum - (double)logits[r * n_expert + e]) <= 1e-5 * size))
                fail_msg("a router of %d x %d, row %d: %g, not %g", (int)n_expert, (int)k, (int)r,
                         (double)logits[r * n_expert + e], sum);
        }
        if (a.codes)
            check_codes(input + r * k, codes + r * code_bytes, k);
        route_row(&o, logits + r * n_expert, NULL, NULL, NULL, want);
        for (int64_t i = 0; i < o.u.route.n_used; i++)
            assert_true(out[r * o.n + i] == want[i]);
    }
    check_list(&a, a.few, cuda_expert_few_of(n_row * a.n_used, n_expert, false), CUDA_EXPERT_FEW, 1, out);
    drop(w.data), drop(there), drop(norm_there), drop(normed_there), drop(a.logits), drop(a.out), drop(a.few),
        drop(a.wide), drop(a.ended);
    matrix_close(&m);
    free(x), free(norm), free(row), free(logits), free(out), free(none), free(codes), free(input);
}

static void routers(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_F32, TYPE_BF16, TYPE_F16};
    static const int64_t rows[] = {1, 5, 64, 130};
    for (int i = 0; i < 12; i++) {
        router_of(types[i % 3], 128, 512, rows[i / 3], i % 2, false);
        router_of(types[i % 3], 10, 100, rows[i / 3], i % 2 == 0, false);
        router_of(types[i % 3], 130, 4132, rows[i / 3], i % 2 == 0, false);
        router_of(types[i % 3], 300, 80, rows[i / 3], false, true);
    }
}

/* ---- products ---- */

typedef struct mixture {
    int64_t n_expert, n_used, d, ff; /* gates and ups [ff, d], downs [d, ff] */
} mixture;

typedef struct mixture_case {
    mixture of;
    matrix m[3]; /* gates, ups, downs of all experts */
    view w[3];
    op router;
    float *x, *logits, *x_there, *logits_there;
} mixture_case;

static mixture_case case_open(const char *uniform, type_id type, const mixture *of) {
    mixture_case c = {.of = *of, .router = router(SCORE_SOFTMAX, of->n_expert, of->n_used, 1, 1)};
    for (int i = 0; i < 3; i++) {
        const int64_t n = of->n_expert * (i < 2 ? of->ff : of->d), k = i < 2 ? of->d : of->ff;
        c.m[i] = uniform ? matrix_open_uniform(uniform, n, k, MATRIX_RANDOM, (uint64_t)(7 + i))
                         : matrix_open(type, n, k, MATRIX_RANDOM, (uint64_t)(7 + i));
        c.w[i] = matrix_there(&c.m[i]);
    }
    c.x = random_rows(MAX_ROWS * of->d, 5, 1);
    c.logits = random_rows(MAX_ROWS * of->n_expert, 6, 3);
    c.x_there = device_copy(c.x, (size_t)(MAX_ROWS * of->d) * sizeof *c.x);
    c.logits_there = device_copy(c.logits, (size_t)(MAX_ROWS * of->n_expert) * sizeof *c.x);
    return c;
}
static void case_close(mixture_case *c) {
    for (int i = 0; i < 3; i++) {
        drop(c->w[i].data);
        matrix_close(&c->m[i]);
    }
    drop(c->x_there), drop(c->logits_there);
    free(c->x), free(c->logits);
}

/* The layer's output for rows [first, first + n_row): [n_row, d], to be freed. leaves: codes of one row to
 * leave. */
static float *layer_leaving(const mixture_case *c, int64_t first, int64_t n_row, bool two, bool wide,
                            cuda_codes leaves) {
    const mixture *m = &c->of;
    const int64_t n_pair = n_row * m->n_used;
    float *chosen = device_new((size_t)(n_row * c->router.n) * sizeof(float));
    float *neurons = device_new((size_t)(n_pair * m->ff) * sizeof(float));
    float *y = device_new((size_t)(n_row * m->d) * sizeof(float)),
          *out = malloc((size_t)(n_row * m->d) * sizeof *out);
    const cuda_route r =
        route_of(&c->router, c->logits_there + first * m->n_expert, NULL, n_row, chosen, two);
    cuda_experts up = {.w = {c->w[0], c->w[1]},
                       .n_w = 2,
                       .n_expert = m->n_expert,
                       .n_used = m->n_used,
                       .n = m->ff,
                       .n_row = n_row,
                       .x = c->x_there + first * m->d,
                       .ldx = m->d,
                       .chosen = chosen,
                       .ldc = c->router.n,
                       .few = r.few,
                       .wide = wide ? r.wide : NULL,
                       .two = two,
                       .gated = true,
                       .act = ACT_SILU,
                       .y = {neurons},
                       .ldy = {m->n_used * m->ff}};
    cuda_experts down = up;
    down.w[0] = c->w[2];
    down.n_w = 1;
    down.n = m->d;
    down.x = neurons;
    down.ldx = m->n_used * m->ff;
    up.next = c->w[2];
    down.row_leaves = leaves;
    down.each = down.sum = down.weighted = true;
    down.gated = false;
    down.y[0] = y;
    down.ldy[0] = m->d;
    const int64_t a = cuda_experts_scratch(&up), b = cuda_experts_scratch(&down);
    up.scratch = down.scratch = device_new((size_t)(a > b ? a : b) + 256);
    if (!wide && cuda_experts_leave(&c->w[2], two) && c->w[0].format.layout == PACK_TILE &&
        !cuda_experts_quantize(n_row, m->n_used))
        down.codes = up.leaves = device_new((size_t)cuda_experts_codes(n_row, m->n_used, m->ff));
    OK(cuda->route(&r, stream));
    OK(cuda->experts(&up, stream));
    OK(cuda->experts(&down, stream));
    read_back(out, y, (size_t)(n_row * m->d) * sizeof *out);
    drop(chosen), drop(neurons), drop(y), drop(r.few), drop(r.wide), drop(up.scratch);
    if (up.leaves)
        drop(up.leaves);
    return out;
}

static float *layer_of(const mixture_case *c, int64_t first, int64_t n_row, bool two, bool wide) {
    return layer_leaving(c, first, n_row, two, wide, (cuda_codes){0});
}

/* A product of one row has the same bits with the codes that the layer leaves. */
static void check_left(const mixture_case *c, const char *name, const char *recipe, bool normed) {
    const int64_t d = c->of.d, n = 48;
    matrix m = matrix_open_uniform(recipe, n, d, MATRIX_RANDOM, 12);
    const size_t bytes = cuda->codes_bytes(d);
    float *norm = random_rows(d, 8, 1), *norm_there = device_copy(norm, (size_t)d * sizeof *norm), *y, *x,
          is[2][48];
    cuda_codes left = {device_new(bytes), normed ? norm_there : NULL, m.view.format.group};
    OK(cuda->fill(left.data, 0, bytes, stream));
    y = layer_leaving(c, 0, 1, false, false, left);
    x = device_copy(y, (size_t)d * sizeof *y);
    cuda_linear a = {.n_w = 1,
                     .w = {matrix_there(&m)},
                     .n_row = 1,
                     .x = x,
                     .ldx = d,
                     .norm = left.norm,
                     .eps = 1e-5f,
                     .y = {device_new(sizeof is[0])},
                     .ldy = {n},
                     .scratch = device_new(cuda->linear_scratch(1, d, false))};
    for (int i = 0; i < 2; i++) {
        a.codes = i ? left.data : NULL;
        OK(cuda->linear(&a, stream));
        read_back(is[i], a.y[0], sizeof is[i]);
    }
    if (!isfinite(is[0][0]) || memcmp(is[0], is[1], sizeof is[0]) != 0)
        fail_msg("%s: a product in %s has other bits with what is left", name, recipe);
    drop(left.data), drop(x), drop(a.y[0]), drop(a.scratch), drop(a.w[0].data), drop(norm_there);
    matrix_close(&m);
    free(norm), free(y);
}

/* ---- experts of which some are missing ---- */

/* What experts that are in `places` give for the first rows, apart. */
typedef struct part_case {
    float *chosen, *outputs; /* on the device: [n_row, 2 * n_used], [n_row * n_used, d] */
    const int16_t *here;
    void *memory[8];
    int n;
} part_case;

static void *keep(part_case *p, void *memory) {
    p->memory[p->n++] = memory;
    return memory;
}

/* The matrices of the experts that have a place, in the order of these. */
static view some_of(const mixture_case *c, int i, const int16_t *places, part_case *p) {
    uint64_t each = 0;
    view w = c->w[i];
    pack_bytes(&w.format, w.n / c->of.n_expert, w.k, &each);
    uint8_t *to = keep(p, device_new((size_t)(each * (uint64_t)c->of.n_expert)));
    for (int64_t e = 0; e < c->of.n_expert; e++)
        if (places[e] >= 0)
            OK(cuda->on_device(to + (uint64_t)places[e] * each, (const uint8_t *)w.data + (uint64_t)e * each,
                               (size_t)each, stream));
    w.data = to;
    return w;
}

static part_case part_open(const mixture_case *c, int64_t n_row, bool two, const int16_t *places) {
    const mixture *m = &c->of;
    part_case p = {.n = 0};
    p.chosen = keep(&p, device_new((size_t)(n_row * c->router.n) * sizeof(float)));
    float *neurons = keep(&p, device_new((size_t)(n_row * m->n_used * m->ff) * sizeof(float)));
    const cuda_route r = route_of(&c->router, c->logits_there, NULL, n_row, p.chosen, two);
    p.here = keep(&p, device_copy(places, (size_t)m->n_expert * sizeof *places));
    cuda_experts up = {.w = {some_of(c, 0, places, &p), some_of(c, 1, places, &p)},
                       .n_w = 2,
                       .n_expert = m->n_expert,
                       .n_used = m->n_used,
                       .n = m->ff,
                       .n_row = n_row,
                       .x = c->x_there,
                       .ldx = m->d,
                       .chosen = p.chosen,
                       .ldc = c->router.n,
                       .few = r.few,
                       .two = two,
                       .gated = true,
                       .act = ACT_SILU,
                       .y = {neurons},
                       .ldy = {m->n_used * m->ff},
                       .here = p.here};
    cuda_experts down = up;
    down.w[0] = some_of(c, 2, places, &p);
    down.n_w = 1;
    down.n = m->d;
    down.x = neurons;
    down.ldx = m->n_used * m->ff;
    down.each = down.sum = down.weighted = down.apart = true;
    down.gated = false;
    const int64_t a = cuda_experts_scratch(&up), b = cuda_experts_scratch(&down);
    up.scratch = down.scratch = keep(&p, device_new((size_t)(a > b ? a : b) + 256));
    p.outputs = cuda_experts_part(&down);
    OK(cuda->route(&r, stream));
    OK(cuda->experts(&up, stream));
    OK(cuda->experts(&down, stream));
    OK(cuda->stream_sync(stream));
    drop(r.few), drop(r.wide);
    return p;
}

static void part_close(part_case *p) {
    while (p->n > 0)
        drop(p->memory[--p->n]);
}

/* Some experts are here, and the test plays the host for the others: twice, so that counters go on. */
static void check_apart(const mixture_case *c, const char *name, int64_t n_row, bool two) {
    enum { LINE = 32 /* words */ };
    const mixture *m = &c->of;
    const size_t n_pair = (size_t)(n_row * m->n_used), n_out = n_pair * (size_t)m->d;
    int16_t here[ROUTE_MAX_EXPERT], others[ROUTE_MAX_EXPERT];
    int n_here = 0, n_other = 0;
    for (int64_t e = m->n_expert - 1; e >= 0; e--) { /* in another order than their numbers' */
        here[e] = (int16_t)(e % 3 ? n_here++ : -1);
        others[e] = (int16_t)(e % 3 ? -1 : n_other++);
    }
    part_case p = part_open(c, n_row, two, here), rest = part_open(c, n_row, two, others);
    float *want = layer_of(c, 0, n_row, two, false), *is = malloc((size_t)(n_row * m->d) * sizeof *is);
    const size_t words = 2 * LINE + n_out + (size_t)(n_row * m->d) + 2 * n_pair;
    const size_t bytes = (words * sizeof(float) + 4095) / 4096 * 4096;
    uint32_t *shared = aligned_alloc(4096, bytes);
    void *there = NULL;
    memset(shared, 0, bytes);
    OK(cuda->map(shared, bytes, &there));
    uint32_t *const mapped = there;
    float *const outputs = (float *)(void *)(shared + 2 * LINE);
    read_back(outputs, rest.outputs, n_out * sizeof *outputs);
    unsigned *counts = device_new(CUDA_MAIL_BYTES);
    OK(cuda->fill(counts, 0, CUDA_MAIL_BYTES, stream));
    const cuda_mail mail = {mapped, mapped + LINE, counts};
    float *y = device_new((size_t)(n_row * m->d) * sizeof *y);
    const cuda_hand_down down = {.mail = mail,
                                 .x = c->x_there,
                                 .ldx = m->d,
                                 .chosen = p.chosen,
                                 .ldc = c->router.n,
                                 .to_x = (float *)(void *)(mapped + 2 * LINE) + n_out,
                                 .to_chosen = (float *)(void *)(mapped + 2 * LINE) + n_out + n_row * m->d,
                                 .k = m->d,
                                 .n_used = m->n_used,
                                 .n_row = n_row,
                                 .ended = counts + 2};
    const cuda_hand_up up = {.mail = mail,
                             .part = p.outputs,
                             .host = (const float *)(void *)(mapped + 2 * LINE),
                             .here = p.here,
                             .chosen = p.chosen,
                             .ldc = c->router.n,
                             .y = y,
                             .ldy = m->d,
                             .n = m->d,
                             .n_used = m->n_used,
                             .n_row = n_row,
                             .weighted = true};
    for (uint32_t turn = 1; turn <= 2; turn++) {
        OK(cuda->hand_down(&down, stream));
        OK(cuda->hand_up(&up, stream));
        OK(cuda->handed_down(shared, turn, stream));
        if (memcmp(outputs + n_out, c->x, (size_t)(n_row * m->d) * sizeof *is) != 0)
            fail_msg("%s: other rows are handed down", name);
        __atomic_store_n(shared + LINE, turn, __ATOMIC_RELEASE);
        read_back(is, y, (size_t)(n_row * m->d) * sizeof *is);
        if (memcmp(is, want, (size_t)(n_row * m->d) * sizeof *is) != 0)
            fail_msg("%s: %d rows have other bits when some experts are the host's", name, (int)n_row);
    }
    OK(cuda->unpin(shared));
    drop(counts), drop(y);
    part_close(&p), part_close(&rest);
    free(shared), free(want), free(is);
}

static double dot(const matrix *m, int64_t row, const double *x, float *memory) {
    double sum = 0;
    matrix_row(m, row, memory);
    for (int64_t i = 0; i < m->k; i++)
        sum += (double)memory[i] * x[i];
    return sum;
}

/* The distance of row r's output from sums in double, relative to them (root mean squares). */
static double error_of(const mixture_case *c, int64_t r, const float *is) {
    const mixture *m = &c->of;
    float chosen[2 * ROUTE_MAX_USED], *memory = malloc((size_t)(m->d + m->ff) * sizeof *memory);
    double *x = calloc((size_t)(2 * m->d + m->ff), sizeof *x), *sum = x + m->d, *neurons = sum + m->d;
    double error = 0, all = 0;
    route_row(&c->router, c->logits + r * m->n_expert, NULL, NULL, NULL, chosen);
    for (int64_t i = 0; i < m->d; i++)
        x[i] = (double)c->x[r * m->d + i];
    for (int64_t u = 0; u < m->n_used; u++) {
        const int64_t e = route_expert(chosen, u);
        for (int64_t i = 0; i < m->ff; i++) {
            const double g = dot(&c->m[0], e * m->ff + i, x, memory);
            neurons[i] = g / (1 + exp(-g)) * dot(&c->m[1], e * m->ff + i, x, memory);
        }
        for (int64_t i = 0; i < m->d; i++)
            sum[i] += (double)chosen[m->n_used + u] * dot(&c->m[2], e * m->d + i, neurons, memory);
    }
    for (int64_t i = 0; i < m->d; i++) {
        error += (sum[i] - (double)is[i]) * (sum[i] - (double)is[i]);
        all += sum[i] * sum[i];
    }
    free(memory), free(x);
    return sqrt(error / all);
}

static void check_layer(const mixture_case *c, const char *name, bool two, bool wide, double bound) {
    static const int64_t rows[] = {1, 5, 64, MAX_ROWS};
    const size_t row = (size_t)c->of.d * sizeof(float);
    float *all = layer_of(c, 0, MAX_ROWS, two, wide);
    double worst = 0;
    for (int64_t r = 0; r < 2; r++)
        worst = fmax(worst, error_of(c, r, all + r * c->of.d));
    printf("%s, %s: %.1e\n", name, wide ? "prompt" : two ? "16 bits" : "8 bits", worst);
    if (!(worst <= bound))
        fail_msg("%s: %g from sums in double", name, worst);
    for (int i = 0; i < 4; i++)
        for (int64_t first = 0; first < 8; first += 3) {
            const int64_t n = rows[i] + first > MAX_ROWS ? MAX_ROWS - first : rows[i];
            float *some = layer_of(c, first, n, two, wide);
            if (memcmp(some, all + first * c->of.d, (size_t)n * row) != 0)
                fail_msg("%s: %d rows from %d on have other bits than among others", name, (int)n,
                         (int)first);
            free(some);
        }
    free(all);
}

static void products(void **state) {
    (void)state;
    static const mixture shapes[] = {{16, 4, 256, 128}, {5, 2, 320, 96},     {40, 8, 1024, 192},
                                     {5, 2, 4672, 96},  {20, 12, 128, 1600}, {18, 17, 256, 96},
                                     {64, 4, 1056, 96}, {64, 4, 160, 1056}}; /* blocks have several panels */
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q8_0, TYPE_Q4_K, TYPE_Q6_K,  TYPE_IQ4_NL,
                                    TYPE_BF16, TYPE_F16,  TYPE_F32,  TYPE_F8G64, TYPE_F4G64};
    static const char *const recipes[] = {"u3g32a", "u2g16", "u5g64", "u4g128", "u4growa", "u4g64t"};
    for (size_t t = 0; t < sizeof types / sizeof *types + sizeof recipes / sizeof *recipes; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            if (s >= 6 && t % 5) /* large */
                continue;
            const size_t n_type = sizeof types / sizeof *types;
            const char *recipe = t < n_type ? NULL : recipes[t - n_type];
            const type_id type = t < n_type ? types[t] : TYPE_F32;
            const bool floats = !recipe && t >= 5,
                       k_quant = !recipe && (type == TYPE_Q4_K || type == TYPE_Q6_K);
            mixture of = shapes[s];
            if (k_quant || type == TYPE_F8G64 || type == TYPE_F4G64)
                of.d = 256, of.ff = 256;
            mixture_case c = case_open(recipe, type, &of);
            const char *name = recipe ? recipe : type_get(type)->name;
            check_layer(&c, name, false, false, floats ? 1e-5 : 0.03);
            check_layer(&c, name, true, false, floats ? 1e-5 : 1e-3);
            for (int64_t n_row = 1; n_row <= 64; n_row *= 8)
                check_apart(&c, name, n_row, t % 2 && n_row > 1);
            if (of.d % 32 == 0) {
                check_left(&c, name, "u4g32", false);
                check_left(&c, name, "u4g32", true);
                check_left(&c, name, "u4g64", t % 2);
            }
            if (cuda->has_wide())
                check_layer(&c, name, true, true, floats ? 1e-5 : 3e-3);
            case_close(&c);
        }
}

int main(int argc, char **argv) {
    if (!gpu_open(argc, argv))
        return gpu_missing();
    const struct CMUnitTest tests[] = {cmocka_unit_test(routing), cmocka_unit_test(routers),
                                       cmocka_unit_test(products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
