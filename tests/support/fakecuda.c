/* fakecuda.c - see fakecuda.h. */
#include "support/fakecuda.h"

#include "kernels/act8.h"
#include "kernels/strategy.h"
#include "quant/gtile.h"
#include "quant/tile.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Set in addresses of kernels alone, on x86-64 as on AArch64. */
#define DEVICE_BIT ((uintptr_t)1 << 55)
enum { OUT_OF_MEMORY = 2, MISUSE = 700, HEADER = 256, MAX_FRESH = 4096, MAX_REORDERED = 256 };

/* A launch that was recorded. */
typedef struct kept {
    int (*linear)(const cuda_linear *a, cuda_stream s);
    int (*attend)(const cuda_attend *a, cuda_stream s);
    int (*norm)(const cuda_norm *a, cuda_stream s);
    int (*each)(const cuda_each *a, cuda_stream s);
    int (*fetch)(const cuda_residual *a, cuda_stream s);
    int (*add)(const cuda_residual_add *a, cuda_stream s);
    int (*best)(const cuda_sample *a, cuda_stream s);
    union {
        cuda_linear linear;
        cuda_attend attend;
        cuda_norm norm;
        cuda_each each;
        cuda_residual fetch;
        cuda_residual_add add;
        cuda_sample best;
    } u;
} kept;
typedef struct graph {
    kept *list;
    size_t n;
} graph;

static struct {
    size_t memory, used, peak, held;
    long calls, fail_at, n_taken, n_wide, n_prompt;
    int error;
    const char *wrong;
    const void *reordered[MAX_REORDERED]; /* matrices, since the host waited */
    size_t n_reordered, n_recorded;       /* of them, those with an event behind them */
    const void *fresh[MAX_FRESH];         /* keys that launches wrote since a copy came between */
    size_t n_fresh;
    graph *recording; /* NULL: launches run */
    long n_replayed, n_sampled, n_fetched;
    bool replaying;
    enum { IDLE, FORKED, FETCHED, JOINED } side; /* what the second stream has come to */
} fake;

/* Launches may read a matrix when the host, or their stream for an event, waited behind its reordering. */
static void order_ends(size_t n) {
    fake.n_reordered -= n;
    memmove(fake.reordered, fake.reordered + n, fake.n_reordered * sizeof *fake.reordered);
    fake.n_recorded = 0;
}

static bool is_put_in_order(const cuda_linear *a) {
    for (int i = 0; i < a->n_w; i++)
        for (size_t j = 0; j < fake.n_reordered; j++)
            if (fake.reordered[j] == a->w[i].data)
                return true;
    return false;
}

static int misuse(const char *what) {
    fake.wrong = fake.wrong ? fake.wrong : what;
    return MISUSE;
}

/* What a launch is kept as while launches are recorded; NULL: it runs. */
static kept *keep(void) {
    graph *g = fake.recording;
    if (!g)
        return NULL;
    g->list = realloc(g->list, (g->n + 1) * sizeof *g->list);
    g->list[g->n] = (kept){0};
    return &g->list[g->n++];
}

/* What every call does first. */
static int call(void) {
    const long n = ++fake.calls;
    return fake.fail_at && n >= fake.fail_at ? fake.error : 0;
}
#define CALL()                                                                                               \
    do {                                                                                                     \
        const int e_ = call();                                                                               \
        if (e_)                                                                                              \
            return e_;                                                                                       \
    } while (0)

static bool is_there(const void *p) {
    return ((uintptr_t)p & DEVICE_BIT) != 0;
}
static void *real(const void *p) {
    if (p && !is_there(p)) {
        fprintf(stderr, "fake CUDA: a kernel got the host's address %p\n", p);
        abort();
    }
    return (void *)((uintptr_t)p & ~DEVICE_BIT);
}

/* ---- the runtime ---- */

