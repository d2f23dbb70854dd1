/* fakecuda_linear.c - the fake table's products, by the processor's kernels. */
#include "support/fakecuda_parts.h"

#include "kernels/act8.h"
#include "kernels/strategy.h"
#include "numbers/tile.h"
#include "support/fakecuda_gtile.h"

#include <stdlib.h>
#include <string.h>

bool fake_is_put_in_order(const view *w, int n_w) {
    for (int i = 0; i < n_w; i++)
        for (size_t j = 0; j < fake.n_reordered; j++)
            if (fake.reordered[j] == w[i].data)
                return true;
    return false;
}

int fake_gtile(const view *w, bool to_gpu, cuda_stream s) {
    CALL();
    if (fake.n_reordered == MAX_REORDERED)
        return fake_misuse("too many matrices are put in order and nothing waits");
    fake.reordered[fake.n_reordered++] = w->data;
    fake_gtile_later(w, to_gpu, s);
    return 0;
}

void fake_gtile_now(const view *w, bool to_gpu) {
    for (int64_t n = 0; w->format.layout == PACK_TILE && n < w->n; n += PACK_PANEL) {
        uint8_t *panel = (uint8_t *)real(w->data) + n / PACK_PANEL * tile_panel_bytes(&w->format, w->k);
        (to_gpu ? gtile_from_qtile : gtile_to_qtile)(&w->format, w->k, panel, panel);
    }
}

view fake_as_qtile(const view *w) {
    uint64_t bytes = 0;
    view v = *w;
    v.format.sparse = 0;
    pack_bytes(&v.format, w->n, w->k, &bytes);
    uint8_t *copy = aligned_alloc(64, bytes);
    if (w->format.layout == PACK_ROWS)
        memcpy(copy, real(w->data), bytes);
    for (int64_t n = 0; w->format.layout == PACK_TILE && n < w->n; n += PACK_PANEL) {
        const int64_t i = n / PACK_PANEL;
        gtile_to_qtile(&v.format, w->k,
                       (const uint8_t *)real(w->data) + i * tile_panel_bytes(&w->format, w->k),
                       copy + i * tile_panel_bytes(&v.format, w->k));
    }
    v.data = copy;
    return v;
}

/* Memory for the rows of a product, `wide` floats each. */
typedef struct row_memory {
    int64_t n_row, wide;
    float *x, *remaining, *part, *y[2];
    outlier (*outliers)[ACT_OUTLIERS];
    int *n_outlier;
    char *codes;
    void *scratch;
} row_memory;
/* Launches come one after the other: one scratch is enough. It is large, and a sanitizer maps and marks each
 * large block anew. */
static void *scratch_once(void) {
    static void *scratch;
    if (!scratch)
        scratch = aligned_alloc(64, (linear_scratch_bytes(false) + 63) / 64 * 64);
    return scratch;
}
static row_memory rows_open(int64_t n_row, int64_t wide) {
    const size_t row = (size_t)wide * sizeof(float), all = (size_t)n_row * row;
    const size_t codes = act_row_bytes((act_format){.bits = 8, .group = ACT8_GROUP}, wide);
    row_memory r = {.n_row = n_row,
                    .wide = wide,
                    .x = aligned_alloc(64, all),
                    .remaining = aligned_alloc(64, row),
                    .part = aligned_alloc(64, all),
                    .y = {aligned_alloc(64, all), aligned_alloc(64, all)},
                    .outliers = malloc((size_t)n_row * sizeof *r.outliers),
                    .n_outlier = malloc((size_t)n_row * sizeof *r.n_outlier),
                    .codes = aligned_alloc(64, ((size_t)n_row * codes + 63) / 64 * 64),
                    .scratch = scratch_once()};
    return r;
}
static void rows_close(row_memory *r) {
    free(r->x), free(r->remaining), free(r->part), free(r->y[0]), free(r->y[1]);
    free(r->outliers), free(r->n_outlier), free(r->codes);
}

