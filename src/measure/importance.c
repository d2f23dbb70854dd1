/* importance.c - MCAP's pass: all prompts go through a layer before the next layer is read. Norms of the
 * probe's data are summed by prompt and layer. */
#include "measure/measure.h"

#include "base/mem.h"
#include "base/num.h"
#include "measure/prompt_rows.h"

#include <math.h>
#include <string.h>

typedef struct watch {
    const engine_parts *e;
    importance *p;
    float *input; /* [n_cell, d_model]: the residual stream at the layer's input, for the rows of a cell */
    double *attn2, *ffn2; /* [n_cell]: squared norms of the rows seen so far */
} watch;

static double square_sum(const float *x, int64_t n, double scale) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum * scale * scale;
}

static void add_squares(double *to, const probe_data *s) {
    for (int64_t r = 0; r < s->n_row; r++)
        to[r] += square_sum(s->x + r * s->width, s->width, (double)s->scale);
}

/* Adds the signals of a cell that has passed a layer, row by row. */
static void sum_up(watch *w, const probe_data *s) {
    const int layer = layout_block(w->e->layout, s->block)->layer;
    for (int64_t r = 0; r < s->n_row; r++) {
        const float *in = w->input + r * s->width, *out = s->x + r * s->width;
        double in2 = 0, out2 = 0, both = 0, moved2 = 0;
        for (int64_t i = 0; i < s->width; i++) {
            const double a = (double)in[i], b = (double)out[i];
            in2 += a * a;
            out2 += b * b;
            both += a * b;
            moved2 += (b - a) * (b - a);
        }
        const double attn = sqrt(w->attn2[r]), ffn = sqrt(w->ffn2[r]);
        const double signals[IMPORTANCE_N] = {
            [IMPORTANCE_MCAP] = attn + ffn,
            [IMPORTANCE_ATTN] = attn,
            [IMPORTANCE_FFN] = ffn,
            [IMPORTANCE_INPUT] = sqrt(in2),
            [IMPORTANCE_COSINE] = in2 > 0 && out2 > 0 ? fmax(0, 1 - both / (sqrt(in2) * sqrt(out2))) : 0,
            [IMPORTANCE_FISHER] = in2 > 0 ? moved2 / in2 : 0};
        importance_add(w->p, s->segment, layer, signals);
    }
}

static void look(void *user, const probe_data *s) {
    watch *w = user;
    switch (s->point) {
    case PROBE_INPUT:
        memcpy(w->input, s->x, (size_t)(s->n_row * s->width) * sizeof *s->x);
        memset(w->attn2, 0, (size_t)s->n_row * sizeof *w->attn2);
        memset(w->ffn2, 0, (size_t)s->n_row * sizeof *w->ffn2);
        break;
    case PROBE_Q:
    case PROBE_V: add_squares(w->attn2, s); break;
    case PROBE_FFN: add_squares(w->ffn2, s); break;
    case PROBE_OUTPUT: sum_up(w, s); break;
    case PROBE_CHOSEN:
    case PROBE_HIDDEN:
    case PROBE_N: break;
    }
}

static nib_status tell(void *user, int b, backend *by, nib_error *err) {
    const watch *w = user;
    (void)by;
    return measure_progress(w->e, "measuring layers", (uint64_t)b, (uint64_t)model_n_block(w->e->m) - 1, err);
}

/* Bytes that run_pass charges for a cell. */
static uint64_t cell_bytes(const model *m, int64_t n_cell) {
    return (uint64_t)n_cell * ((uint64_t)model_reg_width(m, REG_X) * sizeof(float) + 2 * sizeof(double));
}

static nib_status later_bytes(const engine_parts *e, const void *user, uint64_t *bytes, nib_error *err) {
    int64_t longest;
    const int64_t n_row = prompt_rows_count(user, 0, &longest);
    NIB_TRY(kv_table_bytes(e->layout, kv_formats_all(TYPE_F32), true, longest, bytes, err));
    *bytes += cell_bytes(e->m, NUM_MIN(n_row, (int64_t)ENGINE_CELL_ROWS));
    return NIB_OK;
}

static nib_status run_pass(const engine_parts *e, const calibration *c, importance *p, nib_error *err) {
    const int64_t n_cell = e->step->backend->rows.n_cell;
    const uint64_t bytes = cell_bytes(e->m, n_cell);
    watch w = {.e = e, .p = p};
    prompt_rows rows = {0};
    NIB_TRY(ledger_charge(e->ledger, PLACE_RAM, NIB_OWNER_ACTIVATIONS, bytes, err));
    double *memory = mem_alloc(bytes);
    nib_status status = memory ? NIB_OK : nib_fail_nomem(err, bytes, "a layer's inputs");
    if (status == NIB_OK)
        status = prompt_rows_open(&rows, e, c, 0, 0, err);
    if (status == NIB_OK) {
        w.attn2 = memory;
        w.ffn2 = memory + n_cell;
        w.input = (float *)(memory + 2 * n_cell);
        const probe mine = {.point = look, .user = &w};
        const pass all = {.segments = rows.segments,
                          .n_segment = rows.n_segment,
                          .apart = true,
                          .n_head = 1,
                          .enter = tell,
                          .user = &w,
                          .probe = &mine};
        status = step_pass(e->step, &all, err);
    }
    prompt_rows_close(&rows);
    mem_free(memory);
    ledger_release(e->ledger, PLACE_RAM, NIB_OWNER_ACTIVATIONS, bytes);
    return status;
}

/* Computes the profile; the means need the number of tokens of each prompt. */
static nib_status finish(const calibration *c, importance *p, nib_error *err) {
    int64_t *n_token = mem_array((size_t)c->n_prompt, sizeof *n_token);
    if (!n_token)
        return nib_fail_nomem(err, (size_t)c->n_prompt * sizeof *n_token, "the prompts' lengths");
    for (int i = 0; i < c->n_prompt; i++)
        n_token[i] = c->begin[i + 1] - c->begin[i];
    const nib_status status = importance_finish(p, n_token, err);
    mem_free(n_token);
    return status;
}

nib_status measure_importance(const char *name, const nib_engine_options *options, const calibration *c,
                              importance *out, nib_error *err) {
    nib_engine_options o = *options;
    nib_engine *engine = NULL;
    int64_t longest;
    memset(out, 0, sizeof *out);
    const int64_t n_row = prompt_rows_count(c, 0, &longest);
    o.n_ctx = longest;
    o.n_logits = 1;
    o.stream = true;
    o.activation = 16;
    const engine_internal internal = {
        .n_row = n_row, .keep_nothing = true, .keep_free = later_bytes, .user = c};
    NIB_TRY(engine_open(name, &o, &internal, &engine, err));
    const engine_parts parts = engine_parts_of(engine);
    nib_status status = importance_begin(out, (int)model_hparams(parts.m)->n_layer, c->n_prompt, err);
    if (status == NIB_OK)
        status = run_pass(&parts, c, out, err);
    if (status == NIB_OK)
        status = finish(c, out, err);
    memcpy(out->content, c->content, sizeof out->content);
    memcpy(out->prompts, c->hash, sizeof out->prompts);
    nib_memory memory;
    nib_engine_memory(engine, &memory);
    out->rss_peak = memory.rss_peak;
    out->model_bytes = nib_engine_info(engine)->bytes;
    nib_engine_close(engine);
    return status;
}