static const char *error_text(int error) {
    return error == OUT_OF_MEMORY ? "out of memory" : error == MISUSE ? "misuse" : "the device is lost";
}
static int device_count(int *n) {
    *n = 1;
    return call();
}
static int device_open(int device, cuda_device_info *info) {
    CALL();
    *info = (cuda_device_info){.name = "fake", .major = 9, .n_sm = 2, .memory = fake.memory};
    return device ? misuse("there is one device") : 0;
}
static int memory_now(size_t *left, size_t *all) {
    CALL();
    *left = fake.memory - fake.used;
    *all = fake.memory;
    return 0;
}
static int alloc(void **p, size_t bytes) {
    CALL();
    if (bytes > fake.memory - fake.used)
        return OUT_OF_MEMORY;
    uint8_t *block = aligned_alloc(HEADER, (bytes + 2 * HEADER - 1) / HEADER * HEADER);
    if (!block)
        return OUT_OF_MEMORY;
    memcpy(block, &bytes, sizeof bytes);
    memset(block + HEADER, 0xff, bytes); /* NaNs */
    fake.used += bytes;
    fake.peak = fake.used > fake.peak ? fake.used : fake.peak;
    fake.held++;
    *p = (void *)((uintptr_t)(block + HEADER) | DEVICE_BIT);
    return 0;
}
static int release(void *p) {
    uint8_t *block = (uint8_t *)real(p) - HEADER;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    fake.used -= bytes;
    fake.held--;
    free(block);
    return 0;
}
/* A copy waits for the launches before it, and the next launch for the copy. */
static void copy_comes_between(void) {
    if (fake.recording)
        misuse("something besides launches is recorded");
    fake.n_fresh = 0;
}
static int pin(void *host, size_t bytes) {
    CALL();
    (void)bytes;
    fake.held++;
    return is_there(host) ? misuse("the device's memory is not pinned") : 0;
}
static int map(void *host, size_t bytes, void **device) {
    const int e = pin(host, bytes);
    if (e)
        fake.held--;
    *device = (void *)((uintptr_t)host | DEVICE_BIT);
    return e;
}
static int unpin(void *host) {
    (void)host;
    fake.held--;
    return 0;
}
static int to_device(void *to, const void *host, size_t bytes, cuda_stream s) {
    CALL();
    (void)s;
    copy_comes_between();
    if (!is_there(to) || is_there(host))
        return misuse("a copy to the device has its sides wrong");
    memcpy(real(to), host, bytes);
    return 0;
}
static int to_host(void *host, const void *from, size_t bytes, cuda_stream s) {
    CALL();
    (void)s;
    copy_comes_between();
    if (is_there(host) || !is_there(from))
        return misuse("a copy to the host has its sides wrong");
    memcpy(host, real(from), bytes);
    return 0;
}
static int on_device(void *to, const void *from, size_t bytes, cuda_stream s) {
    CALL();
    (void)s;
    copy_comes_between();
    if (!is_there(to) || !is_there(from))
        return misuse("a copy on the device has its sides wrong");
    memmove(real(to), real(from), bytes);
    return 0;
}
static int fill(void *to, int byte, size_t bytes, cuda_stream s) {
    CALL();
    (void)s;
    copy_comes_between();
    memset(real(to), byte, bytes);
    return 0;
}
static int stream_new(cuda_stream *s) {
    CALL();
    fake.held++;
    *s = &fake;
    return 0;
}
static int stream_free(cuda_stream s) {
    (void)s;
    fake.held--;
    return 0;
}
static int stream_sync(cuda_stream s) {
    CALL();
    (void)s;
    order_ends(fake.n_reordered);
    copy_comes_between();
    return 0;
}

static int event_new(cuda_event *e) {
    return stream_new(e);
}
static int event_free(cuda_event e) {
    return stream_free(e);
}
static int event_record(cuda_event e, cuda_stream s) {
    CALL();
    (void)e;
    (void)s;
    fake.n_recorded = fake.n_reordered;
    return 0;
}
/* The one who fetches waits first, then the one who adds. */
static int stream_wait(cuda_stream s, cuda_event e) {
    CALL();
    (void)e;
    (void)s;
    order_ends(fake.n_recorded);
    fake.side = fake.side == FETCHED ? JOINED : FORKED;
    return 0;
}

/* ---- products ---- */

