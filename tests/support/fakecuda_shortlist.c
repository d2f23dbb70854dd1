/* fakecuda_shortlist.c - the fake table's output head in two steps: a sketch by the definition of its format,
 * and a second step that knows all logits, so that it can check every estimate against its bound. */
#include "support/fakecuda_parts.h"

#include "base/num.h"
#include "exec/shortlist.h"
#include "numbers/gtile.h"
#include "numbers/tile.h"
#include "numbers/types.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool fake_sketch_takes(const view *head) {
    return head->format.layout == PACK_TILE && head->format.bits >= 6 && !head->format.sparse;
}

/* The smallest half that is at least x, for x >= 0. */
static uint16_t half_above(float x) {
    uint16_t h = half_from_float(x);
    return half_to_float(h) < x ? (uint16_t)(h + 1) : h;
}

/* Row r of a panel: element i of its group g. */
static void put_code(uint8_t *panel, const view *to, int64_t r, int64_t at, int code) {
    const int64_t tile = at / TILE_K, in = at % TILE_K % 32;
    uint8_t *codes = panel + tile / TILE_CHUNK * tile_chunk_bytes(&to->format, TILE_CHUNK) +
                     tile % TILE_CHUNK * tile_code_bytes(&to->format);
    uint8_t *byte = codes + 4 * gtile_dword(8, (int)(in / 4), (int)r) + in % 4;
    *byte = (uint8_t)(*byte | code << (at % TILE_K / 32 * 4));
}
static void put_scale(uint8_t *panel, const view *to, int64_t r, int64_t g, uint16_t scale) {
    const tile_chunk c = tile_chunk_at(&to->format, panel, to->k, g * 32 / TILE_CHUNK_K);
    memcpy((uint8_t *)(uintptr_t)c.scales + (g % 8 * PACK_PANEL + r) * 2, &scale, sizeof scale);
}

/* Returns the standard deviation of an estimate's error. */
static float round_row(const view *to, uint8_t *panel, int64_t r, const float *x) {
    float squares = 0;
    for (int64_t g = 0; g < tile_count(to->k) * 2; g++) {
        float largest = 0;
        const int64_t end = NUM_MIN(32 * g + 32, to->k);
        for (int64_t i = 32 * g; i < end; i++)
            largest = fmaxf(largest, fabsf(x[i]));
        const uint16_t half = half_above(largest / 7.5f);
        const float scale = half_to_float(half);
        put_scale(panel, to, r, g, half);
        squares += scale * scale;
        for (int64_t i = 32 * g; i < 32 * g + 32; i++)
            put_code(panel, to, r, i,
                     8 + (i < end && scale > 0 ? (int)fminf(fmaxf(rintf(x[i] / scale), -8), 7) : 0));
    }
    return sqrtf(squares / (float)num_div_up(to->k, 32) / 12);
}

int fake_sketch(const view *head, const view *sketch, float *step, cuda_stream s) {
    CALL();
    (void)s;
    if (fake.recording)
        return fake_misuse("a sketch is recorded");
    if (fake_is_put_in_order(head, 1))
        return fake_misuse("a sketch is made of a matrix that is still put in order");
    if (!fake_sketch_takes(head) || sketch->n != head->n || sketch->k != head->k ||
        sketch->format.bits != 4 || sketch->format.group != 32 || sketch->format.asym)
        return fake_misuse("that is no sketch of this head");
    const int64_t bytes = tile_panel_bytes(&sketch->format, head->k);
    float *x = malloc((size_t)num_round_up(head->k, TILE_CHUNK_K) * sizeof *x);
    view from = fake_as_qtile(head);
    memset(real(sketch->data), 0, (size_t)(num_div_up(head->n, PACK_PANEL) * bytes));
    for (int64_t n = 0; n < head->n; n++) {
        pack_read_row(&from, n, x);
        ((float *)real(step))[n] =
            round_row(sketch, (uint8_t *)real(sketch->data) + n / PACK_PANEL * bytes, n % PACK_PANEL, x);
    }
    free(x), free((void *)(uintptr_t)from.data);
    fake.reordered[fake.n_reordered++] = sketch->data; /* until the host has waited */
    return 0;
}

