/* residual.c - see residual.h: computes the residuals from an original. */
#include "engine/residual.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/residual_by.h"
#include "engine/residual_disk.h"
#include "engine/residual_fit.h"
#include "hub/find.h"
#include "tiers/region.h"

#include <inttypes.h>
#include <math.h>

enum {
    UNIT = 64,    /* outputs that a thread makes at a time */
    TOGETHER = 16 /* of them that residual_set takes */
};

struct engine_residuals {
    engine_core *e;
    residual_use use; /* what the back end is told of; owns its arrays */
    residual *of;
    int *first;
    int32_t *k_chunk, *n_tb; /* [first[n_block]] */
    residual_kinds kinds;
    residual_by by;
    tier_region memory;
    bool is_on_disk;
    residual_disk disk;
    uint64_t *at; /* [first[n_block]] with is_on_disk: where the file has each one's codes */
};

/* ---- which matrices ---- */

static bool has_one(const block *b, const weight *w) {
    return b->layer >= 0 && !w->vector && w->shared_block < 0 && w->n_piece > 0 &&
           w->format.layout == PACK_TILE && !weight_is_second(w);
}

static int64_t longest_row(const layout *lay) {
    int64_t k = 1;
    for (int b = 0; b < layout_n_block(lay); b++)
        for (int w = 0; w < layout_block(lay, b)->n_weight; w++)
            k = NUM_MAX(k, layout_block(lay, b)->weights[w].k);
    return k;
}

/* Bytes: of all, of them the scales, and of the largest matrix. false: too many. */
static bool count_bytes(const engine_core *e, uint64_t *all, uint64_t *scales, uint64_t *largest) {
    uint64_t bytes;
    *all = *scales = *largest = 0;
    for (int b = 0; b < layout_n_block(e->layout); b++) {
        const block *of = layout_block(e->layout, b);
        for (int w = 0; w < of->n_weight; w++) {
            if (!has_one(of, &of->weights[w]))
                continue;
            if (!residual_bytes(e->requested.residual_bits, of->weights[w].n, of->weights[w].k, &bytes) ||
                !num_add_u64(*all, bytes, all))
                return false;
            *scales += (uint64_t)of->weights[w].n * sizeof(float); /* a part of `bytes` */
            *largest = NUM_MAX(*largest, bytes);
        }
    }
    return true;
}

uint64_t residuals_bytes(const engine_core *e) {
    uint64_t all, scales, largest;
    if (!count_bytes(e, &all, &scales, &largest))
        return UINT64_MAX;
    if (!residual_disk_wanted(e, all))
        return all;
    const int64_t k = longest_row(e->layout);
    return scales +
           (uint64_t)e->resolved.n_thread * residual_reader_bytes(salient_count(k, e->resolved.k_chunk), k);
}

nib_status residuals_check(const engine_core *e, nib_error *err) {
    for (int b = 0; e->residuals && b < layout_n_block(e->layout); b++) {
        const block *of = layout_block(e->layout, b);
        for (int w = 0; w < of->n_weight; w++)
            if (of->layer >= 0 && (weight_is_rounded(&of->weights[w]) || weight_is_second(&of->weights[w])))
                return nib_fail(err, NIB_E_USAGE,
                                "residuals are of the formats that the file has: the plan has another one "
                                "for '%s' in block %d",
                                of->weights[w].name, b);
    }
    return NIB_OK;
}

/* ---- what rounding took ---- */

