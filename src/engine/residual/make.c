/* make.c - computes rounding residuals from a model and its original, matrix by matrix. */
#include "engine/residual/make.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/residual/fit.h"

#include <inttypes.h>
#include <math.h>

enum {
    UNIT = 64,    /* outputs that a thread takes at a time */
    TOGETHER = 16 /* outputs of one residual_set */
};

int64_t residual_longest_row(const layout *lay) {
    int64_t k = 1;
    for (int b = 0; b < layout_n_block(lay); b++)
        for (int w = 0; w < layout_block(lay, b)->n_weight; w++)
            k = NUM_MAX(k, layout_block(lay, b)->weights[w].k);
    return k;
}

/* The work on one matrix by all threads; each takes its share of units. */
typedef struct filling {
    const engine_core *e;
    residual *r;
    residual_pair pair;
    bool scaled;      /* the base's norms differ from the original's */
    residual_fit fit; /* of the pair */
    float *norms; /* [2, longest row]: the norm that produces a product's input, in the original and in the
                     base */
    double *whole, *taken; /* [n_thread] sums of squares: of the matrix, and of its residual */
    bool some;             /* some residual of the model is not zero */
    float *values;         /* [n_thread, TOGETHER + 1, k] */
    uint8_t *raw;          /* [n_thread, 8 k]: a row in the file's format */
    nib_status *status;
    nib_error *err; /* [n_thread] both */
} filling;

static nib_status fill_some(const filling *f, int thread, int64_t i, int64_t n, float *values, uint8_t *raw,
                            nib_error *err) {
    const int64_t k = f->r->k;
    float *coarse = values + TOGETHER * k;
    for (int64_t o = 0; o < n; o++) {
        float *fine = values + o * k;
        NIB_TRY(residual_read_rows(&f->pair, i + o, raw, fine, coarse, err));
        residual_fit_row(&f->fit, fine, coarse, k);
        float whole = 0, taken = 0;
        for (int64_t c = 0; c < k; c++) {
            whole += fine[c] * fine[c];
            fine[c] -= coarse[c];
            taken += fine[c] * fine[c];
        }
        f->whole[thread] += (double)whole;
        f->taken[thread] += (double)taken;
    }
    residual_set(f->r, i, values);
    return cancel_check(&f->e->cancel, err);
}

static void fill_share(void *arg, int thread, int n_thread) {
    const filling *f = arg;
    const int64_t k = f->r->k;
    float *values = f->values + (int64_t)thread * (TOGETHER + 1) * k;
    uint8_t *raw = f->raw + (int64_t)thread * 8 * k;
    int64_t begin, end;
    pool_split(f->r->n, UNIT, thread, n_thread, &begin, &end);
    for (int64_t i = begin; i < end && f->status[thread] == NIB_OK; i += TOGETHER)
        f->status[thread] =
            fill_some(f, thread, i, NUM_MIN((int64_t)TOGETHER, end - i), values, raw, &f->err[thread]);
}

/* The residuals of SmolLM2 in 2 bits have 0.14 of its squared values; the difference to another model's
 * matrix has more than all of them. */
#define MAX_TAKEN_SHARE 0.6

static nib_status check_values(filling *f, int b, nib_error *err) {
    double whole = 0, taken = 0;
    for (int t = 0; t < pool_size(f->e->threads); t++) {
        whole += f->whole[t];
        taken += f->taken[t];
    }
    f->some |= taken > 0;
    if (taken == 0 || taken < MAX_TAKEN_SHARE * whole)
        return NIB_OK;
    return nib_fail(err, NIB_E_MODEL,
                    "'%s' in block %d: expected the original of this model, found another model (the squared "
                    "difference is %.0f %% of the squared values)",
                    f->pair.coarse->name, b, whole > 0 ? 100 * taken / whole : INFINITY);
}