static int gtile(const view *w, bool to_gpu, cuda_stream s) {
    CALL();
    (void)s;
    if (fake.n_reordered == MAX_REORDERED)
        return misuse("too many matrices are put in order and nothing waits");
    fake.reordered[fake.n_reordered++] = w->data;
    for (int64_t n = 0; w->format.layout == PACK_TILE && n < w->n; n += PACK_PANEL) {
        uint8_t *panel = (uint8_t *)real(w->data) + n / PACK_PANEL * tile_panel_bytes(&w->format, w->k);
        (to_gpu ? gtile_from_qtile : gtile_to_qtile)(&w->format, w->k, panel, panel);
    }
    return 0;
}

/* A copy of the matrix in the processor's order. */
static view as_qtile(const view *w) {
    uint64_t bytes = 0;
    view v = *w;
    pack_bytes(&w->format, w->n, w->k, &bytes);
    uint8_t *copy = aligned_alloc(64, bytes);
    memcpy(copy, real(w->data), bytes);
    for (int64_t n = 0; n < w->n; n += PACK_PANEL) {
        uint8_t *panel = copy + n / PACK_PANEL * tile_panel_bytes(&w->format, w->k);
        gtile_to_qtile(&w->format, w->k, panel, panel);
    }
    v.data = copy;
    return v;
}

typedef struct room {
    float *x, *rest, *part, *y[2];
    void *codes, *scratch;
} room;

static void multiply(const kernel_table *t, const view *v, act_format f, const room *r, const float *bias,
                     float *y) {
    const linear_args a = {.w = v,
                           .q = {r->codes, 1, v->k, f},
                           .bias = bias,
                           .y = y,
                           .ldy = v->n,
                           .n_row = 1,
                           .scratch = r->scratch};
    linear_run(t, &a, 0, v->n);
}

static void product(const view *v, const room *r, bool two, const float *bias, float *y) {
    const kernel_table *t = kernels_table_for("ref");
    const act_format f = act_format_for(&v->format, 8);
    outlier outliers[ACT_OUTLIERS];
    const int n = two ? 0 : act_take_outliers(t, 8, r->x, v->k, r->rest, outliers);
    t->act_quantize(f, n ? r->rest : r->x, v->k, r->codes);
    multiply(t, v, f, r, bias, y);
    if (two) {
        act_residual(f, r->codes, r->x, v->k, r->rest);
        t->act_quantize(f, r->rest, v->k, r->codes);
        multiply(t, v, f, r, NULL, r->part);
        t->add(y, r->part, 1, y, v->n);
    }
    for (int i = 0; i < n; i++) {
        t->column(v, outliers[i].at, 0, v->n, r->part);
        t->add(y, r->part, outliers[i].value, y, v->n);
    }
}

/* A row that is left is kept as it is, with its norm's weights: whoever takes it must be about to read that
 * row, and the weights must have been there already. */
static size_t codes_bytes(int64_t k) {
    return 2 * (size_t)k * sizeof(float);
}

static void leave(const cuda_codes *to, const float *row, int64_t k) {
    float *at = real(to->data);
    memcpy(at, row, (size_t)k * sizeof *at);
    if (to->norm)
        memcpy(at + k, real(to->norm), (size_t)k * sizeof *at);
}

static bool is_left(const cuda_linear *a) {
    const float *at = real(a->codes);
    const int64_t k = a->w[0].k;
    return !memcmp(at, real(a->x), (size_t)k * sizeof *at) &&
           (!a->norm || !memcmp(at + k, real(a->norm), (size_t)k * sizeof *at));
}

static size_t linear_scratch(int64_t n_row, int64_t k, bool two) {
    return (size_t)(n_row * k) * (two ? 4 : 2);
}

