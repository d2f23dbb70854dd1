/* channel_factors.c - see channel_factors.h. */
#include "engine/residual/channel_factors.h"

#include "base/mem.h"
#include "engine/imatrix.h"

#include <math.h>
#include <string.h>

/* Sums for one input of a block: `to` [k] gets the sums over the matrices that read it. */
typedef struct lengths {
    const residual *const *of;
    int n;
    int64_t k;
    float *to;
} lengths;

static void add_lengths(void *arg, int thread, int n_thread) {
    const lengths *l = arg;
    int64_t begin, end;
    pool_split(l->k, 16, thread, n_thread, &begin, &end);
    for (int64_t c = begin; c < end; c++) {
        float sum = 0;
        for (int i = 0; i < l->n; i++)
            sum += residual_energy(l->of[i], c);
        l->to[c] = sqrtf(sum);
    }
}

/* Statistics of the original's channels, in the order of its own blocks. */
typedef struct calibrated {
    model_sites sites;
    model_imatrix stats;
} calibrated;

static nib_status open_calibrated(calibrated *c, const model *original, nib_error *err) {
    char content[CONTENT_KEY];
    NIB_TRY(container_content_key(model_container(original), content, err));
    NIB_TRY(sites_open(&c->sites, original, err));
    char *path = imatrix_find(content);
    const nib_status status =
        path ? imatrix_load(path, content, c->sites.k, c->sites.n_site + c->sites.n_stack, &c->stats, err)
             : nib_fail(
                   err, NIB_E_NOTFOUND,
                   "static channels are those that calibration found: 'nibble quantize' or 'nibble profile "
                   "--costs' of the original measures them");
    mem_free(path);
    return status;
}

static void fill(const engine_core *e, const residual_use *use, const residual *const *of, int n, int b,
                 int w, const calibrated *c, float *to) {
    const int64_t k = of[0]->k;
    const int site = c ? c->sites.of[c->sites.first[b] + w] : -1;
    if (use->rule == SALIENT_WEIGHTED) {
        lengths l = {of, n, k, to};
        pool_run(e->threads, add_lengths, &l);
    } else {
        for (int64_t i = 0; i < k; i++)
            to[i] = site >= 0 ? sqrtf(c->stats.mean[c->stats.first[site] + (uint64_t)i]) : 0;
    }
}

static void fill_all(channel_factors *out, const engine_core *e, const residual_use *use,
                     const residual_kinds *kinds, const calibrated *c) {
    enum { TOGETHER = 16 };
    float *at = out->values;
    for (int b = 0; b < layout_n_block(e->layout); b++)
        for (int kind = 0; kind < kinds->n; kind++) {
            const residual *of[TOGETHER];
            int n = 0, first = -1;
            for (int i = use->first[b]; i < use->first[b + 1]; i++)
                if (kinds->of[i] == kind && n < TOGETHER) {
                    first = first < 0 ? i : first;
                    of[n++] = &use->of[i];
                    out->of[i] = at;
                }
            if (!n)
                continue;
            fill(e, use, of, n, b, first - use->first[b], c, at);
            at += of[0]->k;
        }
}

nib_status channel_factors_open(channel_factors *out, const engine_core *e, const residual_use *use,
                                const residual_kinds *kinds, const model *original, nib_error *err) {
    const int n = use->first[layout_n_block(e->layout)];
    uint64_t values = 0;
    calibrated c;
    memset(&c, 0, sizeof c);
    memset(out, 0, sizeof *out);
    if (use->rule != SALIENT_WEIGHTED && use->rule != SALIENT_STATIC)
        return NIB_OK;
    for (int i = 0; i < n; i++)
        values += kinds->of[i] < 0 ? 0 : (uint64_t)use->of[i].k;
    const uint64_t bytes = values * sizeof(float) + (uint64_t)n * sizeof *out->of;
    NIB_TRY(ledger_charge(e->ledger, PLACE_RAM, NIB_OWNER_TABLES, bytes, err));
    out->charged = bytes;
    out->of = mem_calloc((size_t)n + 1, sizeof *out->of);
    out->values = mem_array((size_t)values + 1, sizeof *out->values);
    if (!out->of || !out->values)
        return nib_fail_nomem(err, bytes, "what channels are chosen by");
    nib_status status = use->rule == SALIENT_STATIC ? open_calibrated(&c, original, err) : NIB_OK;
    if (status == NIB_OK)
        fill_all(out, e, use, kinds, use->rule == SALIENT_STATIC ? &c : NULL);
    imatrix_clear(&c.stats);
    sites_close(&c.sites);
    return status;
}

void channel_factors_close(channel_factors *by, const engine_core *e) {
    mem_free(by->of);
    mem_free(by->values);
    ledger_release(e->ledger, PLACE_RAM, NIB_OWNER_TABLES, by->charged);
    memset(by, 0, sizeof *by);
}
