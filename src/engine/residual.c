/* residual.c - see residual.h. Scalar code, op by op, behind each product. */
#include "engine/residual.h"

#include "base/mem.h"
#include "base/num.h"
#include "kernels/salient.h"
#include "model/find.h"
#include "quant/residual.h"

#include <inttypes.h>
#include <string.h>

struct residuals {
    const engine_core *e;
    residual *of; /* [n_weight of all blocks]; k 0: none */
    int *first;   /* [n_block + 1] */
    int n_of;
    int32_t *picked; /* [longest k] */
    float *acc;      /* [longest n] */
    int64_t k_chunk;
    salient_rule rule;
    uint64_t charged;
    probe eyes;
};

/* ---- computing ---- */

static void add(void *user, const probe_input *in, float *y, int64_t n) {
    residuals *r = user;
    const residual *of = &r->of[r->first[in->block] + in->w];
    if (of->k == 0)
        return;
    for (int64_t row = 0; row < in->n_row; row++) {
        const float *x = in->x + row * in->k;
        const int64_t n_pick = salient_pick(r->rule, x, in->k, r->k_chunk, r->picked);
        memset(r->acc, 0, (size_t)n * sizeof *r->acc);
        for (int64_t i = 0; i < n_pick; i++)
            residual_add(of, r->picked[i], x[r->picked[i]], r->acc);
        residual_finish(of, r->acc, y + row * n);
    }
}

/* ---- what rounding took ---- */

/* Row i of a weight as floats. */
static nib_status read_row(const container *c, const weight *w, int64_t i, uint8_t *raw, float *out,
                           nib_error *err) {
    for (int p = 0; p < w->n_piece; i -= w->pieces[p++].n_row) {
        const weight_piece *piece = &w->pieces[p];
        uint64_t bytes = 0;
        if (i >= piece->n_row)
            continue;
        if (!type_row_bytes(piece->tensor->type, w->k, &bytes))
            break;
        NIB_TRY(file_read_at(container_file(c, piece->tensor->file), raw,
                             piece->tensor->offset + (uint64_t)(piece->first_row + i) * bytes, bytes, err));
        type_get(piece->tensor->type)->dequantize(raw, out, w->k);
        return NIB_OK;
    }
    return nib_fail(err, NIB_E_MODEL, "weight '%s' has no row %" PRId64, w->name, i);
}

static nib_status fill(residual *r, const container *from, const weight *fine, const container *by,
                       const weight *coarse, nib_error *err) {
    const size_t k = (size_t)r->k;
    float *values = mem_array(2 * k, sizeof *values);
    uint8_t *raw = mem_array(k, sizeof(double));
    nib_status status = values && raw ? NIB_OK : nib_fail_nomem(err, 16 * k, "a row");
    for (int64_t i = 0; i < r->n && status == NIB_OK; i++) {
        status = read_row(from, fine, i, raw, values, err);
        if (status == NIB_OK)
            status = read_row(by, coarse, i, raw, values + k, err);
        for (size_t c = 0; c < k && status == NIB_OK; c++)
            values[c] -= values[k + c];
        if (status == NIB_OK)
            residual_set(r, i, values);
    }
    mem_free(raw);
    mem_free(values);
    return status;
}

static nib_status make_weight(residuals *r, const model *original, int b, int w, nib_error *err) {
    const engine_core *e = r->e;
    const weight *coarse = &layout_block(e->layout, b)->weights[w];
    const weight *fine = &model_block(original, b)->weights[w];
    residual *of = &r->of[r->first[b] + w];
    if (coarse->vector || coarse->shared_block >= 0 || coarse->n_piece == 0)
        return NIB_OK;
    if (fine->n != coarse->n || fine->k != coarse->k || coarse->transposed || fine->transposed ||
        weight_is_rounded(coarse) || weight_is_second(coarse))
        return nib_fail(err, NIB_E_MODEL,
                        "residuals of '%s' in block %d: expected [%" PRId64 ", %" PRId64
                        "] in the original, and the formats of the file, found [%" PRId64 ", %" PRId64 "]",
                        coarse->name, b, coarse->n, coarse->k, fine->n, fine->k);
    const uint64_t bytes = residual_bytes(e->asked.residual_bits, coarse->n, coarse->k);
    NIB_TRY(ledger_charge(e->ledger, NIB_TIER_RAM, NIB_OWNER_WEIGHTS, bytes, err));
    r->charged += bytes;
    NIB_TRY(residual_open(of, e->asked.residual_bits, coarse->n, coarse->k, err));
    return fill(of, model_container(original), fine, e->container, coarse, err);
}

