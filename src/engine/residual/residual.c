/* residual.c - see residual.h: the residuals of an open engine, their memory, and the number of channels. */
#include "engine/residual/residual.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/residual/channel_factors.h"
#include "engine/residual/file.h"
#include "hub/find.h"

#include <unistd.h>

struct engine_residuals {
    residual_store made;
    residual_use use;        /* the back end's input; owns its arrays */
    int32_t *k_chunk, *n_tb; /* [first[n_block]] */
    channel_factors by;
};

/* ---- which matrices ---- */

typedef struct sizes {
    uint64_t used, scales,
        largest;      /* of weights with channels: all bytes, those of scales, the largest one's */
    uint64_t in_file; /* of all weights that can have residuals */
} sizes;

static bool count_weight(const residual_kinds *k, int i, const weight *w, int bits, sizes *out) {
    uint64_t bytes;
    if (!residual_bytes(bits, w->n, w->k, &bytes) || !num_add_u64(out->in_file, bytes, &out->in_file))
        return false;
    out->largest = NUM_MAX(out->largest, bytes);
    if (k->of[i] < 0)
        return true;
    out->used += bytes;                            /* cannot overflow: at most in_file */
    out->scales += (uint64_t)w->n * sizeof(float); /* included in `bytes` */
    return true;
}

/* All UINT64_MAX: overflow. */
static sizes count_bytes(const engine_core *e, const residual_kinds *k) {
    static const sizes too_many = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    sizes out = {0, 0, 0, 0};
    for (int b = 0, i = 0; b < layout_n_block(e->layout); b++) {
        const block *of = layout_block(e->layout, b);
        for (int w = 0; w < of->n_weight; w++, i++)
            if (residual_is_of(of, &of->weights[w]) &&
                !count_weight(k, i, &of->weights[w], e->requested.residual_bits, &out))
                return too_many;
    }
    return out;
}

/* The first choice: a plan's, or resolved.k_chunk for all kinds. */
static nib_status first_choice(const engine_core *e, const residual_kinds *k, tune_choice *out,
                               nib_error *err) {
    const settings *set = &e->resolved;
    if (set->n_residual)
        return residual_kinds_choose(k, set->residuals, set->n_residual, out, err);
    *out = (tune_choice){{0}, {0}};
    for (int i = 0; i < k->n; i++)
        out->k_chunk[i] = set->k_chunk;
    return NIB_OK;
}

/* Opens the kinds without those to which a plan gives no channels: they take no memory. */
static nib_status open_kinds(const engine_core *e, residual_kinds *k, nib_error *err) {
    tune_choice first;
    NIB_TRY(residual_kinds_open(k, e->layout, err));
    NIB_TRY(first_choice(e, k, &first, err));
    residual_kinds_drop(k, &first);
    return NIB_OK;
}

nib_status residuals_size(const engine_core *e, uint64_t *in_ram, uint64_t *on_disk, nib_error *err) {
    const int64_t k = residual_longest_row(e->layout);
    residual_kinds kinds;
    const nib_status status = open_kinds(e, &kinds, err);
    if (status == NIB_OK) {
        const sizes size = count_bytes(e, &kinds);
        const uint64_t readers =
            (uint64_t)e->resolved.n_thread * residual_reader_bytes(salient_count(k, e->resolved.k_chunk), k);
        *in_ram = size.used;
        if (!num_add_u64(size.scales, readers, on_disk))
            *on_disk = UINT64_MAX;
    }
    residual_kinds_close(&kinds);
    return status;
}

nib_status residuals_may_stream(const engine_core *e, bool *may, nib_error *err) {
    const char *rule = e->requested.residual_rule;
    char *path;
    *may = false;
    if (e->kind->tier != NIB_TIER_RAM || (rule && !strcmp(rule, "weighted")))
        return NIB_OK;
    NIB_TRY(model_find(e->requested.residual, &path, err));
    *may = e->requested.scratch || residual_file_is(path);
    mem_free(path);
    return NIB_OK;
}

nib_status residuals_check(const engine_core *e, nib_error *err) {
    for (int b = 0; e->residuals && b < layout_n_block(e->layout); b++) {
        const block *of = layout_block(e->layout, b);
        for (int w = 0; w < of->n_weight; w++)
            if (of->layer >= 0 && (weight_is_rounded(&of->weights[w]) || weight_is_second(&of->weights[w])))
                return nib_fail(
                    err, NIB_E_USAGE,
                    "residuals need the file's own formats: the plan has another format for '%s' in block %d",
                    of->weights[w].name, b);
    }
    return NIB_OK;
}

static nib_status open_original(const engine_core *e, const char *path, model **out, nib_error *err) {
    return model_open_headers(path, &e->log, NULL, false, out, err);
}

/* Completes the back end's input. original NULL: the residuals come from a file. */
static nib_status complete(engine_residuals *r, const model *original, nib_error *err) {
    const nib_status status = channel_factors_open(&r->by, r->made.e, &r->use, &r->made.kinds, original, err);
    r->use.by = r->by.of;
    return status;
}

