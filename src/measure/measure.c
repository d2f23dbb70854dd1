/* measure.c - prompts, and their rows in a pass; see measure.h. */
#include "measure/measure.h"

#include "base/mem.h"
#include "base/num.h"
#include "model/find.h"
#include "measure/rows.h"

#include <string.h>

nib_status measure_prompts(const char *name, const nib_engine_options *options, const char *path,
                           calibration *out, nib_error *err) {
    nib_engine_options o = *options;
    nib_engine *e = NULL;
    memset(out, 0, sizeof *out);
    o.vocab_only = true;
    NIB_TRY(nib_engine_open(name, &o, &e, err));
    if (!e->tokenizer) { /* prompts of arbitrary ids: the model's shapes say which there are */
        nib_engine_close(e);
        const logger silent = {0};
        nib_engine shapes = {.path = NULL};
        NIB_TRY(model_find(name, &shapes.path, err));
        nib_status status = model_open(shapes.path, &silent, &shapes.m, err);
        if (status == NIB_OK) {
            shapes.container = model_container(shapes.m);
            status = calibrate(&shapes, path, out, err);
        }
        model_close(shapes.m);
        mem_free(shapes.path);
        return status;
    }
    const nib_status status = calibrate(e, path, out, err);
    nib_engine_close(e);
    return status;
}

static int64_t rows_of(const calibration *c, int i, int64_t max) {
    const int64_t n = c->begin[i + 1] - c->begin[i];
    return max > 0 ? NUM_MIN(n, max) : n;
}

int64_t measure_rows_count(const calibration *c, int64_t max, int64_t *longest) {
    int64_t n = 0;
    *longest = 0;
    for (int i = 0; i < c->n_prompt; i++) {
        n += rows_of(c, i, max);
        *longest = NUM_MAX(*longest, rows_of(c, i, max));
    }
    return n;
}

/* One layer's keys and values serve all layers and prompts, one after the other. */
static nib_status open_cache(measure_rows *r, nib_engine *e, nib_error *err) {
    NIB_TRY(kv_pool_open(e->layout, TYPE_F32, true, false, e->backend->device, e->ledger, &r->pages, err));
    return kv_table_open(&r->kv, r->pages, e->layout, e->backend->device, e->ledger, r->longest, false, err);
}

nib_status measure_rows_open(measure_rows *r, nib_engine *e, const calibration *c, int64_t max,
                             int64_t n_score, nib_error *err) {
    const int64_t n_vocab = model_hparams(e->m)->n_vocab;
    memset(r, 0, sizeof *r);
    r->n_row = measure_rows_count(c, max, &r->longest);
    for (int64_t i = 0; i < c->begin[c->n_prompt]; i++)
        if (c->tokens[i] < 0 || c->tokens[i] >= n_vocab)
            return nib_fail(err, NIB_E_USAGE, "token %lld: expected an id below %lld, found %ld",
                            (long long)i, (long long)n_vocab, (long)c->tokens[i]);
    if (r->n_row > e->backend->rows.n_pass)
        return nib_fail(err, NIB_E_USAGE, "expected at most %lld rows, found %lld",
                        (long long)e->backend->rows.n_pass, (long long)r->n_row);
    r->segments = mem_calloc((size_t)c->n_prompt, sizeof *r->segments);
    if (!r->segments)
        return nib_fail_nomem(err, (size_t)c->n_prompt * sizeof *r->segments, "the prompts");
    NIB_TRY(open_cache(r, e, err));
    r->n_segment = c->n_prompt;
    int64_t at = 0;
    for (int i = 0; i < c->n_prompt; i++) {
        const int64_t n = rows_of(c, i, max), scored = NUM_MIN(n_score, n);
        r->segments[i] = (segment){.kv = &r->kv,
                                   .tokens = c->tokens + c->begin[i],
                                   .length = n,
                                   .row = at,
                                   .n_row = n,
                                   .head_row = n - scored};
        r->n_head += scored;
        at += n;
    }
    return NIB_OK;
}

void measure_rows_close(measure_rows *r) {
    kv_table_close(&r->kv);
    kv_pool_close(r->pages);
    mem_free(r->segments);
    memset(r, 0, sizeof *r);
}

nib_status measure_progress(const nib_engine *e, const char *what, uint64_t done, uint64_t all,
                            nib_error *err) {
    if (!e->options.progress || e->options.progress(e->options.user, what, done, all))
        return NIB_OK;
    return nib_fail(err, NIB_E_CANCELLED, "cancelled");
}
