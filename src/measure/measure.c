/* measure.c - calibration prompts, and their rows in a pass; see measure.h. */
#include "measure/measure.h"

#include "base/mem.h"
#include "base/num.h"
#include "hub/find.h"
#include "measure/prompt_rows.h"

#include <string.h>

/* Makes prompts of arbitrary ids; the model's shapes give the number of ids. */
static nib_status prompts_of_ids(const char *name, const char *path, calibration *out, nib_error *err) {
    const logger silent = {0};
    char *found = NULL;
    model *m = NULL;
    NIB_TRY(model_find(name, &found, err));
    nib_status status = model_open(found, &silent, &m, err);
    if (status == NIB_OK) {
        const calibration_source from = {
            .path = found, .container = model_container(m), .n_vocab = model_hparams(m)->n_vocab};
        status = calibrate(&from, path, out, err);
    }
    model_close(m);
    mem_free(found);
    return status;
}

nib_status measure_prompts(const char *name, const nib_engine_options *options, const char *path,
                           bool long_texts, calibration *out, nib_error *err) {
    nib_engine_options o = *options;
    nib_engine *e = NULL;
    memset(out, 0, sizeof *out);
    o.vocab_only = true;
    NIB_TRY(nib_engine_open(name, &o, &e, err));
    const calibration_source from = {.path = engine_path(e),
                                     .container = engine_container(e),
                                     .tokenizer = engine_tokenizer(e),
                                     .long_texts = long_texts};
    const bool has_text = from.tokenizer != NULL;
    const nib_status status = has_text ? calibrate(&from, path, out, err) : NIB_OK;
    nib_engine_close(e);
    return has_text ? status : prompts_of_ids(name, path, out, err);
}

static int64_t rows_of(const calibration *c, int i, int64_t max) {
    const int64_t n = c->begin[i + 1] - c->begin[i];
    return max > 0 ? NUM_MIN(n, max) : n;
}

int64_t prompt_rows_count(const calibration *c, int64_t max, int64_t *longest) {
    int64_t n = 0;
    *longest = 0;
    for (int i = 0; i < c->n_prompt; i++) {
        n += rows_of(c, i, max);
        *longest = NUM_MAX(*longest, rows_of(c, i, max));
    }
    return n;
}

nib_status prompt_rows_cache(prompt_rows *r, const engine_parts *e, kv_formats formats, nib_error *err) {
    device *d = e->step->backend->device;
    kv_table_close(&r->kv);
    kv_pool_close(r->pages);
    r->pages = NULL;
    NIB_TRY(kv_pool_open(e->layout, formats, true, false, d, e->ledger, &r->pages, err));
    return kv_table_open(&r->kv, r->pages, e->layout, d, e->ledger, r->longest, NULL, err);
}

nib_status prompt_rows_open(prompt_rows *r, const engine_parts *e, const calibration *c, int64_t max,
                            int64_t n_score, nib_error *err) {
    const int64_t n_vocab = model_hparams(e->m)->n_vocab;
    memset(r, 0, sizeof *r);
    r->n_row = prompt_rows_count(c, max, &r->longest);
    for (int64_t i = 0; i < c->begin[c->n_prompt]; i++)
        if (c->tokens[i] < 0 || c->tokens[i] >= n_vocab)
            return nib_fail(err, NIB_E_USAGE, "token %lld: expected an id below %lld, found %ld",
                            (long long)i, (long long)n_vocab, (long)c->tokens[i]);
    if (r->n_row > e->step->backend->rows.n_pass)
        return nib_fail(err, NIB_E_USAGE, "expected at most %lld rows, found %lld",
                        (long long)e->step->backend->rows.n_pass, (long long)r->n_row);
    r->segments = mem_calloc((size_t)c->n_prompt, sizeof *r->segments);
    if (!r->segments)
        return nib_fail_nomem(err, (size_t)c->n_prompt * sizeof *r->segments, "the prompts");
    NIB_TRY(prompt_rows_cache(r, e, kv_formats_all(TYPE_F32), err));
    r->n_segment = c->n_prompt;
    for (int i = 0; i < c->n_prompt; i++) {
        const int64_t n = rows_of(c, i, max), scored = NUM_MIN(n_score, n);
        r->segments[i] = (segment){
            .kv = &r->kv, .tokens = c->tokens + c->begin[i], .length = n, .n_row = n, .head_row = n - scored};
        r->n_head += scored;
    }
    segments_number(r->segments, r->n_segment);
    return NIB_OK;
}

void prompt_rows_close(prompt_rows *r) {
    kv_table_close(&r->kv);
    kv_pool_close(r->pages);
    mem_free(r->segments);
    memset(r, 0, sizeof *r);
}

nib_status measure_progress(const engine_parts *e, const char *what, uint64_t done, uint64_t all,
                            nib_error *err) {
    if (!e->progress || e->progress(e->user, what, done, all))
        return NIB_OK;
    return nib_fail(err, NIB_E_CANCELLED, "cancelled");
}