static nib_status make_from_original(engine_residuals *r, const char *path, nib_error *err) {
    model *original;
    const int64_t k = residual_longest_row(r->made.e->layout);
    NIB_TRY(open_original(r->made.e, path, &original, err));
    nib_status status = residual_make(&r->made, original, err);
    if (status == NIB_E_MODEL)
        status = nib_fail_prefix(err, status, path);
    if (status == NIB_OK && r->made.is_on_disk)
        status = residual_disk_finish(&r->made.disk, &r->use, pool_size(r->made.e->threads),
                                      salient_count(k, r->use.max_k_chunk), k, err);
    if (status == NIB_OK)
        status = complete(r, original, err);
    model_close(original);
    return status;
}

static nib_status load_from_file(engine_residuals *r, const char *path, uint64_t all, nib_error *err) {
    const engine_core *e = r->made.e;
    const int64_t k = residual_longest_row(e->layout);
    file *codes;
    if (r->use.rule == SALIENT_STATIC)
        return nib_fail(err, NIB_E_USAGE,
                        "--residual-rule static: expected the original, found the file of residuals %s",
                        path);
    NIB_TRY(residual_file_load(&r->made, path, all, &codes, err));
    if (codes)
        NIB_TRY(residual_disk_read(&r->made.disk, codes, e->ledger, &r->use, pool_size(e->threads),
                                   salient_count(k, r->use.max_k_chunk), k, err));
    return complete(r, NULL, err);
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
    return e->kind->check_residuals ? e->kind->check_residuals(o->residual_bits, *rule, err) : NIB_OK;
}

static nib_status open_lists(engine_residuals *r, nib_error *err) {
    residual_store *made = &r->made;
    const int n_block = layout_n_block(made->e->layout);
    made->first = mem_calloc((size_t)n_block + 1, sizeof *made->first);
    for (int b = 0; made->first && b < n_block; b++)
        made->first[b + 1] = made->first[b] + layout_block(made->e->layout, b)->n_weight;
    const size_t n_weight = made->first ? (size_t)made->first[n_block] + 1 : 0;
    made->of = n_weight ? mem_calloc(n_weight, sizeof *made->of) : NULL;
    r->k_chunk = n_weight ? mem_calloc(n_weight, sizeof *r->k_chunk) : NULL;
    r->n_tb = n_weight ? mem_calloc(n_weight, sizeof *r->n_tb) : NULL;
    made->at = n_weight ? mem_calloc(n_weight, sizeof *made->at) : NULL;
    if (!made->at || !made->of || !r->k_chunk || !r->n_tb)
        return nib_fail_nomem(err, 64, "residuals");
    r->use.of = made->of;
    r->use.first = made->first;
    r->use.k_chunk = r->k_chunk;
    r->use.n_tb = r->n_tb;
    r->use.at = made->at;
    r->use.max_k_chunk = made->e->resolved.k_chunk;
    return NIB_OK;
}

/* Computes the bytes and opens the lists. */
static nib_status begin(engine_residuals *r, sizes *size, nib_error *err) {
    NIB_TRY(open_kinds(r->made.e, &r->made.kinds, err));
    *size = count_bytes(r->made.e, &r->made.kinds);
    if (size->in_file == 0)
        return nib_fail(err, NIB_E_MODEL,
                        "residuals need rounded matrices, and no layer of this model has one");
    return open_lists(r, err);
}

static void log_sizes(const engine_residuals *r, const sizes *of) {
    const engine_core *e = r->made.e;
    const int bits = (int)e->requested.residual_bits;
    char size[32], on_disk[32];
    if (!r->made.is_on_disk)
        log_line(&e->log, "residuals in %d bits take %s of RAM", bits, num_format_size(of->used, size));
    else
        log_line(&e->log,
                 "residuals in %d bits need %s of disk and %s of RAM, which does not fit beside the weights",
                 bits, num_format_size(of->used - of->scales, on_disk), num_format_size(of->scales, size));
}

/* path: the original, or a file of residuals. */
static nib_status open_from(engine_residuals *r, const char *path, nib_error *err) {
    residual_store *made = &r->made;
    sizes size;
    NIB_TRY(begin(r, &size, err));
    made->is_on_disk = made->e->resolved.residuals_on_disk;
    const uint64_t bytes = made->is_on_disk ? size.scales : size.used;
    NIB_TRY(memory_region_open(&made->memory, device_host(), made->e->ledger, NIB_OWNER_WEIGHTS, bytes, false,
                               "residuals", err));
    r->use.memory = made->memory.at;
    r->use.n_byte = bytes;
    log_sizes(r, &size);
    if (residual_file_is(path))
        return load_from_file(r, path, size.in_file, err);
    if (made->is_on_disk)
        NIB_TRY(residual_disk_open(&made->disk, made->e, size.used - size.scales, size.largest, err));
    return make_from_original(r, path, err);
}

static nib_status choose_first(engine_residuals *r, nib_error *err) {
    tune_choice c;
    NIB_TRY(first_choice(r->made.e, &r->made.kinds, &c, err));
    residuals_choose(r, &c);
    return NIB_OK;
}