/* ---- the second step ---- */

size_t fake_shortlist_scratch(void) {
    return CUDA_SHORT_HEAD;
}

/* A row's length, after its norm. */
static float length_of(const cuda_linear *a, int64_t r) {
    const float *x = (const float *)real(a->x) + r * a->ldx;
    float *own = malloc((size_t)a->w[0].k * sizeof *own), sum = 0;
    memcpy(own, x, (size_t)a->w[0].k * sizeof *own);
    if (a->norm)
        kernels_table()->norm(NORM_RMS, x, real(a->norm), NULL, own, a->w[0].k, 1, false, a->eps);
    for (int64_t i = 0; i < a->w[0].k; i++)
        sum += own[i] * own[i];
    free(own);
    return sqrtf(sum);
}

static bool is_changed(const cuda_shortlist *a, int64_t r, int64_t token) {
    const logit_row *row = a->rows ? (const logit_row *)real(a->rows) + r : NULL;
    for (int32_t i = 0; row && i < row->n; i++)
        if (((const logit_change *)real(a->changes))[row->first + i].token == token)
            return true;
    return false;
}

static int descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The top-th largest lower bound of the logits that are not changed. */
static float limit_of(const cuda_shortlist *a, int64_t r, const float *y, float reach) {
    const int64_t n = a->head.w[0].n;
    const float *step = real(a->step);
    float *lower = malloc((size_t)n * sizeof *lower);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (!is_changed(a, r, i))
            lower[count++] = y[i] - reach * step[i];
    qsort(lower, (size_t)count, sizeof *lower, descending);
    const float limit = count >= a->top ? lower[a->top - 1] : -INFINITY;
    free(lower);
    return limit;
}

/* y: estimates, then logits; whole: the exact ones. */
static int choose_row(const cuda_shortlist *a, int64_t r, float *y, const float *whole, uint64_t *n_panel) {
    const int64_t n = a->head.w[0].n;
    const float *step = real(a->step), reach = SHORTLIST_REACH * 1.02f * length_of(&a->head, r);
    const float limit = limit_of(a, r, y, reach);
    for (int64_t p = 0; p < n; p += PACK_PANEL) {
        const int64_t end = NUM_MIN(p + PACK_PANEL, n);
        bool may = false;
        for (int64_t i = p; i < end; i++) {
            may = may || is_changed(a, r, i) || !(y[i] + reach * step[i] < limit);
            if (fabsf(y[i] - whole[i]) > reach * step[i])
                return fake_misuse("an estimate of a logit is further off than its bound");
        }
        for (int64_t i = p; i < end; i++)
            y[i] = may ? whole[i] : -INFINITY;
        *n_panel += may;
    }
    return 0;
}

int fake_shortlist(const cuda_shortlist *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(shortlist, fake_shortlist);
    const int64_t n_row = a->head.n_row, n = a->head.w[0].n;
    uint64_t *counted = (uint64_t *)real(a->scratch) + 1;
    if (n_row < 1 || n_row > CUDA_MAX_SHORT || a->head.two || a->head.adds || a->head.n_w != 1 ||
        a->head.leaves.data || a->top < 1 || a->top > CUDA_MAX_TOP || !fake_sketch_takes(&a->head.w[0]))
        return fake_misuse("a head that cannot be computed in two steps");
    cuda_linear all = a->head;
    float *whole = aligned_alloc(64, (size_t)num_round_up(n_row * n, 16) * sizeof *whole);
    all.y[0] = (float *)((uintptr_t)whole | DEVICE_BIT);
    all.ldy[0] = n;
    all.codes = NULL; /* the estimates have used them */
    int e = fake_multiply(&all);
    for (int64_t r = 0; r < n_row && !e; r++)
        e = choose_row(a, r, (float *)real(a->head.y[0]) + r * a->head.ldy[0], whole + r * n, &counted[1]);
    counted[0] += (uint64_t)n_row;
    fake.n_short += n_row;
    free(whole);
    return e;
}
