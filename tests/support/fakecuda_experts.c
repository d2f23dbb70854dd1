/* fakecuda_experts.c - the fake table's mixtures of experts, by the processor's kernels. */
#include "support/fakecuda_parts.h"

#include "kernels/route.h"

#include <stdlib.h>
#include <string.h>

static void *there(void *p) {
    return (void *)((uintptr_t)p | DEVICE_BIT);
}

/* Fills a list, the pairs of an expert in descending order: no result depends on it. */
static void make_list(const cuda_route *a, const cuda_expert_list *l, uint8_t *to, int64_t tile,
                      int64_t align) {
    cuda_expert_tile *tiles = (cuda_expert_tile *)(void *)(to + l->tiles);
    int32_t *pairs = (int32_t *)(void *)(to + l->pairs), *n = (int32_t *)(void *)to;
    int64_t n_tile = 0, n_pair = 0;
    for (int64_t e = 0; e < a->n_expert; e++) {
        const int64_t first = n_pair;
        for (int64_t p = a->n_row * a->n_used - 1; p >= 0; p--)
            if (route_expert((const float *)real(a->out) + p / a->n_used * a->ldo, p % a->n_used) == e)
                pairs[n_pair++] = (int32_t)p;
        for (int64_t at = first; at < n_pair; at += tile)
            tiles[n_tile++] = (cuda_expert_tile){(int32_t)e, (int32_t)at,
                                                 (int32_t)(n_pair - at < tile ? n_pair - at : tile), 0};
        while (n_pair % align)
            pairs[n_pair++] = -1;
    }
    n[0] = (int32_t)n_tile;
    n[1] = (int32_t)n_pair;
    if (n_tile > l->max_tile || n_pair > l->max_pair)
        fake_misuse("a list of experts is larger than its memory");
}

/* The router's product, of normed rows if it has a norm. */
static int route_logits(const cuda_route *a) {
    const bool norms = a->norm != NULL;
    const cuda_linear one = {.w = {a->w},
                             .n_w = 1,
                             .n_row = a->n_row,
                             .x = norms ? a->normed : a->x,
                             .ldx = norms ? a->ld_normed : a->ld_row,
                             .bias = {a->w_bias},
                             .y = {a->logits},
                             .ldy = {a->ldx},
                             .scratch = a->few ? a->few : a->wide};
    if ((a->many && (norms || a->codes)) || a->w.format.layout != PACK_ROWS || !a->ended)
        return fake_misuse("a router cannot be computed so");
    for (int64_t r = 0; r < a->n_row && norms; r++)
        kernels_table()->norm(NORM_RMS, (const float *)real(a->x) + r * a->ld_row, real(a->norm), NULL,
                              (float *)real(a->normed) + r * a->ld_normed, a->w.k, 1, false, a->eps);
    return fake_multiply(&one);
}

int fake_route(const cuda_route *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(route, fake_route);
    const int error = a->w.data ? route_logits(a) : 0;
    if (error)
        return error;
    const int64_t n_pair = a->n_row * a->n_used;
    const cuda_expert_list few = cuda_expert_few_of(n_pair, a->n_expert, a->two),
                           wide = cuda_expert_wide_of(n_pair, a->n_expert);
    op o = {.kind = OP_ROUTE, .k = a->n_expert, .n = 2 * a->n_used};
    o.u.route.score = a->score;
    o.u.route.n_used = a->n_used;
    o.u.route.n_group = a->n_group;
    o.u.route.group_used = a->group_used;
    o.u.route.group_best = a->group_best;
    o.u.route.normalise = a->normalise;
    o.u.route.scale = a->scale;
    for (int64_t r = 0; r < a->n_row; r++)
        route_row(&o, (const float *)real(a->logits) + r * a->ldx, real(a->bias), real(a->times), NULL,
                  (float *)real(a->out) + r * a->ldo);
    if (a->few)
        make_list(a, &few, real(a->few), CUDA_EXPERT_FEW / (a->two ? 2 : 1), 1);
    if (a->wide)
        make_list(a, &wide, real(a->wide), CUDA_EXPERT_WIDE, CUDA_EXPERT_ALIGN);
    return 0;
}

/* The product of a pair with its expert's part of matrix i, to y. */
static int multiply_pair(const cuda_experts *a, const cuda_expert_tile *tile, int64_t pair, int i, float *y) {
    const int64_t place = pair % a->n_used;
    uint64_t bytes = 0;
    cuda_linear one = {.n_w = 1, .n_row = 1, .two = a->two, .w = {a->w[i]}, .ldy = {a->n}};
    pack_bytes(&a->w[i].format, a->w[i].n / a->n_expert, a->w[i].k, &bytes);
    const int32_t at = a->here ? ((const int16_t *)real(a->here))[tile->expert] : tile->expert;
    one.w[0].data = (const uint8_t *)a->w[i].data + (uint64_t)at * bytes;
    one.w[0].n = a->n;
    one.x = a->x + pair / a->n_used * a->ldx + (a->each ? place * a->w[i].k : 0);
    one.ldx = a->w[i].k;
    one.bias[0] = a->bias[i] ? a->bias[i] + tile->expert * a->n : NULL;
    one.y[0] = there(y);
    one.scratch = a->scratch;
    return fake_multiply(&one);
}