/* One matrix, by all threads: each takes its share of units. */
typedef struct filling {
    const engine_core *e;
    residual *r;
    residual_pair pair;
    bool scaled;      /* the base's norms are not the original's */
    residual_fit fit; /* of the pair */
    float *norms;     /* [2, longest row]: those that make a product's input, the original's and the base's */
    double *whole, *taken; /* [n_thread] sums of squares: the matrix, and what rounding took */
    bool some;             /* it took anything of the model */
    float *values;         /* [n_thread, TOGETHER + 1, k] */
    uint8_t *raw;          /* [n_thread, 8 k]: a row as a file has it */
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

/* Rounding SmolLM2 to 2 bits takes 0.14 of its squared values; another model's matrix has all of them wrong.
 */
#define MOST_TAKEN 0.6

static nib_status check_values(filling *f, int b, nib_error *err) {
    double whole = 0, taken = 0;
    for (int t = 0; t < pool_size(f->e->threads); t++) {
        whole += f->whole[t];
        taken += f->taken[t];
    }
    f->some |= taken > 0;
    if (taken == 0 || taken < MOST_TAKEN * whole)
        return NIB_OK;
    return nib_fail(err, NIB_E_MODEL,
                    "'%s' in block %d: expected values that rounding makes the base's of, found others (the "
                    "squared difference is %.0f %% of the squared values): it is another model",
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

/* The norms that make what op i of block b reads. *found: there are any, of as many channels. */
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

/* Whether the base is scaled: some norm is not the original's. */
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

/* Of weight w of block b, whose pair is set. */
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

static nib_status make_block(engine_residuals *r, const model *original, int b, filling *f, uint8_t **at,
                             nib_error *err) {
    const block *coarse = layout_block(r->e->layout, b), *fine = model_block(original, b);
    if (coarse->n_weight != fine->n_weight)
        return nib_fail(err, NIB_E_MODEL, "block %d: expected %d weights in the original, found %d", b,
                        coarse->n_weight, fine->n_weight);
    for (int w = 0; w < coarse->n_weight; w++) {
        const weight *of = &coarse->weights[w];
        uint64_t bytes = 0;
        if (!has_one(coarse, of))
            continue;
        NIB_TRY(check_weight(&fine->weights[w], of, b, err));
        f->r = &r->of[r->first[b] + w];
        uint8_t *codes = r->is_on_disk ? r->disk.staging.at : *at;
        f->pair.fine = &fine->weights[w];
        f->pair.coarse = of;
        *f->r = residual_in(codes, r->e->requested.residual_bits, of->n, of->k);
        residual_bytes(r->e->requested.residual_bits, of->n, of->k,
                       &bytes); /* all together were not too many */
        NIB_TRY(find_factors(f, original, b, w, err));
        NIB_TRY(fill(f, b, err));
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

static nib_status make_all(engine_residuals *r, const model *original, filling *f, nib_error *err) {
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

/* With the rows that threads work on, which are charged and go again. */
static nib_status make(engine_residuals *r, const model *original, nib_error *err) {
    const engine_core *e = r->e;
    const int n_thread = pool_size(e->threads);
    const size_t k = (size_t)longest_row(e->layout), n_value = (size_t)n_thread * (TOGETHER + 1) * k;
    const uint64_t bytes =
        n_value * sizeof(float) + (uint64_t)n_thread * 8 * k + residual_fit_bytes(n_thread, (int64_t)k);
    filling f = {.e = e, .pair = {.fine_files = model_container(original), .coarse_files = e->container}};
    NIB_TRY(ledger_charge(e->ledger, NIB_TIER_RAM, NIB_OWNER_STAGING, bytes, err));
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
    ledger_release(e->ledger, NIB_TIER_RAM, NIB_OWNER_STAGING, bytes);
    return status;
}

static nib_status make_from_original(engine_residuals *r, nib_error *err) {
    char *path;
    model *original;
    NIB_TRY(model_find(r->e->requested.residual, &path, err));
    nib_status status = model_open_headers(path, &r->e->log, NULL, false, &original, err);
    if (status != NIB_OK) {
        mem_free(path);
        return status;
    }
    status = make(r, original, err);
    if (status == NIB_E_MODEL)
        status = nib_fail_prefix(err, status, path);
    mem_free(path);
    const int64_t k = longest_row(r->e->layout);
    if (status == NIB_OK && r->is_on_disk)
        status = residual_disk_finish(&r->disk, &r->use, pool_size(r->e->threads),
                                      salient_count(k, r->use.max_k_chunk), k, err);
    if (status == NIB_OK)
        status = residual_kinds_open(&r->kinds, r->e->layout, r->of, r->first, err);
    if (status == NIB_OK)
        status = residual_by_open(&r->by, r->e, &r->use, &r->kinds, original, err);
    r->use.by = r->by.of;
    model_close(original);
    return status;
}

/* ---- opening ---- */

static nib_status check_options(const engine_core *e, salient_rule *rule, nib_error *err) {
    const nib_engine_options *o = &e->requested;
    if (!salient_rule_from_name(o->residual_rule ? o->residual_rule : "approx", rule))
        return nib_fail(err, NIB_E_USAGE,
                        "expected approx, exact, random, static or weighted channels, found '%s'",
                        o->residual_rule);
    if (!residual_bits_known(o->residual_bits))
        return nib_fail(err, NIB_E_USAGE, "residual bits: expected 2, 4, 8 or 16, found %d",
                        o->residual_bits);
    if (e->kind == &backend_check)
        return nib_fail(err, NIB_E_USAGE, "residuals: expected --backend cpu or cuda");
    if (e->kind == &backend_cuda && (o->residual_bits != 4 || *rule != SALIENT_APPROX))
        return nib_fail(
            err, NIB_E_USAGE,
            "residuals with --backend cuda: expected --residual-bits 4 and --residual-rule approx");
    return NIB_OK;
}

static nib_status open_memory(engine_residuals *r, nib_error *err) {
    const int n_block = layout_n_block(r->e->layout);
    uint64_t all, scales, largest;
    char size[32], on_disk[32];
    if (!count_bytes(r->e, &all, &scales, &largest))
        all = scales = UINT64_MAX;
    r->is_on_disk = residual_disk_wanted(r->e, all);
    const uint64_t bytes = r->is_on_disk ? scales : all;
    r->first = mem_calloc((size_t)n_block + 1, sizeof *r->first);
    for (int b = 0; r->first && b < n_block; b++)
        r->first[b + 1] = r->first[b] + layout_block(r->e->layout, b)->n_weight;
    const size_t n_weight = r->first ? (size_t)r->first[n_block] + 1 : 0;
    r->of = n_weight ? mem_calloc(n_weight, sizeof *r->of) : NULL;
    r->k_chunk = n_weight ? mem_calloc(n_weight, sizeof *r->k_chunk) : NULL;
    r->n_tb = n_weight ? mem_calloc(n_weight, sizeof *r->n_tb) : NULL;
    r->at = n_weight ? mem_calloc(n_weight, sizeof *r->at) : NULL;
    if (!r->at || !r->of || !r->k_chunk || !r->n_tb)
        return nib_fail_nomem(err, 64, "residuals");
    r->use.of = r->of;
    r->use.first = r->first;
    r->use.k_chunk = r->k_chunk;
    r->use.n_tb = r->n_tb;
    r->use.at = r->at;
    r->use.max_k_chunk = r->e->resolved.k_chunk;
    if (bytes == 0)
        return nib_fail(err, NIB_E_MODEL,
                        "residuals need rounded matrices, and no layer of this model has one");
    NIB_TRY(tier_region_open(&r->memory, device_host(), r->e->ledger, NIB_OWNER_WEIGHTS, bytes, false,
                             "residuals", err));
    r->use.memory = r->memory.at;
    r->use.n_byte = bytes;
    num_format_size(bytes, size);
    if (!r->is_on_disk) {
        log_line(&r->e->log, "residuals in %d bits take %s of RAM", (int)r->e->requested.residual_bits, size);
        return NIB_OK;
    }
    log_line(&r->e->log,
             "residuals in %d bits need %s of disk and %s of RAM, which does not fit beside the weights",
             (int)r->e->requested.residual_bits, num_format_size(all - scales, on_disk), size);
    return residual_disk_open(&r->disk, r->e, all - scales, largest, err);
}

/* All kinds alike, or as a plan says. */
static nib_status choose_first(engine_residuals *r, nib_error *err) {
    const settings *set = &r->e->resolved;
    tune_choice c = {{0}, {0}};
    for (int i = 0; i < r->kinds.n; i++)
        c.k_chunk[i] = r->use.max_k_chunk;
    if (set->n_residual)
        NIB_TRY(residual_kinds_choose(&r->kinds, set->residuals, set->n_residual, &c, err));
    residuals_choose(r, &c);
    return NIB_OK;
}

const residual_kinds *residuals_kinds(const engine_residuals *r) {
    return r ? &r->kinds : NULL;
}

void residuals_choose(engine_residuals *r, const tune_choice *c) {
    for (int i = 0; i < r->first[layout_n_block(r->e->layout)]; i++) {
        const int kind = r->kinds.of[i];
        r->k_chunk[i] = kind < 0 ? 0 : (int32_t)NUM_MIN(c->k_chunk[kind], r->use.max_k_chunk);
        r->n_tb[i] = kind < 0 ? 0 : c->n_tb[kind];
    }
    r->use.choice++;
}

uint64_t residuals_read(const engine_residuals *r, const tune_choice *c) {
    uint64_t sum = 0;
    for (int i = 0; i < r->first[layout_n_block(r->e->layout)]; i++) {
        const residual *of = &r->of[i];
        const int kind = r->kinds.of[i];
        if (kind >= 0 && c->k_chunk[kind] > 0)
            sum += (uint64_t)(salient_count(of->k, c->k_chunk[kind]) * of->step) +
                   (uint64_t)of->n * sizeof *of->scale;
    }
    return sum;
}

void residuals_count(const engine_residuals *r, residual_read *out) {
    memset(out, 0, sizeof *out);
    for (int i = 0; r && i < r->disk.n_reader; i++)
        residual_reader_count(r->disk.readers[i], out);
}

nib_status residuals_open(engine_core *e, engine_residuals **out, nib_error *err) {
    engine_residuals *r = mem_calloc(1, sizeof *r);
    if (!r)
        return nib_fail_nomem(err, sizeof *r, "residuals");
    r->e = e;
    nib_status status = check_options(e, &r->use.rule, err);
    if (status == NIB_OK)
        status = open_memory(r, err);
    if (status == NIB_OK)
        status = make_from_original(r, err);
    if (status == NIB_OK)
        status = choose_first(r, err);
    if (status != NIB_OK) {
        residuals_close(r);
        return status;
    }
    e->residuals = &r->use;
    *out = r;
    return NIB_OK;
}

void residuals_close(engine_residuals *r) {
    if (!r)
        return;
    r->e->residuals = NULL;
    tier_region_close(&r->memory);
    residual_kinds_close(&r->kinds);
    residual_by_close(&r->by, r->e);
    residual_disk_close(&r->disk);
    mem_free(r->at);
    mem_free(r->k_chunk);
    mem_free(r->n_tb);
    mem_free(r->of);
    mem_free(r->first);
    mem_free(r);
}