static nib_status fill(filling *f, int b, nib_error *err) {
    const int n_thread = pool_size(f->e->threads);
    for (int t = 0; t < n_thread; t++) {
        f->status[t] = NIB_OK;
        f->whole[t] = f->taken[t] = 0;
    }
    pool_run(f->e->threads, fill_share, f);
    for (int t = 0; t < n_thread; t++)
        if (f->status[t] != NIB_OK) {
            if (err)
                *err = f->err[t];
            return f->status[t];
        }
    return check_values(f, b, err);
}

static nib_status check_weight(const weight *fine, const weight *coarse, int b, nib_error *err) {
    if (fine->n == coarse->n && fine->k == coarse->k && !coarse->transposed && !fine->transposed &&
        !fine->vector && fine->shared_block < 0 && fine->n_piece > 0)
        return NIB_OK;
    return nib_fail(err, NIB_E_MODEL,
                    "residuals of '%s' in block %d: expected rows [%" PRId64 ", %" PRId64
                    "] in the original, found [%" PRId64 ", %" PRId64 "]%s",
                    coarse->name, b, coarse->n, coarse->k, fine->n, fine->k,
                    fine->transposed || coarse->transposed ? ", transposed" : "");
}

/* Reads the norms that make the input of op i of block b. *found: both exist, with as many channels. */
static nib_status read_norms(filling *f, const model *original, int b, int i, bool *found, nib_error *err) {
    const block *coarse = layout_block(f->e->layout, b), *fine = model_block(original, b);
    const op *o = &coarse->program.ops[i];
    const int w = o->kind == OP_LINEAR ? residual_norm_of(coarse, i) : -1;
    *found = w >= 0 && w < fine->n_weight && coarse->weights[w].k == o->k && fine->weights[w].k == o->k &&
             fine->weights[w].vector;
    if (!*found)
        return NIB_OK;
    NIB_TRY(residual_read_vector(f->pair.fine_files, &fine->weights[w], f->raw, f->norms, err));
    return residual_read_vector(f->pair.coarse_files, &coarse->weights[w], f->raw, f->norms + o->k, err);
}

/* Sets f->scaled: whether some norm of the base differs from the original's. */
static nib_status compare_norms(filling *f, const model *original, nib_error *err) {
    for (int b = 0; b < layout_n_block(f->e->layout) && !f->scaled; b++) {
        const program *p = &layout_block(f->e->layout, b)->program;
        for (int i = 0; i < p->n_op && !f->scaled; i++) {
            bool found;
            NIB_TRY(read_norms(f, original, b, i, &found, err));
            for (int64_t c = 0, k = p->ops[i].k; found && c < k; c++)
                f->scaled |= fabsf(f->norms[c] - f->norms[k + c]) > 1e-3f * fabsf(f->norms[c]);
        }
    }
    return NIB_OK;
}

/* Finds the factors of weight w of block b, whose pair is set. */
static nib_status find_factors(filling *f, const model *original, int b, int w, nib_error *err) {
    const program *p = &layout_block(f->e->layout, b)->program;
    bool found = false;
    residual_fit_none(&f->fit);
    if (!f->scaled)
        return NIB_OK;
    for (int i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == OP_LINEAR && p->ops[i].w == w) {
            NIB_TRY(read_norms(f, original, b, i, &found, err));
            break;
        }
    return residual_fit_find(&f->fit, &f->pair, found ? f->norms : NULL, err);
}