/* Where a pair's result of matrix i belongs. parts: all pairs' results, which are added up. */
static float *pair_output(const cuda_experts *a, int64_t pair, int i, float *parts) {
    if (a->sum)
        return parts + pair * a->n;
    return (float *)real(a->y[i]) + pair / a->n_used * a->ldy[i] + pair % a->n_used * a->n;
}

static int run_pair(const cuda_experts *a, const cuda_expert_tile *tile, int64_t pair, float *y[2],
                    float *parts) {
    const kernel_table *t = kernels_table();
    const float *chosen = (const float *)real(a->chosen) + pair / a->n_used * a->ldc;
    if (route_expert(chosen, pair % a->n_used) != tile->expert)
        return fake_misuse("a row is multiplied by an expert that it has not chosen");
    for (int i = 0; i < a->n_w; i++) {
        const int e = multiply_pair(a, tile, pair, i, y[i]);
        if (e)
            return e;
        if (a->weighted && !a->sum)
            t->scale(y[i], chosen[a->n_used + pair % a->n_used], y[i], a->n);
    }
    if (a->gated)
        t->gate(a->act, y[0], y[1], y[0], a->n);
    for (int i = 0; i < (a->gated ? 1 : a->n_w); i++) {
        float *out = pair_output(a, pair, i, parts);
        if (a->adds && !a->sum)
            t->add(out, y[i], 1, out, a->n);
        else
            memcpy(out, y[i], (size_t)a->n * sizeof *out);
    }
    return 0;
}

static void add_up(const cuda_experts *a, const float *parts, float *sum) {
    const kernel_table *t = kernels_table();
    for (int64_t r = 0; r < a->n_row; r++) {
        const float *weights = (const float *)real(a->chosen) + r * a->ldc + a->n_used;
        float *out = (float *)real(a->y[0]) + r * a->ldy[0];
        memset(sum, 0, (size_t)a->n * sizeof *sum);
        for (int64_t u = 0; u < a->n_used; u++)
            t->add(sum, parts + (r * a->n_used + u) * a->n, a->weighted ? weights[u] : 1, sum, a->n);
        if (a->adds)
            t->add(out, sum, 1, out, a->n);
        else
            memcpy(out, sum, (size_t)a->n * sizeof *out);
    }
}

static bool is_missing(const cuda_experts *a, int32_t expert) {
    return a->here && ((const int16_t *)real(a->here))[expert] < 0;
}

static int run_tiles(const cuda_experts *a, float *y[2], float *parts) {
    const int64_t n_pair = a->n_row * a->n_used;
    const bool wide = a->wide && a->w[0].format.layout == PACK_TILE;
    const cuda_expert_list l =
        wide ? cuda_expert_wide_of(n_pair, a->n_expert) : cuda_expert_few_of(n_pair, a->n_expert, a->two);
    const uint8_t *list = real(wide ? a->wide : a->few);
    const cuda_expert_tile *tiles = (const cuda_expert_tile *)(const void *)(list + l.tiles);
    const int32_t *pairs = (const int32_t *)(const void *)(list + l.pairs);
    for (int32_t i = 0; i < *(const int32_t *)(const void *)list; i++)
        for (int32_t p = 0; p < tiles[i].n && !is_missing(a, tiles[i].expert); p++) {
            const int e = run_pair(a, &tiles[i], pairs[tiles[i].first + p], y, parts);
            if (e)
                return e;
        }
    return 0;
}

int fake_experts(const cuda_experts *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(experts, fake_experts);
    if (fake_is_put_in_order(a->w, a->n_w))
        return fake_misuse("experts may be read while they are still put in order");
    if (a->row_leaves.data && (!a->sum || a->n_row != 1 || a->n % 32))
        return fake_misuse("products of experts cannot leave codes of their sum");
    if (!a->scratch || (a->leaves && (a->wide || a->two)))
        return fake_misuse("products of experts have no scratch, or leave codes that they cannot");
    const size_t n = (size_t)(a->n_row * a->n_used * a->n) * sizeof(float);
    float *y[2] = {malloc((size_t)a->n * sizeof(float)), malloc((size_t)a->n * sizeof(float))};
    float *parts = a->sum ? malloc(n) : NULL;
    if ((a->here && a->wide) || (a->apart && (!a->sum || a->row_leaves.data)))
        return fake_misuse("products of experts of which some are missing cannot be computed so");
    const int e = run_tiles(a, y, parts);
    if (!e && a->apart)
        memcpy(real(cuda_experts_part(a)), parts, n);
    if (!e && a->sum && !a->apart)
        add_up(a, parts, y[0]);
    if (!e && a->row_leaves.data)
        fake_leave(&a->row_leaves, real(a->y[0]), a->ldy[0], 1, a->n, false);
    free(y[0]), free(y[1]), free(parts);
    return e;
}

/* ---- experts of the host ---- */