static void multiply(const view *v, act_format f, const row_memory *r, const float *bias, float *y) {
    const linear_args a = {.w = v,
                           .q = {r->codes, r->n_row, v->k, f},
                           .bias = bias,
                           .y = y,
                           .ldy = r->wide,
                           .n_row = r->n_row,
                           .scratch = r->scratch};
    linear_run(kernels_table(), &a, 0, v->n);
}

/* Floats with floats. */
static void product_rows(const view *v, const row_memory *r, const float *bias, float *y) {
    const linear_args a = {
        .w = v, .x = r->x, .ldx = r->wide, .bias = bias, .y = y, .ldy = r->wide, .n_row = r->n_row};
    kernels_table()->linear_rows(&a, 0, v->n);
}

/* bits, n8: as in act_format_for. */
static void product(const view *v, const row_memory *r, int bits, int n8, bool two, const float *bias,
                    float *y) {
    const kernel_table *t = kernels_table();
    if (v->format.layout == PACK_ROWS) {
        product_rows(v, r, bias, y);
        return;
    }
    const act_format f = act_format_for(&v->format, bits, n8);
    const size_t bytes = act_row_bytes(f, v->k);
    for (int64_t m = 0; m < r->n_row; m++) {
        const float *x = r->x + m * r->wide;
        const int n = two ? 0 : act_extract_outliers(t, bits, x, v->k, r->remaining, r->outliers[m]);
        t->act_quantize(f, n ? r->remaining : x, v->k, r->codes + (size_t)m * bytes);
        r->n_outlier[m] = n;
    }
    multiply(v, f, r, bias, y);
    for (int64_t m = 0; two && m < r->n_row; m++) {
        char *codes = r->codes + (size_t)m * bytes;
        act_residual(f, codes, r->x + m * r->wide, v->k, r->remaining);
        t->act_quantize(f, r->remaining, v->k, codes);
    }
    if (two)
        multiply(v, f, r, NULL, r->part);
    for (int64_t m = 0; m < r->n_row; m++) {
        if (two)
            t->add(y + m * r->wide, r->part + m * r->wide, 1, y + m * r->wide, v->n);
        for (int i = 0; i < r->n_outlier[m]; i++) {
            t->column(v, r->outliers[m][i].at, 0, v->n, r->part);
            t->add(y + m * r->wide, r->part, r->outliers[m][i].value, y + m * r->wide, v->n);
        }
    }
}

/* Rows that a launch leaves are stored unchanged, after their group size, their number and the norm's
 * weights. The launch that takes them must read these rows in these groups, and the weights must have been
 * ready already.
 */
enum { LEFT_GROUP, LEFT_WHOLE, LEFT_ROWS, LEFT_HEAD };
size_t fake_codes_bytes(int64_t k) {
    return (LEFT_HEAD + (1 + FAKE_LEFT_ROWS) * (size_t)k) * sizeof(float);
}

void fake_leave(const cuda_codes *to, const float *row, int64_t ld, int64_t n_row, int64_t k, bool whole) {
    float *const at = real(to->data), *const norm = at + LEFT_HEAD;
    at[LEFT_GROUP] = (float)to->group;
    at[LEFT_WHOLE] = whole;
    at[LEFT_ROWS] = (float)n_row;
    if (to->norm)
        memcpy(norm, real(to->norm), (size_t)k * sizeof *at);
    for (int64_t i = 0; i < n_row; i++)
        memcpy(norm + (1 + i) * k, row + i * ld, (size_t)k * sizeof *at);
}

/* Leaves several rows in groups of 32, of any width, so that small models do it too. */
int64_t fake_left_rows(const view *w) {
    return w->format.layout == PACK_TILE && w->format.group == 32 ? FAKE_LEFT_ROWS : 1;
}

/* A device may do so; the launch that takes them must know it. */
bool fake_leaves_whole(const cuda_linear *a) {
    return a->gated && a->codes && a->leaves.data && a->leaves.group > 32 && a->w[0].n % a->leaves.group == 0;
}