static nib_status make_block(residual_store *r, const model *original, int b, filling *f, uint8_t **at,
                             nib_error *err) {
    const block *coarse = layout_block(r->e->layout, b), *fine = model_block(original, b);
    if (coarse->n_weight != fine->n_weight)
        return nib_fail(err, NIB_E_MODEL, "block %d: expected %d weights in the original, found %d", b,
                        coarse->n_weight, fine->n_weight);
    for (int w = 0; w < coarse->n_weight; w++) {
        const weight *of = &coarse->weights[w];
        uint64_t bytes = 0;
        if (!residual_is_of(coarse, of) || (!r->keep && r->kinds.of[r->first[b] + w] < 0))
            continue;
        NIB_TRY(check_weight(&fine->weights[w], of, b, err));
        f->r = &r->of[r->first[b] + w];
        uint8_t *codes = r->is_on_disk || r->keep ? r->disk.staging.at : *at;
        f->pair.fine = &fine->weights[w];
        f->pair.coarse = of;
        *f->r = residual_in(codes, r->e->requested.residual_bits, of->n, of->k);
        residual_bytes(r->e->requested.residual_bits, of->n, of->k,
                       &bytes); /* cannot fail: the sum was checked */
        NIB_TRY(find_factors(f, original, b, w, err));
        NIB_TRY(fill(f, b, err));
        if (r->keep) {
            NIB_TRY(file_writer_write(r->keep, codes, (size_t)bytes, err));
            continue;
        }
        if (r->is_on_disk) {
            bytes = (uint64_t)of->n * sizeof *f->r->scale;
            memcpy(*at, f->r->scale, (size_t)bytes);
            f->r->scale = (float *)(void *)*at;
            NIB_TRY(residual_disk_add(&r->disk, f->r, &r->at[r->first[b] + w], err));
        }
        *at += bytes;
    }
    return NIB_OK;
}

static nib_status make_all(residual_store *r, const model *original, filling *f, nib_error *err) {
    uint8_t *at = r->memory.at;
    const int n_block = layout_n_block(r->e->layout);
    if (model_n_block(original) != n_block)
        return nib_fail(err, NIB_E_MODEL, "expected an original of %d blocks, as the base has, found %d",
                        n_block, model_n_block(original));
    NIB_TRY(compare_norms(f, original, err));
    if (f->scaled)
        log_line(&r->e->log,
                 "the model's channels were scaled before rounding, so its residuals are scaled too");
    for (int b = 0; b < n_block; b++)
        NIB_TRY(make_block(r, original, b, f, &at, err));
    return f->some ? NIB_OK
                   : nib_fail(err, NIB_E_MODEL,
                              "expected finer values in the original than in the model, found the same: "
                              "there is nothing to restore");
}

nib_status residual_make(residual_store *r, const model *original, nib_error *err) {
    const engine_core *e = r->e;
    const int n_thread = pool_size(e->threads);
    const size_t k = (size_t)residual_longest_row(e->layout), n_value = (size_t)n_thread * (TOGETHER + 1) * k;
    const uint64_t bytes =
        n_value * sizeof(float) + (uint64_t)n_thread * 8 * k + residual_fit_bytes(n_thread, (int64_t)k);
    filling f = {.e = e, .pair = {.fine_files = model_container(original), .coarse_files = e->container}};
    NIB_TRY(ledger_charge(e->ledger, PLACE_RAM, NIB_OWNER_STAGING, bytes, err));
    f.values = mem_array(n_value, sizeof *f.values);
    f.norms = mem_array(2 * k, sizeof *f.norms);
    f.raw = mem_array((size_t)n_thread * k, 8);
    f.whole = mem_calloc(2 * (size_t)n_thread, sizeof *f.whole);
    f.taken = f.whole ? f.whole + n_thread : NULL;
    f.status = mem_calloc((size_t)n_thread, sizeof *f.status);
    f.err = mem_calloc((size_t)n_thread, sizeof *f.err);
    nib_status status = f.values && f.norms && f.raw && f.whole && f.status && f.err
                            ? residual_fit_open(&f.fit, e->threads, (int64_t)k, err)
                            : nib_fail_nomem(err, bytes, "rows of residuals");
    if (status == NIB_OK)
        status = make_all(r, original, &f, err);
    residual_fit_close(&f.fit);
    mem_free(f.values);
    mem_free(f.norms);
    mem_free(f.raw);
    mem_free(f.whole);
    mem_free(f.status);
    mem_free(f.err);
    ledger_release(e->ledger, PLACE_RAM, NIB_OWNER_STAGING, bytes);
    return status;
}