static void linear_row(const cuda_linear *a, const view *w, const room *r, int64_t row) {
    const kernel_table *t = kernels_table_for("ref");
    const float *x = (const float *)real(a->x) + row * a->ldx;
    if (a->norm)
        t->norm(NORM_RMS, x, real(a->norm), NULL, r->x, w->k, 1, false, a->eps);
    else
        memcpy(r->x, x, (size_t)w->k * sizeof *x);
    for (int i = 0; i < a->n_w; i++) {
        float *y = r->y[a->gated ? i : 0];
        product(&w[i], r, a->two, real(a->bias[i]), y);
        if (a->gated && i == 0)
            continue;
        if (a->gated)
            t->gate(a->act, r->y[0], r->y[1], y, w->n);
        const int to = a->gated ? 0 : i;
        float *out = (float *)real(a->y[to]) + row * a->ldy[to];
        if (a->adds)
            t->add(out, y, 1, out, w[i].n);
        else
            memcpy(out, y, (size_t)w[i].n * sizeof *y);
    }
}

static int multiply_rows(const cuda_linear *a) {
    view w[3];
    int64_t wide = a->w[0].k;
    if (is_put_in_order(a))
        return misuse("a product may read a matrix that is still put in order");
    if (!a->scratch)
        return misuse("a product has no scratch");
    if (a->codes && (a->two || a->n_row > 1 || a->w[0].format.group != 32 || !is_left(a)))
        return misuse("a product takes the codes of another row");
    if (a->leaves.data && ((a->n_w > 1 && !a->gated) || a->w[0].n % 32 || a->two || a->n_row > 1))
        return misuse("a product cannot leave codes");
    fake.n_taken += a->codes != NULL;
    for (int i = 0; i < a->n_w; i++) {
        w[i] = as_qtile(&a->w[i]);
        wide = w[i].n > wide ? w[i].n : wide;
    }
    wide = (wide + 63) / 64 * 64;
    float *floats = aligned_alloc(64, (size_t)(5 * wide) * sizeof *floats);
    const room r = {floats,
                    floats + wide,
                    floats + 2 * wide,
                    {floats + 3 * wide, floats + 4 * wide},
                    aligned_alloc(64, (act_row_bytes((act_format){8, ACT8_GROUP}, wide) + 63) / 64 * 64),
                    aligned_alloc(64, (linear_scratch_bytes(false) + 63) / 64 * 64)};
    for (int64_t row = 0; row < a->n_row; row++)
        linear_row(a, w, &r, row);
    for (int i = 0; i < a->n_w; i++)
        free((void *)(uintptr_t)w[i].data);
    free(floats), free(r.codes), free(r.scratch);
    if (a->leaves.data)
        leave(&a->leaves, real(a->y[0]), a->w[0].n);
    return 0;
}

static int linear(const cuda_linear *a, cuda_stream s) {
    CALL();
    (void)s;
    kept *k = keep();
    if (k) {
        k->linear = linear;
        k->u.linear = *a;
        return 0;
    }
    return a->n_row < 1 || a->n_row > CUDA_MAX_ROWS ? misuse("a product of no or too many rows")
                                                    : multiply_rows(a);
}

/* Many rows, with the bits of few. */
static int64_t wide_from(void) {
    return 20;
}
static size_t wide_scratch(int64_t n_row, int64_t k) {
    return (size_t)(n_row * k) * sizeof(float);
}
static int wide(const cuda_linear *a, cuda_stream s) {
    CALL();
    (void)s;
    if (fake.recording)
        return misuse("a product of many rows is recorded");
    fake.n_wide += a->n_row;
    if (a->n_row < wide_from() || a->codes || a->leaves.data)
        return misuse("a product of many rows has few, or codes");
    memset(real(a->scratch), 0xff, wide_scratch(a->n_row, a->w[0].k));
    return multiply_rows(a);
}

/* ---- attention ---- */

static size_t attend_scratch(int64_t n_row, int64_t n_head, int64_t d_head) {
    return (size_t)(n_row * n_head * d_head) * sizeof(float);
}

/* A cached row, d halves. */
static uint16_t *cached(const cuda_attend *a, bool is_value, int64_t row, int64_t head, int64_t position) {
    const int32_t *pages = (const int32_t *)real(a->pages) + ((const int32_t *)real(a->first_page))[row];
    return (uint16_t *)real(is_value ? a->kv.v : a->kv.k) + pages[position / CUDA_PAGE] * a->kv.page +
           (head * CUDA_PAGE + position % CUDA_PAGE) * a->kv.d_head;
}

