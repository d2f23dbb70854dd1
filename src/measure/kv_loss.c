/* kv_loss.c - measures, layer by layer, how the logits change when keys and values have codes. A row reads
 * codes of the blocks of positions before its own, so the prompts are joined to texts of several blocks. */
#include "base/mem.h"
#include "base/num.h"
#include "hub/find.h"
#include "measure/measure.h"
#include "measure/trials.h"

#include <string.h>

enum { MAX_ROW = 8 * KV_BLOCK, N_TEXT = 2, N_SCORE = KV_BLOCK };

typedef struct measuring {
    nib_engine *engine;
    engine_parts on;
    calibration texts; /* its tokens are this file's */
    measure_base base;
    uint8_t *types; /* [n_layer]: the trial's formats */
    kv_loss *out;
} measuring;

/* Joins the prompts to at most N_TEXT texts of n_row tokens; one that begins as the first prompt does (with
 * BOS) drops its first token inside of a text. */
static nib_status join(const calibration *c, int64_t n_row, calibration *out, nib_error *err) {
    const int64_t max = NUM_MIN(N_TEXT * n_row, c->begin[c->n_prompt]);
    bool same = true;
    *out = *c;
    out->tokens = mem_array((size_t)max, sizeof *out->tokens);
    out->begin = mem_calloc(N_TEXT + 1, sizeof *out->begin);
    if (!out->tokens || !out->begin)
        return nib_fail_nomem(err, (size_t)max * sizeof *out->tokens, "calibration texts");
    for (int i = 0; i < c->n_prompt; i++)
        same = same && c->tokens[c->begin[i]] == c->tokens[0];
    int64_t n = 0;
    for (int i = 0; i < c->n_prompt && n < max; i++)
        for (int64_t t = c->begin[i]; t < c->begin[i + 1] && n < max; t++) {
            const bool begins = n % n_row == 0;
            if (begins && same && t > c->begin[i])
                out->tokens[n++] = c->tokens[0];
            if (n < max && (begins || !same || t > c->begin[i]))
                out->tokens[n++] = c->tokens[t];
        }
    for (out->n_prompt = 0; out->n_prompt * n_row < n; out->n_prompt++)
        out->begin[out->n_prompt + 1] = NUM_MIN(n, (out->n_prompt + 1) * n_row);
    return NIB_OK;
}

/* The divergence with the trial's formats, from this block on. */
static nib_status try_types(measuring *s, int first, double *kl, nib_error *err) {
    const kv_formats formats = {.type = TYPE_F32, .layers = s->types, .n_layer = s->out->n_layer};
    const pass_change change = {0};
    trial_cost cost;
    NIB_TRY(prompt_rows_cache(&s->base.rows, &s->on, formats, err));
    NIB_TRY(measure_trial(&s->base, first, &change, &cost, err));
    *kl = NUM_MAX(cost.kl, 0);
    return NIB_OK;
}

static bool stores(const model *m, int layer) {
    int64_t k_width, v_width;
    model_kv_widths(m, layer, &k_width, &v_width);
    return k_width > 0;
}

static nib_status measure_all(measuring *s, nib_error *err) {
    const int n = s->out->n_layer;
    type_id type;
    memset(s->types, TYPE_F32, (size_t)n);
    for (int l = 0; l < n; l++) {
        NIB_TRY(measure_progress(&s->on, "measuring keys and values", (uint64_t)l, (uint64_t)n, err));
        for (int f = 0; f < KV_LOSS_FORMATS && stores(s->on.m, l); f++) {
            if (!type_from_name(kv_loss_formats[f], &type))
                continue;
            s->types[l] = (uint8_t)type;
            NIB_TRY(try_types(s, l + 1, &s->out->kl[l * KV_LOSS_FORMATS + f], err));
        }
        s->types[l] = TYPE_F32;
    }
    for (int f = 0; f < KV_LOSS_FORMATS; f++)
        if (type_from_name(kv_loss_formats[f], &type)) {
            memset(s->types, (int)type, (size_t)n);
            NIB_TRY(try_types(s, 1, &s->out->all[f], err));
        }
    return measure_progress(&s->on, "measuring keys and values", (uint64_t)n, (uint64_t)n, err);
}

/* The rows of a text: fewer for a model with fewer learned positions. */
static nib_status find_rows(const char *name, int64_t *out, nib_error *err) {
    const logger silent = {0};
    char *path = NULL;
    model *m = NULL;
    NIB_TRY(model_find(name, &path, err));
    const nib_status status = model_open(path, &silent, &m, err);
    const int64_t max = status == NIB_OK ? model_hparams(m)->n_ctx_max : 0;
    *out = max > 0 ? NUM_MIN(max, (int64_t)MAX_ROW) : MAX_ROW;
    model_close(m);
    mem_free(path);
    return status;
}

static nib_status later_bytes(const engine_parts *e, const void *user, uint64_t *bytes, nib_error *err) {
    uint64_t coded;
    NIB_TRY(measure_base_bytes(e, user, 0, N_SCORE, bytes, err));
    NIB_TRY(kv_table_bytes(e->layout, kv_formats_all(TYPE_KV8), false, MAX_ROW, &coded, err));
    *bytes += coded;
    return NIB_OK;
}

static nib_status open_all(measuring *s, const char *name, const nib_engine_options *options,
                           const calibration *c, nib_error *err) {
    int64_t longest;
    NIB_TRY(find_rows(name, &longest, err));
    NIB_TRY(join(c, longest, &s->texts, err));
    const engine_internal internal = {
        .n_row = prompt_rows_count(&s->texts, 0, &longest), .keep_free = later_bytes, .user = &s->texts};
    nib_engine_options o = *options;
    o.n_ctx = o.n_batch = longest;
    o.n_logits = N_SCORE;
    o.stream = true;
    o.activation = 16;
    o.kv_type = 0;
    NIB_TRY(engine_open(name, &o, &internal, &s->engine, err));
    s->on = engine_parts_of(s->engine);
    NIB_TRY(kv_loss_begin(s->out, model_n_kv_layer(s->on.m), err));
    s->types = mem_alloc((size_t)s->out->n_layer);
    if (!s->types)
        return nib_fail_nomem(err, (size_t)s->out->n_layer, "a list of layers");
    NIB_TRY(measure_base_open(&s->base, &s->on, &s->texts, 0, N_SCORE, NULL, err));
    s->out->n_token = s->base.rows.n_head;
    memcpy(s->out->content, c->content, sizeof s->out->content);
    memcpy(s->out->prompts, c->hash, sizeof s->out->prompts);
    return NIB_OK;
}

nib_status measure_kv_loss(const char *name, const nib_engine_options *options, const calibration *c,
                           kv_loss *out, nib_error *err) {
    measuring s = {.out = out};
    memset(out, 0, sizeof *out);
    nib_status status = open_all(&s, name, options, c, err);
    if (status == NIB_OK)
        status = measure_all(&s, err);
    measure_base_close(&s.base);
    mem_free(s.types);
    nib_engine_close(s.engine);
    mem_free(s.texts.tokens);
    mem_free(s.texts.begin);
    return status;
}