/* Layers alone: an output head is large, and an embedding is not multiplied. */
static nib_status make(residuals *r, const model *original, nib_error *err) {
    const int n_block = layout_n_block(r->e->layout);
    int64_t longest = 1, widest = 1;
    if (model_n_block(original) != n_block)
        return nib_fail(err, NIB_E_MODEL, "expected an original of %d blocks, found %d", n_block,
                        model_n_block(original));
    for (int b = 0; b < n_block; b++) {
        const block *blk = layout_block(r->e->layout, b);
        if (blk->n_weight != model_block(original, b)->n_weight)
            return nib_fail(err, NIB_E_MODEL, "block %d: expected %d weights in the original, found %d", b,
                            blk->n_weight, model_block(original, b)->n_weight);
        for (int w = 0; w < blk->n_weight && blk->layer >= 0; w++) {
            longest = NUM_MAX(longest, blk->weights[w].k);
            widest = NUM_MAX(widest, blk->weights[w].n);
            NIB_TRY(make_weight(r, original, b, w, err));
        }
    }
    r->picked = mem_array((size_t)longest, sizeof *r->picked);
    r->acc = mem_array((size_t)widest, sizeof *r->acc);
    return r->picked && r->acc ? NIB_OK : nib_fail_nomem(err, (size_t)longest * 4, "channels");
}

static nib_status open_original(residuals *r, nib_error *err) {
    char *path;
    model *original;
    NIB_TRY(model_find(r->e->asked.residual, &path, err));
    nib_status status = model_open_headers(path, &r->e->log, NULL, &original, err);
    mem_free(path);
    NIB_TRY(status);
    status = make(r, original, err);
    model_close(original);
    return status;
}

static nib_status check_options(const engine_core *e, residuals *r, nib_error *err) {
    const nib_engine_options *o = &e->asked;
    if (!salient_rule_from_name(o->residual_rule ? o->residual_rule : "approx", &r->rule))
        return nib_fail(err, NIB_E_USAGE, "expected approx, exact or random channels, found '%s'",
                        o->residual_rule);
    if (!residual_bits_known(o->residual_bits))
        return nib_fail(err, NIB_E_USAGE, "expected residuals of 2, 4, 8 or 16 bits, found %d",
                        o->residual_bits);
    if (e->kind != &backend_cpu)
        return nib_fail(err, NIB_E_USAGE, "residuals are computed by --backend cpu alone");
    r->k_chunk = o->k_chunk;
    return NIB_OK;
}

nib_status residuals_open(const engine_core *e, residuals **out, nib_error *err) {
    residuals *r = mem_calloc(1, sizeof *r);
    const int n_block = layout_n_block(e->layout);
    if (!r)
        return nib_fail_nomem(err, sizeof *r, "residuals");
    r->e = e;
    r->eyes = (probe){.made = add, .user = r};
    r->first = mem_calloc((size_t)n_block + 1, sizeof *r->first);
    for (int b = 0; r->first && b < n_block; b++)
        r->n_of = r->first[b + 1] = r->first[b] + layout_block(e->layout, b)->n_weight;
    r->of = r->first ? mem_calloc((size_t)r->n_of + 1, sizeof *r->of) : NULL;
    nib_status status = r->of ? check_options(e, r, err) : nib_fail_nomem(err, 64, "residuals");
    if (status == NIB_OK)
        status = open_original(r, err);
    if (status != NIB_OK) {
        residuals_close(r);
        return status;
    }
    *out = r;
    return NIB_OK;
}

void residuals_close(residuals *r) {
    if (!r)
        return;
    for (int i = 0; r->of && i < r->n_of; i++)
        residual_close(&r->of[i]);
    ledger_release(r->e->ledger, NIB_TIER_RAM, NIB_OWNER_WEIGHTS, r->charged);
    mem_free(r->of);
    mem_free(r->first);
    mem_free(r->picked);
    mem_free(r->acc);
    mem_free(r);
}

const probe *residuals_probe(const residuals *r) {
    return &r->eyes;
}