static int32_t position_of(const cuda_attend *a, int64_t row) {
    return ((const int32_t *)real(a->position))[row];
}

static void rotate(const cuda_attend *a, int64_t row, float *x, int64_t n_head) {
    const float *table = real(a->cos_sin);
    if (table)
        kernels_table_for("ref")->rope(a->style, x, n_head, a->kv.d_head, a->n_rot,
                                       table + (a->cos_sin_by_row ? row : position_of(a, row)) * a->n_rot);
}

static void store_row(const cuda_attend *a, int64_t row) {
    const int64_t d = a->kv.d_head, n = a->kv.n_kv_head * d;
    const float *v = (const float *)real(a->v) + row * a->ldv;
    float *k = malloc((size_t)n * sizeof *k);
    memcpy(k, (const float *)real(a->k) + row * a->ldk, (size_t)n * sizeof *k);
    rotate(a, row, k, a->kv.n_kv_head);
    for (int64_t i = 0; i < n; i++) {
        cached(a, false, row, i / d, position_of(a, row))[i % d] = half_from_float(k[i]);
        cached(a, true, row, i / d, position_of(a, row))[i % d] = half_from_float(v[i]);
    }
    if (fake.n_fresh < MAX_FRESH)
        fake.fresh[fake.n_fresh++] = cached(a, false, row, 0, position_of(a, row));
    free(k);
}

static int store(const cuda_attend *a, cuda_stream s) {
    CALL();
    (void)s;
    kept *k = keep();
    if (k) {
        k->attend = store;
        k->u.attend = *a;
        return 0;
    }
    for (int64_t row = 0; row < a->n_row; row++)
        store_row(a, row);
    return 0;
}

/* Whether a launch that may still run writes what the row attends to. */
static bool may_be_early(const cuda_attend *a, int64_t row) {
    for (int32_t p = 0; p < position_of(a, row); p++)
        for (size_t i = 0; i < fake.n_fresh; i++)
            if (fake.fresh[i] == cached(a, false, row, 0, p))
                return true;
    return false;
}

/* Rows of the cache as the reference has them. */
static void gather(const cuda_attend *a, int64_t row, const kv_view *to) {
    const kernel_table *t = kernels_table_for("ref");
    const int64_t d = a->kv.d_head, n = a->kv.n_kv_head * d;
    float *floats = malloc((size_t)n * sizeof *floats);
    for (int32_t p = 0; p <= position_of(a, row); p++)
        for (int is_value = 0; is_value < 2; is_value++) {
            for (int64_t i = 0; i < n; i++)
                floats[i] = half_to_float(cached(a, is_value, row, i / d, p)[i % d]);
            t->kv_store(to, is_value, p, floats);
        }
    free(floats);
}

static void attend_row(const cuda_attend *a, int64_t row) {
    const int64_t d = a->kv.d_head, n = position_of(a, row) / KV_BLOCK + 1, nq = a->n_head * d;
    uint64_t half = 0;
    kv_page_bytes(TYPE_F16, a->kv.n_kv_head, d, &half);
    half = (half + 63) / 64 * 64;
    uint8_t **pages = malloc((size_t)n * sizeof *pages), *all = aligned_alloc(64, (size_t)n * 2 * half);
    void *scratch = aligned_alloc(64, (attend_scratch_bytes(d) + 63) / 64 * 64);
    float *q = malloc((size_t)nq * sizeof *q);
    memset(all, 0, (size_t)n * 2 * half);
    for (int64_t i = 0; i < n; i++)
        pages[i] = all + (size_t)i * 2 * half;
    const kv_view kv = {.pages = pages,
                        .value_at = (int64_t)half,
                        .type = TYPE_F16,
                        .n_kv_head = a->kv.n_kv_head,
                        .d_head = d};
    gather(a, row, &kv);
    memcpy(q, (const float *)real(a->q) + row * a->ldq, (size_t)nq * sizeof *q);
    rotate(a, row, q, a->n_head);
    const attend_args args = {.kv = kv,
                              .q = q,
                              .out = (float *)real(a->out) + row * a->ldo,
                              .n_row = 1,
                              .first_position = position_of(a, row),
                              .n_head = a->n_head,
                              .window = a->window,
                              .scale = a->scale,
                              .softcap = a->softcap,
                              .scratch = scratch};
    kernels_table_for("ref")->attend(&args, 0, a->n_head, 0, 1);
    free(pages), free(all), free(scratch), free(q);
}