/* As on a GPU, of codes that the launch before has left. */
bool fake_sums(const cuda_linear *a) {
    return a->n_row == 1 && a->n_w == 1 && !a->two && a->codes && a->sum.n_rank > 1;
}

static bool is_grouped(int64_t group) {
    return group == 32 || group == 64 || group == 128;
}

static bool is_left(const cuda_linear *a) {
    const float *const at = real(a->codes), *const norm = at + LEFT_HEAD, *const x = real(a->x);
    const int64_t k = a->w[0].k;
    const size_t bytes = (size_t)k * sizeof *at;
    for (int64_t i = 0; i < a->n_row; i++)
        if (memcmp(norm + (1 + i) * k, x + i * a->ldx, bytes) != 0)
            return false;
    return (!a->norm || !memcmp(norm, real(a->norm), bytes)) && at[LEFT_ROWS] == (float)a->n_row &&
           at[LEFT_GROUP] == a->w[0].format.group && (at[LEFT_WHOLE] != 0) == a->codes_whole;
}

/* Only the rule takes and leaves several rows. */
static bool are_rows_left(const cuda_linear *a, const view *w) {
    return a->n_row == 1 || (!a->by && a->n_row <= fake_left_rows(w));
}

size_t fake_linear_scratch(int64_t n_row, int64_t k, bool two) {
    return (size_t)(n_row * k) * (two ? 4 : 2);
}

/* Stores row m of matrix i's product. */
static void put_row(const cuda_linear *a, const view *w, const row_memory *r, int i, int64_t m,
                    float factor) {
    const kernel_table *t = kernels_table();
    float *y = r->y[a->gated ? i : 0] + m * r->wide;
    if (factor != 1)
        t->scale(y, factor, y, w->n);
    if (a->gated && i == 0)
        return;
    if (a->gated)
        t->gate(a->act, r->y[0] + m * r->wide, r->y[1] + m * r->wide, y, w->n);
    if (a->acts)
        t->act(a->act, y, y, w->n);
    const int to = a->gated ? 0 : i;
    float *out = (float *)real(a->y[to]) + m * a->ldy[to];
    if (a->sum.n_rank) {
        const cuda_reduce sum = {.x = (float *)((uintptr_t)y | DEVICE_BIT),
                                 .out = a->y[0] + m * a->ldy[0],
                                 .n_row = 1,
                                 .n = w->n,
                                 .adds = a->adds,
                                 .of = a->sum};
        fake_sum(&sum);
    } else if (a->adds)
        t->add(out, y, 1, out, w->n);
    else
        memcpy(out, y, (size_t)w->n * sizeof *y);
}

static void linear_rows(const cuda_linear *a, const view *w, const row_memory *r, float factor) {
    const kernel_table *t = kernels_table();
    for (int64_t m = 0; m < r->n_row; m++) {
        const float *x = (const float *)real(a->x) + m * a->ldx;
        if (a->norm)
            t->norm(a->centred ? NORM_LAYER : NORM_RMS, x, real(a->norm), real(a->shift), r->x + m * r->wide,
                    w->k, 1, false, a->eps);
        else
            memcpy(r->x + m * r->wide, x, (size_t)w->k * sizeof *x);
    }
    for (int i = 0; i < a->n_w; i++) {
        product(&w[i], r, a->act_bits == 4 ? 4 : 8, a->n8, a->two, real(a->bias[i]), r->y[a->gated ? i : 0]);
        for (int64_t m = 0; m < r->n_row; m++)
            put_row(a, &w[i], r, i, m, factor);
    }
}