int fake_hand_down(const cuda_hand_down *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(hand_down, fake_hand_down);
    uint32_t *const count = real(a->mail.here);
    const size_t n = (size_t)(2 * a->n_used);
    if (*(const unsigned *)real(a->ended))
        return fake_misuse("a counter is not zero");
    for (int64_t r = 0; r < a->n_row; r++) {
        memcpy((float *)real(a->to_x) + r * a->k, (const float *)real(a->x) + r * a->ldx,
               (size_t)a->k * sizeof(float));
        memcpy((float *)real(a->to_chosen) + (size_t)r * n, (const float *)real(a->chosen) + r * a->ldc,
               n * sizeof(float));
    }
    *(uint32_t *)real(a->mail.down) = ++*count;
    return 0;
}

bool fake_is_answered(const kept_launch *k) {
    const cuda_mail *of = &k->u.hand_up.mail;
    return !k->hand_up || (int32_t)(*(const uint32_t *)real(of->up) - *(const uint32_t *)real(of->here)) >= 0;
}

int fake_handed_down(const uint32_t *down, uint32_t count, cuda_stream s) {
    CALL();
    (void)s;
    return *down == count ? 0 : fake_misuse("the host waits for rows that are not handed down");
}

int fake_hand_up(const cuda_hand_up *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(hand_up, fake_hand_up);
    const kept_launch own = {.hand_up = fake_hand_up, .u.hand_up = *a};
    if (!fake_is_answered(&own)) {
        fake_wait_for_host(s);
        *fake_keep() = own;
        return 0;
    }
    const kernel_table *t = kernels_table();
    const int16_t *const here = real(a->here);
    float *const sum = malloc((size_t)a->n * sizeof *sum);
    for (int64_t r = 0; r < a->n_row; r++) {
        const float *const chosen = (const float *)real(a->chosen) + r * a->ldc;
        float *const out = (float *)real(a->y) + r * a->ldy;
        memset(sum, 0, (size_t)a->n * sizeof *sum);
        for (int64_t u = 0; u < a->n_used; u++) {
            const float *from = real(here && here[route_expert(chosen, u)] >= 0 ? a->part : a->host);
            t->add(sum, from + (r * a->n_used + u) * a->n, a->weighted ? chosen[a->n_used + u] : 1, sum,
                   a->n);
        }
        if (a->adds)
            t->add(out, sum, 1, out, a->n);
        else
            memcpy(out, sum, (size_t)a->n * sizeof *out);
    }
    if (a->leaves.data)
        fake_leave(&a->leaves, real(a->y), a->ldy, 1, a->n, false);
    free(sum);
    return 0;
}

/* The outputs of group g of a row. Its matrix may begin within a panel. */
static int multiply_group(const cuda_groups *a, int64_t row, int64_t g) {
    const int64_t first = g * a->n / PACK_PANEL * PACK_PANEL, before = g * a->n - first;
    float *y = malloc((size_t)(before + a->n) * sizeof *y), *out = (float *)real(a->y) + row * a->ldy;
    uint64_t bytes = 0;
    cuda_linear one = {.n_w = 1, .n_row = 1, .two = a->two, .w = {a->w}, .ldy = {a->n}};
    pack_bytes(&a->w.format, PACK_PANEL, a->w.k, &bytes);
    one.w[0].data = (const uint8_t *)a->w.data + (uint64_t)(first / PACK_PANEL) * bytes;
    one.w[0].n = before + a->n;
    one.x = a->x + row * a->ldx + g * a->step_x;
    one.ldx = a->k;
    one.y[0] = there(y);
    one.scratch = there(y); /* not used */
    const int e = fake_multiply(&one);
    out += g * a->step_y;
    if (!e && a->adds)
        kernels_table()->add(out, y + before, 1, out, a->n);
    else if (!e)
        memcpy(out, y + before, (size_t)a->n * sizeof *out);
    free(y);
    return e;
}

/* The sum of the rows of group g's matrix, in their order. */
static void spread_group(const cuda_groups *a, const view *w, int64_t row, int64_t g) {
    const float *x = (const float *)real(a->x) + row * a->ldx + g * a->step_x;
    float *out = (float *)real(a->y) + row * a->ldy + g * a->step_y;
    float *values = malloc((size_t)a->n * sizeof *values);
    for (int64_t i = 0; i < a->k; i++) {
        pack_read_row(w, g * a->k + i, values);
        if (i == 0 && !a->adds)
            kernels_table()->scale(values, x[i], out, a->n);
        else
            kernels_table()->add(out, values, x[i], out, a->n);
    }
    free(values);
}

int fake_groups(const cuda_groups *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(groups, fake_groups);
    if (fake_is_put_in_order(&a->w, 1))
        return fake_misuse("a matrix may be read while it is still put in order");
    const view w = a->spread ? fake_as_qtile(&a->w) : (view){0};
    int e = 0;
    for (int64_t i = 0; !e && i < a->n_row * a->n_group; i++)
        if (a->spread)
            spread_group(a, &w, i / a->n_group, i % a->n_group);
        else
            e = multiply_group(a, i / a->n_group, i % a->n_group);
    free((void *)(uintptr_t)w.data);
    return e;
}