static int attend(const cuda_attend *a, cuda_stream s) {
    CALL();
    (void)s;
    kept *k = keep();
    if (k) {
        k->attend = attend;
        k->u.attend = *a;
        return 0;
    }
    if (a->n_row > CUDA_MAX_ROWS)
        return misuse("attention of too many rows");
    for (int64_t row = 0; row < a->n_row && !a->stored; row++)
        store_row(a, row);
    for (int64_t row = 0; row < a->n_row && !a->stored; row++)
        if (may_be_early(a, row))
            return misuse("attention may read keys before they are written");
    for (int64_t row = 0; row < a->n_row; row++)
        attend_row(a, row);
    if (a->leaves.data && (a->n_row > 1 || a->kv.d_head % 32))
        return misuse("attention cannot leave codes");
    if (a->leaves.data)
        leave(&a->leaves, real(a->out), a->n_head * a->kv.d_head);
    return 0;
}

static int attend_prompt(const cuda_attend *a, cuda_stream s) {
    CALL();
    (void)s;
    for (int64_t row = 1; row < a->n_row; row++)
        if (((const int32_t *)real(a->first_page))[row] != *(const int32_t *)real(a->first_page) ||
            position_of(a, row) != position_of(a, row - 1) + 1)
            return misuse("a prompt's rows do not stand together");
    if (!a->stored)
        return misuse("a prompt's keys are not stored");
    for (int64_t row = 0; row < a->n_row; row++)
        attend_row(a, row);
    fake.n_prompt += a->n_row;
    return 0;
}

/* ---- rows ---- */

static int norm(const cuda_norm *a, cuda_stream s) {
    CALL();
    (void)s;
    kept *k = keep();
    if (k) {
        k->norm = norm;
        k->u.norm = *a;
        return 0;
    }
    for (int64_t r = 0; r < a->n_row; r++)
        kernels_table_for("ref")->norm(a->kind, (const float *)real(a->x) + r * a->ldx, real(a->w),
                                       real(a->b), (float *)real(a->out) + r * a->ldo, a->k, a->n_group,
                                       a->w_full, a->eps);
    return 0;
}

static int each(const cuda_each *a, cuda_stream s) {
    CALL();
    (void)s;
    kept *k = keep();
    if (k) {
        k->each = each;
        k->u.each = *a;
        return 0;
    }
    const kernel_table *t = kernels_table_for("ref");
    for (int64_t r = 0; r < a->n_row; r++) {
        const float *x = (const float *)real(a->x) + r * a->ldx,
                    *y = a->y ? (const float *)real(a->y) + r * a->ldy : NULL;
        float *out = (float *)real(a->out) + r * a->ldo;
        switch (a->kind) {
        case OP_ACT: t->act(a->act, x, out, a->n); break;
        case OP_GATE: t->gate(a->act, x, y, out, a->n); break;
        case OP_ADD: t->add(x, y, a->value, out, a->n); break;
        case OP_SCALE: t->scale(x, a->value, out, a->n); break;
        case OP_CLAMP: t->clamp(x, a->value, out, a->n); break;
        case OP_SOFTCAP: t->softcap(x, a->value, out, a->n); break;
        default: return misuse("that is not done element by element");
        }
    }
    return 0;
}

/* ---- residuals ---- */

static size_t residual_scratch(int64_t n_row, int64_t k, int64_t k_chunk) {
    return CUDA_FETCH_HEAD + (size_t)(n_row * salient_count(k, k_chunk)) * sizeof(salient);
}

/* Host memory under the address that map gave it. */
static residual residual_at(const cuda_residual *a, int i) {
    return (residual){.bits = 4,
                      .n = a->n[i],
                      .k = a->k,
                      .step = a->step[i],
                      .rows = real(a->rows[i]),
                      .scale = real(a->scale[i])};
}