static int multiply_all(const cuda_linear *a, float factor) {
    view w[3];
    int64_t wide = a->w[0].k;
    if (fake_is_put_in_order(a->w, a->n_w))
        return fake_misuse("a product may read a matrix that is still put in order");
    if (!a->scratch)
        return fake_misuse("a product has no scratch");
    if (a->w[0].format.layout == PACK_ROWS && (a->codes || a->leaves.data))
        return fake_misuse("a product with floats takes or leaves codes");
    if (a->acts && (a->n_w != 1 || a->gated || a->adds))
        return fake_misuse("an activation of several products, or of one that is added");
    if (a->codes &&
        (a->two || !are_rows_left(a, &a->w[0]) || !is_grouped(a->w[0].format.group) || !is_left(a)))
        return fake_misuse("a product takes the codes of another row");
    if (a->leaves.data && (!is_grouped(a->leaves.group) || (a->n_w > 1 && !a->gated) || a->w[0].n % 32 ||
                           a->two || !are_rows_left(a, &a->w[0]) || (a->n_row > 1 && a->leaves.group != 32)))
        return fake_misuse("a product cannot leave codes");
    if (a->sum.n_rank && !fake_sums(a))
        return fake_misuse("a product adds over ranks that cannot");
    fake.n_taken += a->codes != NULL;
    for (int i = 0; i < a->n_w; i++) {
        w[i] = fake_as_qtile(&a->w[i]);
        wide = w[i].n > wide ? w[i].n : wide;
    }
    wide = (wide + 63) / 64 * 64;
    row_memory r = rows_open(a->n_row, wide);
    linear_rows(a, w, &r, factor);
    rows_close(&r);
    for (int i = 0; i < a->n_w; i++)
        free((void *)(uintptr_t)w[i].data);
    if (a->leaves.data)
        fake_leave(&a->leaves, real(a->y[0]), a->ldy[0], a->n_row, a->w[0].n, fake_leaves_whole(a));
    return 0;
}

int fake_multiply(const cuda_linear *a) {
    return multiply_all(a, 1);
}

/* ---- strategies ----
 *
 * All give the same bits, as on a GPU. By the clock of events Split is the fastest. Bitwise computes one row
 * of at most 64 elements. One strategy belongs to another device. */
enum { RULE_US = 200, SPLIT_US = 100, BITS_US = 150, WIDE_US = 400 };

static int by_way(const cuda_linear *a, cuda_stream s, int way,
                  int (*own)(const cuda_linear *a, cuda_stream s)) {
    LAUNCH(s);
    KEEP(linear, own);
    fake.n_by[way] += a->n_row;
    if ((a->acts || a->centred) && a->w[0].format.layout == PACK_TILE)
        return fake_misuse("a product of a few rows has an activation or a LayerNorm");
    return a->n_row < 1 || a->n_row > CUDA_MAX_ROWS ? fake_misuse("a product of no or too many rows")
                                                    : multiply_all(a, 1);
}
static int by_rule(const cuda_linear *a, cuda_stream s) {
    fake.late += fake.recording ? 0 : RULE_US;
    return by_way(a, s, FAKE_BY_RULE, by_rule);
}
static int by_split(const cuda_linear *a, cuda_stream s) {
    fake.late += fake.recording ? 0 : SPLIT_US;
    return by_way(a, s, FAKE_BY_SPLIT, by_split);
}
static int by_bits(const cuda_linear *a, cuda_stream s) {
    if (a->w[0].k > 64)
        return CUDA_UNSUPPORTED;
    fake.late += fake.recording ? 0 : BITS_US;
    return by_way(a, s, FAKE_BY_BITS, by_bits);
}
static int by_wide(const cuda_linear *a, cuda_stream s) {
    fake.late += WIDE_US;
    return fake_wide(a, s);
}

static bool can_few(const pack_format *f, int64_t n_row) {
    return f->packing == PACK_PARTS && n_row <= CUDA_MAX_ROWS;
}
static bool can_one(const pack_format *f, int64_t n_row) {
    return can_few(f, n_row) && n_row == 1;
}
static bool can_wide(const pack_format *f, int64_t n_row) {
    return f->packing == PACK_PARTS && n_row > CUDA_MAX_ROWS;
}

