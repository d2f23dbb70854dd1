/* shortlist.c - see shortlist.h: what it takes, and how it is made. head.c uses it. */
#include "exec/cpu/shortlist.h"

#include "base/num.h"
#include "model/reformat.h"
#include "quant/tile.h"
#include "tiers/load_matrix.h"

#include <math.h>
#include <string.h>

enum {
    LEAST_HEAD = 1 << 20,  /* bytes: below, a pass over it is no longer than starting one */
    COARSE_FROM = 64 << 20 /* weights: a bit less of each is then worth the rows that it lets through */
};
#define WORTH 0.7 /* a sketch is smaller than that share of the matrix */

/* A sketch, and how many times a small read's time a token waits for rows of the matrix where that is on
 * disk: for few, for more. Measured: docs/shortlist.md. */
typedef struct grade {
    const char *format;
    double waits;
} grade;
static const grade fine[] = {{"u5g64", 4}, {"u5g64", 48}}, coarse[] = {{"u4g64", 12}, {"u4g32", 92}};

static grade grade_of(const weight *head, int n_best) {
    const grade *of = head->n >= COARSE_FROM / head->k ? coarse : fine;
    return of[n_best > SHORTLIST_FEW];
}

/* The head's matrix, the format of its sketch and the bytes of that; false: it cannot have one that helps. */
static bool sketch_of(const model *m, int n_best, const weight **head, pack_format *format, uint64_t *bytes) {
    return n_best >= 1 && n_best <= SHORTLIST_MOST && model_head(m, head) && (*head)->bytes >= LEAST_HEAD &&
           pack_from_name(grade_of(*head, n_best).format, (*head)->k, format) &&
           pack_bytes(format, (*head)->n, (*head)->k, bytes) &&
           (double)*bytes <= WORTH * (double)(*head)->bytes;
}

double shortlist_of(const model *m, int n_best, uint64_t *bytes, int *bits) {
    const weight *head;
    pack_format f;
    if (!sketch_of(m, n_best, &head, &f, bytes)) {
        *bytes = 0;
        *bits = 0;
        return 0;
    }
    *bits = f.bits;
    return grade_of(head, n_best).waits;
}

typedef struct sizes {
    int64_t n_panel;
    uint64_t sketch, step, best, missing, counts;
} sizes;

static uint64_t round64(uint64_t n) {
    return (n + 63) & ~UINT64_C(63);
}

static bool sizes_of(const model *m, int n_thread, int n_best, sizes *out, pack_format *format,
                     const weight **head) {
    if (!sketch_of(m, n_best, head, format, &out->sketch))
        return false;
    out->n_panel = num_div_up((*head)->n, PACK_PANEL);
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

bool shortlist_bytes(const model *m, int n_thread, int n_best, uint64_t *bytes, uint64_t *staging) {
    pack_format format;
    const weight *head;
    sizes z;
    if (!sizes_of(m, n_thread, n_best, &z, &format, &head))
        return false;
    *bytes = sum(&z);
    *staging = load_matrix_bytes(m, n_thread);
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

/* ---- how far off a row's product may be ---- */

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

static nib_status read_sketch(shortlist *s, const model *m, const weight *head, pool *threads, ledger *l,
                              const canceller *cancel, uint64_t *n_read, nib_error *err) {
    weight rough = *head;
    rough.name = "sketch";
    rough.format = s->sketch.format;
    rough.plain = true;
    rough.columns = NULL;
    NIB_TRY(load_matrix(m, &rough, s->memory.at, threads, l, cancel, n_read, err));
    pool_run(threads, all_steps, s);
    return NIB_OK;
}

nib_status shortlist_open(shortlist *s, const model *m, pool *threads, ledger *l, int n_best,
                          const canceller *cancel, uint64_t *n_read, nib_error *err) {
    const int n_thread = pool_size(threads);
    const weight *head;
    pack_format format;
    sizes z;
    memset(s, 0, sizeof *s);
    if (!sizes_of(m, n_thread, n_best, &z, &format, &head))
        return nib_fail(err, NIB_E_USAGE, "the output head cannot have a sketch for the best %d", n_best);
    NIB_TRY(tier_region_open(&s->memory, device_host(), l, NIB_OWNER_WEIGHTS, sum(&z), false,
                             "the output head's sketch", err));
    s->sketch = (view){NULL, format, head->n, head->k};
    s->n_best = n_best;
    place(s, &z, n_thread);
    const nib_status status = read_sketch(s, m, head, threads, l, cancel, n_read, err);
    if (status != NIB_OK)
        shortlist_close(s);
    return status;
}

double shortlist_share(const shortlist *s) {
    const double all = (double)s->n_row * (double)num_div_up(s->sketch.n, PACK_PANEL);
    return all > 0 ? (double)s->n_exact / all : 1;
}

void shortlist_close(shortlist *s) {
    tier_region_close(&s->memory);
    memset(s, 0, sizeof *s);
}