static float norm_factor(const cuda_residual *a, const float *x) {
    float sum = 0;
    for (int64_t i = 0; i < a->k; i++)
        sum += x[i] * x[i];
    return 1 / sqrtf(sum / (float)a->k + a->eps);
}

/* Of one row: the channels, then each matrix's part. */
static void fetch_row(const cuda_residual *a, const float *x, float *part) {
    const kernel_table *t = kernels_table_for("ref");
    const float *norm = real(a->norm), factor = norm ? norm_factor(a, x) : 1;
    float *own = malloc((size_t)a->k * sizeof *own);
    int32_t *at = malloc((size_t)a->k * sizeof *at);
    for (int64_t i = 0; i < a->k; i++)
        own[i] = norm ? x[i] * norm[i] : x[i];
    const int64_t n = salient_pick(t, SALIENT_APPROX, own, a->k, a->k_chunk, at);
    for (int w = 0; w < a->n_w; part += a->n[w++]) {
        const residual r = residual_at(a, w);
        for (int64_t o = 0; o < a->n[w]; o++) {
            float sum = 0;
            for (int64_t i = 0; i < n && r.step; i++)
                sum = fmaf(own[at[i]], residual_code(&r, at[i], o), sum);
            part[o] = r.step ? sum * r.scale[o] * factor : 0;
        }
    }
    free(own);
    free(at);
}

static int fetch(const cuda_residual *a, cuda_stream s) {
    CALL();
    (void)s;
    if (!fake.replaying && fake.side != FORKED)
        return misuse("residuals are fetched before their rows are there");
    fake.side = FETCHED;
    kept *k = keep();
    if (k) {
        k->fetch = fetch;
        k->u.fetch = *a;
        return 0;
    }
    fake.n_fetched += a->n_row;
    for (int64_t r = 0; r < a->n_row; r++)
        fetch_row(a, (const float *)real(a->x) + r * a->ldx, (float *)real(a->part) + r * a->ldp);
    return 0;
}

static int add_fetched(const cuda_residual_add *a, cuda_stream s) {
    const kernel_table *t = kernels_table_for("ref");
    CALL();
    (void)s;
    if (!fake.replaying && fake.side != JOINED)
        return misuse("residuals are added before they are there");
    fake.side = IDLE;
    kept *k = keep();
    if (k) {
        k->add = add_fetched;
        k->u.add = *a;
        return 0;
    }
    for (int64_t r = 0; r < a->n_row; r++) {
        const float *part = (const float *)real(a->part) + r * a->ldp;
        for (int w = 0; w < a->n_w; part += a->n[w++]) {
            float *y = (float *)real(a->y[w]) + r * a->ldy[w];
            t->add(y, part, 1, y, a->n[w]);
        }
        if (a->gated)
            t->gate(a->act, (const float *)real(a->y[0]) + r * a->ldy[0],
                    (const float *)real(a->y[1]) + r * a->ldy[1], (float *)real(a->out) + r * a->ldo,
                    a->n[0]);
    }
    return 0;
}

/* ---- the best logits ---- */

static size_t sample_scratch(int64_t n_row) {
    return (size_t)n_row * 8;
}

static bool is_better(const float *x, int64_t a, int64_t b) {
    return b < 0 || x[a] > x[b] || (isnan(x[b]) && !isnan(x[a]));
}

static int sample(const cuda_sample *a, cuda_stream s) {
    CALL();
    (void)s;
    kept *k = keep();
    if (k) {
        k->best = sample;
        k->u.best = *a;
        return 0;
    }
    for (int64_t r = 0; r < a->n_row; r++) {
        const float *x = (const float *)real(a->logits) + r * a->ld;
        bool *taken = calloc((size_t)a->n_vocab, sizeof *taken);
        for (int i = 0; i < a->top; i++) {
            int64_t best = -1;
            for (int64_t t = 0; t < a->n_vocab; t++)
                if (!taken[t] && is_better(x, t, best))
                    best = t;
            taken[best] = true;
            ((int32_t *)real(a->top_ids))[r * a->top + i] = (int32_t)best;
            ((float *)real(a->top_logits))[r * a->top + i] = x[best];
        }
        free(taken);
    }
    fake.n_sampled += a->n_row;
    return 0;
}