const residual_kinds *residuals_kinds(const engine_residuals *r) {
    return r ? &r->made.kinds : NULL;
}

void residuals_choose(engine_residuals *r, const tune_choice *c) {
    for (int i = 0; i < r->made.first[layout_n_block(r->made.e->layout)]; i++) {
        const int kind = r->made.kinds.of[i];
        r->k_chunk[i] = kind < 0 ? 0 : (int32_t)NUM_MIN(c->k_chunk[kind], r->use.max_k_chunk);
        r->n_tb[i] = kind < 0 ? 0 : c->n_tb[kind];
    }
    r->use.choice++;
}

/* Returns the pages that only weight i's residual has, which no pass reads any more. */
static void discard(engine_residuals *r, int i) {
    const residual *of = &r->made.of[i];
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uint64_t bytes;
    if (r->made.is_on_disk || !residual_bytes(of->bits, of->n, of->k, &bytes))
        return;
    const uintptr_t at = (uintptr_t)of->rows, begin = (at + page - 1) / page * page,
                    end = (at + bytes) / page * page;
    r->use.n_byte -= bytes;
    if (begin >= end)
        return;
    mem_discard((void *)begin, end - begin);
    memory_region_untouch(&r->made.memory, end - begin);
}

void residuals_settle(engine_residuals *r, const tune_choice *c) {
    residual_kinds *kinds = &r->made.kinds;
    residuals_choose(r, c);
    for (int i = 0; i < kinds->n_weight && r->made.e->kind->tier == NIB_TIER_RAM; i++)
        if (kinds->of[i] >= 0 && c->k_chunk[kinds->of[i]] == 0)
            discard(r, i);
    residual_kinds_drop(kinds, c);
}

uint64_t residuals_read(const engine_residuals *r, const tune_choice *c) {
    uint64_t sum = 0;
    for (int i = 0; i < r->made.first[layout_n_block(r->made.e->layout)]; i++) {
        const residual *of = &r->made.of[i];
        const int kind = r->made.kinds.of[i];
        if (kind >= 0 && c->k_chunk[kind] > 0)
            sum += (uint64_t)(salient_count(of->k, c->k_chunk[kind]) * of->step) +
                   (uint64_t)of->n * sizeof *of->scale;
    }
    return sum;
}

void residuals_count(const engine_residuals *r, residual_read *out) {
    memset(out, 0, sizeof *out);
    for (int i = 0; r && i < r->made.disk.n_reader; i++)
        residual_reader_count(r->made.disk.readers[i], out);
}

nib_status residuals_open(engine_core *e, engine_residuals **out, nib_error *err) {
    engine_residuals *r = mem_calloc(1, sizeof *r);
    if (!r)
        return nib_fail_nomem(err, sizeof *r, "residuals");
    r->made.e = e;
    nib_status status = check_options(e, &r->use.rule, err);
    char *path = NULL;
    if (status == NIB_OK)
        status = model_find(e->requested.residual, &path, err);
    if (status == NIB_OK)
        status = open_from(r, path, err);
    mem_free(path);
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

static nib_status write_all(engine_residuals *r, const char *original, const char *path, nib_error *err) {
    residual_store *made = &r->made;
    sizes size;
    model *m;
    char *found;
    NIB_TRY(begin(r, &size, err));
    NIB_TRY(memory_region_open(&made->disk.staging, device_host(), made->e->ledger, NIB_OWNER_STAGING,
                               size.largest, false, "residuals of one matrix", err));
    NIB_TRY(model_find(original, &found, err));
    nib_status status = open_original(made->e, found, &m, err);
    mem_free(found);
    NIB_TRY(status);
    status = residual_file_begin(made->e, path, size.in_file, &made->keep, err);
    if (status == NIB_OK)
        status = file_writer_end(made->keep, residual_make(made, m, err), err);
    model_close(m);
    return status;
}

nib_status residuals_write(engine_core *e, const char *original, const char *path, nib_error *err) {
    engine_residuals *r = mem_calloc(1, sizeof *r);
    if (!r)
        return nib_fail_nomem(err, sizeof *r, "residuals");
    r->made.e = e;
    const nib_status status =
        residual_bits_known(e->requested.residual_bits)
            ? write_all(r, original, path, err)
            : nib_fail(err, NIB_E_USAGE, "residual bits: expected 2, 4, 8 or 16, found %d",
                       (int)e->requested.residual_bits);
    residuals_close(r);
    return status;
}

void residuals_close(engine_residuals *r) {
    if (!r)
        return;
    r->made.e->residuals = NULL;
    memory_region_close(&r->made.memory);
    residual_kinds_close(&r->made.kinds);
    channel_factors_close(&r->by, r->made.e);
    residual_disk_close(&r->made.disk);
    mem_free(r->made.at);
    mem_free(r->k_chunk);
    mem_free(r->n_tb);
    mem_free(r->made.of);
    mem_free(r->made.first);
    mem_free(r);
}