const cuda_strategy *fake_strategies(int *n) {
    static const cuda_strategy all[] = {
        {.row = {.name = "padding", .can = can_few, .rule_from = 1, .rule_rows = CUDA_MAX_ROWS},
         .launch = by_rule},
        {.row = {.name = "split", .can = can_few}, .launch = by_split},
        {.row = {.name = "bitwise", .can = can_one}, .launch = by_bits},
        {.row = {.name = "bitwise.other", .can = can_few}, .launch = by_bits, .before = 80},
        {.row = {.name = "padding.wide", .can = can_wide, .rule_from = 1, .rule_rows = STRATEGY_ANY_ROWS},
         .launch = by_wide},
    };
    *n = sizeof all / sizeof *all;
    return all;
}

int fake_linear(const cuda_linear *a, cuda_stream s) {
    const int e = a->by ? a->by->launch(a, s) : CUDA_UNSUPPORTED;
    return e == CUDA_UNSUPPORTED ? by_way(a, s, FAKE_BY_RULE, fake_linear) : e;
}

static int unit_run(int rounds, unsigned *sink, cuda_stream s) {
    CALL();
    (void)s;
    fake.late += rounds;
    return rounds < 1 || !is_there(sink) ? fake_misuse("a unit does nothing") : 0;
}
const cuda_unit *fake_units(int *n) {
    static const cuda_unit all[] = {{"s8", 8, 8, 75, unit_run, 1 << 20},
                                    {"b1 and", 1, 1, 80, unit_run, 1 << 23},
                                    {"of a newer one", 4, 4, 100, unit_run, 1 << 22}};
    *n = sizeof all / sizeof *all;
    return all;
}

/* Prompt rows and rows of many sequences have the bits of other rows, unless a test wants them to differ:
 * then products of prompt rows are a little larger, and those of many sequences a little smaller. */
#define PROMPT_FACTOR 1.0009765625f
#define BATCH_FACTOR  0.9990234375f
bool fake_has_wide(void) {
    return !fake.no_wide;
}
size_t fake_wide_scratch(int64_t n_row, int64_t k) {
    return (size_t)(n_row * k) * sizeof(float);
}
bool fake_has_batch(void) {
    return !fake.no_wide;
}
int fake_batch(const cuda_linear *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(linear, fake_batch);
    fake.n_batch += a->n_row;
    if (!fake_has_batch() || a->n_row < 1 || a->n_row > CUDA_MAX_ROWS || a->codes || a->leaves.data || a->by)
        return fake_misuse("a product of many sequences on a device without them, of no or too many rows, "
                           "with codes, or by a strategy");
    memset(real(a->scratch), 0xff, fake_wide_scratch(a->n_row, a->w[0].k));
    return multiply_all(a, fake.prompts_differ ? BATCH_FACTOR : 1);
}
int fake_wide(const cuda_linear *a, cuda_stream s) {
    LAUNCH(s);
    if (fake.recording)
        return fake_misuse("a product of many rows is recorded");
    fake.n_wide += a->n_row;
    if (!fake_has_wide() || a->n_row < 1 || a->codes || a->leaves.data)
        return fake_misuse("a product of prompts on a device without them, of no rows, or with codes");
    memset(real(a->scratch), 0xff, fake_wide_scratch(a->n_row, a->w[0].k));
    return multiply_all(a, fake.prompts_differ ? PROMPT_FACTOR : 1);
}

size_t fake_mixed_scratch(int64_t n_row, int64_t k) {
    return fake_wide_scratch(n_row, k) + 64;
}
int fake_mixed(const cuda_linear *a, cuda_stream s) {
    cuda_linear as = *a;
    LAUNCH(s);
    KEEP(linear, fake_mixed);
    fake.n_mixed += a->n_row;
    if (!cuda_mixes(&a->w[0].format) || a->n_row < 1 || a->codes || a->leaves.data || a->by || a->two)
        return fake_misuse("a mixed product of other weights, of no rows, with codes, or by a strategy");
    memset(real(a->scratch), 0xff, fake_mixed_scratch(a->n_row, a->w[0].k));
    as.act_bits = a->n8 * ACT_BLOCK < a->w[0].k ? 4 : 8;
    return multiply_all(&as, 1);
}
