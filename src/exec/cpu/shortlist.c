/* shortlist.c - see shortlist.h. The size of the sketch, and its construction; head.c uses it. */
#include "exec/cpu/shortlist.h"

#include "base/num.h"
#include "numbers/tile.h"
#include "weights/load_matrix.h"

#include <math.h>
#include <string.h>

typedef struct sizes {
    int64_t n_panel;
    uint64_t sketch, step, best, missing, counts;
} sizes;

static uint64_t round64(uint64_t n) {
    return (n + 63) & ~UINT64_C(63);
}

static bool sizes_of(const layout *lay, int n_thread, int n_best, sizes *out, view *sketch,
                     const weight **head) {
    if (!shortlist_sketch(lay, n_best, head, sketch, &out->sketch))
        return false;
    out->n_panel = num_div_up(sketch->n, PACK_PANEL);
    out->sketch = round64(out->sketch);
    out->step = round64((uint64_t)out->n_panel * PACK_PANEL * sizeof(float));
    out->best = round64((uint64_t)n_thread * (uint64_t)n_best * sizeof(float));
    out->missing = round64((uint64_t)out->n_panel * sizeof(shortlist_panel));
    out->counts = round64((uint64_t)n_thread * 3 * sizeof(int));
    return true;
}

static uint64_t sum(const sizes *z) {
    return z->sketch + z->step + z->best + z->missing + z->counts;
}

bool shortlist_bytes(const layout *lay, int n_thread, int n_best, uint64_t *bytes, uint64_t *staging) {
    const weight *head;
    view sketch;
    sizes z;
    if (!sizes_of(lay, n_thread, n_best, &z, &sketch, &head))
        return false;
    *bytes = sum(&z);
    *staging = load_matrix_bytes(lay, n_thread);
    return true;
}

static void place(shortlist *s, const sizes *z, int n_thread) {
    uint8_t *at = s->memory.at;
    s->sketch.data = at;
    s->step = (float *)(void *)(at += z->sketch);
    s->best = (float *)(void *)(at += z->step);
    s->missing = (shortlist_panel *)(void *)(at += z->best);
    s->n_seen = (int *)(void *)(at + z->missing);
    s->n_missing = s->n_seen + n_thread;
    s->n_computed = s->n_missing + n_thread;
}

/* ---- the errors of estimates ---- */

static void panel_steps(const view *v, int64_t panel, float *out) {
    const pack_format *f = &v->format;
    const uint8_t *at = (const uint8_t *)v->data + panel * tile_panel_bytes(f, v->k);
    float scale[PACK_PANEL], min[PACK_PANEL], squares[PACK_PANEL] = {0};
    int64_t n_group = 0;
    for (int64_t c = 0; c * TILE_CHUNK_K < v->k; c++) {
        const tile_chunk chunk = tile_chunk_at(f, at, v->k, c);
        const int64_t n = num_div_up(NUM_MIN(v->k - c * TILE_CHUNK_K, (int64_t)TILE_CHUNK_K), f->group);
        for (int g = 0; g < n; g++) {
            tile_read_scales(f, chunk.scales, g, scale, min);
            for (int r = 0; r < PACK_PANEL; r++)
                squares[r] += scale[r] * scale[r];
        }
        n_group += n;
    }
    for (int r = 0; r < PACK_PANEL; r++)
        out[r] = sqrtf(squares[r] / (float)n_group / 12);
}

static void all_steps(void *arg, int thread, int n_thread) {
    const shortlist *s = arg;
    int64_t begin, end;
    pool_split(num_div_up(s->sketch.n, PACK_PANEL), 1, thread, n_thread, &begin, &end);
    for (int64_t p = begin; p < end; p++)
        panel_steps(&s->sketch, p, s->step + p * PACK_PANEL);
}

/* ---- opening ---- */

static nib_status read_sketch(shortlist *s, const layout *lay, const weight *head, pool *threads, ledger *l,
                              const canceller *cancel, uint64_t *n_read, nib_error *err) {
    weight rough = *head;
    rough.name = "sketch";
    rough.format = s->sketch.format;
    rough.plain = true;
    rough.imatrix = NULL;
    NIB_TRY(load_matrix(lay, &rough, s->memory.at, threads, l, cancel, n_read, err));
    pool_run(threads, all_steps, s);
    return NIB_OK;
}

nib_status shortlist_open(shortlist *s, const layout *lay, pool *threads, ledger *l, int n_best,
                          const canceller *cancel, uint64_t *n_read, nib_error *err) {
    const int n_thread = pool_size(threads);
    const weight *head;
    view sketch;
    sizes z;
    memset(s, 0, sizeof *s);
    if (!sizes_of(lay, n_thread, n_best, &z, &sketch, &head))
        return nib_fail(err, NIB_E_USAGE, "the output head cannot have a sketch for the %d largest logits",
                        n_best);
    NIB_TRY(memory_region_open(&s->memory, device_host(), l, NIB_OWNER_WEIGHTS, sum(&z), false,
                               "the output head's sketch", err));
    s->sketch = sketch;
    s->n_best = n_best;
    place(s, &z, n_thread);
    const nib_status status = read_sketch(s, lay, head, threads, l, cancel, n_read, err);
    if (status != NIB_OK)
        shortlist_close(s);
    return status;
}

void shortlist_close(shortlist *s) {
    memory_region_close(&s->memory);
    memset(s, 0, sizeof *s);
}