/* ---- graphs ---- */

static int graph_begin(cuda_stream s) {
    CALL();
    (void)s;
    if (fake.recording)
        return misuse("two graphs are recorded at once");
    fake.recording = calloc(1, sizeof *fake.recording);
    return 0;
}
static int graph_free(cuda_graph g) {
    graph *old = g;
    fake.held--;
    free(old->list);
    free(old);
    return 0;
}
static int graph_end(cuda_stream s, cuda_graph *g) {
    const int e = call();
    graph *made = fake.recording;
    (void)s;
    fake.recording = NULL;
    if (!made)
        return misuse("no graph is recorded");
    fake.held++;
    *g = made;
    if (e) {
        graph_free(made);
        *g = NULL;
    }
    return e;
}
static int graph_launch(cuda_graph g, cuda_stream s) {
    const graph *made = g;
    CALL();
    for (size_t i = 0; i < made->n; i++) {
        const kept *k = &made->list[i];
        fake.calls--; /* one launch */
        fake.replaying = true;
        const int e = k->linear   ? k->linear(&k->u.linear, s)
                      : k->attend ? k->attend(&k->u.attend, s)
                      : k->norm   ? k->norm(&k->u.norm, s)
                      : k->fetch  ? k->fetch(&k->u.fetch, s)
                      : k->add    ? k->add(&k->u.add, s)
                      : k->best   ? k->best(&k->u.best, s)
                                  : k->each(&k->u.each, s);
        fake.replaying = false;
        if (e)
            return e;
    }
    fake.n_replayed += (long)made->n;
    return 0;
}

/* ---- the table ---- */

const cuda_kernels *fake_cuda(size_t memory, long fail_at, int error) {
    static const cuda_kernels table = {
        .version = CUDA_KERNELS_VERSION,
        .error_text = error_text,
        .device_count = device_count,
        .device_open = device_open,
        .memory_now = memory_now,
        .alloc = alloc,
        .release = release,
        .pin = pin,
        .unpin = unpin,
        .map = map,
        .to_device = to_device,
        .to_host = to_host,
        .on_device = on_device,
        .fill = fill,
        .stream_new = stream_new,
        .stream_free = stream_free,
        .stream_sync = stream_sync,
        .stream_wait = stream_wait,
        .event_new = event_new,
        .event_free = event_free,
        .event_record = event_record,
        .graph_begin = graph_begin,
        .graph_end = graph_end,
        .graph_launch = graph_launch,
        .graph_free = graph_free,
        .gtile = gtile,
        .linear_scratch = linear_scratch,
        .linear = linear,
        .wide_from = wide_from,
        .wide_scratch = wide_scratch,
        .wide = wide,
        .codes_bytes = codes_bytes,
        .attend_scratch = attend_scratch,
        .attend = attend,
        .attend_prompt = attend_prompt,
        .store = store,
        .norm = norm,
        .each = each,
        .residual_scratch = residual_scratch,
        .residual = fetch,
        .residual_add = add_fetched,
        .sample_scratch = sample_scratch,
        .sample = sample,
    };
    memset(&fake, 0, sizeof fake);
    fake.memory = memory;
    fake.fail_at = fail_at;
    fake.error = error;
    return &table;
}

long fake_cuda_calls(void) {
    return fake.calls;
}
size_t fake_cuda_held(void) {
    return fake.held;
}
size_t fake_cuda_peak(void) {
    return fake.peak;
}
const char *fake_cuda_wrong(void) {
    return fake.wrong;
}
long fake_cuda_replayed(void) {
    return fake.n_replayed;
}
long fake_cuda_fetched(void) {
    return fake.n_fetched;
}
long fake_cuda_taken(void) {
    return fake.n_taken;
}
long fake_cuda_wide(void) {
    return fake.n_wide;
}
long fake_cuda_sampled(void) {
    return fake.n_sampled;
}
long fake_cuda_prompt(void) {
    return fake.n_prompt;
}
