/* activity.c - measures which parts of the layers are active for a token: attention, and groups of
 * feed-forward neurons. */
#include "measure/measure.h"

#include "base/mem.h"
#include "base/num.h"
#include "measure/prompt_rows.h"

#include <math.h>
#include <string.h>

typedef struct watch {
    const engine_parts *e;
    const segment *row; /* segments of the prompts */
    activity *a;
    double min;
    uint8_t *active; /* [n_row, parts] */
} watch;

static void look(void *user, const probe_data *s) {
    watch *w = user;
    activity *a = w->a;
    const int each = 1 + a->n_group, layer = layout_block(w->e->layout, s->block)->layer;
    if (s->point != PROBE_Q && s->point != PROBE_HIDDEN)
        return;
    for (int64_t r = 0; r < s->n_row; r++) {
        const float *x = s->x + r * s->width;
        uint8_t *to = w->active + (w->row[s->segment].row + s->row + r) * a->parts.n + layer * each;
        double sum2 = 0;
        for (int64_t i = 0; i < s->width; i++)
            sum2 += (double)x[i] * (double)x[i];
        const float limit = (float)(w->min * sqrt(sum2 / (double)s->width));
        if (s->point == PROBE_Q) {
            to[0] = sum2 > 0;
            continue;
        }
        for (int64_t i = 0; i < s->width; i++) {
            const bool acts = fabsf(x[i]) > limit;
            a->n_active += acts;
            to[1 + i * a->n_group / s->width] |= acts;
        }
        a->n_neuron += (uint64_t)s->width;
    }
}

static nib_status tell(void *user, int b, backend *by, nib_error *err) {
    const watch *w = user;
    (void)by;
    return measure_progress(w->e, "measuring activity", (uint64_t)b, (uint64_t)model_n_block(w->e->m) - 1,
                            err);
}

static nib_status count(watch *w, const calibration *c, nib_error *err) {
    prompt_rows rows = {0};
    nib_status status = prompt_rows_open(&rows, w->e, c, 0, 0, err);
    w->row = rows.segments; /* valid until they are closed below */
    if (status == NIB_OK) {
        const probe mine = {.point = look, .user = w};
        const pass all = {.segments = rows.segments,
                          .n_segment = rows.n_segment,
                          .apart = true,
                          .n_head = 1,
                          .enter = tell,
                          .user = w,
                          .probe = &mine};
        status = step_pass(w->e->step, &all, err);
    }
    for (int64_t r = 0; status == NIB_OK && r < rows.n_row; r++)
        coactivity_add(&w->a->parts, w->active + r * w->a->parts.n);
    prompt_rows_close(&rows);
    w->row = NULL;
    return status;
}

typedef struct sizes {
    int64_t n_row, longest;
} sizes;

static int n_part(const engine_parts *e, int *n_group) {
    const int64_t n_layer = model_hparams(e->m)->n_layer;
    *n_group = (int)NUM_MAX(1, NUM_MIN(ACTIVITY_GROUPS, ACTIVITY_PARTS / n_layer - 1));
    return (int)(n_layer * (1 + *n_group));
}

static uint64_t own_bytes(const engine_parts *e, int64_t n_row) {
    int n_group;
    const int n = n_part(e, &n_group);
    return coactivity_bytes(n) + (uint64_t)n_row * (uint64_t)n;
}

static nib_status keep_free(const engine_parts *e, const void *user, uint64_t *bytes, nib_error *err) {
    const sizes *s = user;
    NIB_TRY(kv_table_bytes(e->layout, TYPE_F32, true, s->longest, bytes, err));
    *bytes += own_bytes(e, s->n_row);
    return NIB_OK;
}

static nib_status measure(const engine_parts *e, const calibration *c, double min, int64_t n_row,
                          activity *out, nib_error *err) {
    const uint64_t bytes = own_bytes(e, n_row);
    watch w = {.e = e, .a = out, .min = min};
    out->n_layer = (int)model_hparams(e->m)->n_layer;
    const int n = n_part(e, &out->n_group);
    NIB_TRY(ledger_charge(e->ledger, NIB_TIER_RAM, NIB_OWNER_ACTIVATIONS, bytes, err));
    nib_status status = coactivity_open(&out->parts, n, err);
    if (status == NIB_OK) {
        w.active = mem_calloc((size_t)n_row, (size_t)n);
        status = w.active ? count(&w, c, err) : nib_fail_nomem(err, bytes, "the parts' activity");
    }
    mem_free(w.active);
    ledger_release(e->ledger, NIB_TIER_RAM, NIB_OWNER_ACTIVATIONS, bytes);
    return status;
}

nib_status measure_activity(const char *name, const nib_engine_options *options, const calibration *c,
                            double min, activity *out, nib_error *err) {
    nib_engine_options o = *options;
    nib_engine *engine = NULL;
    sizes s;
    memset(out, 0, sizeof *out);
    s.n_row = prompt_rows_count(c, 0, &s.longest);
    o.n_ctx = s.longest;
    o.n_logits = 1;
    o.stream = true;
    o.activation = 16;
    const engine_internal internal = {
        .n_row = s.n_row, .keep_nothing = true, .keep_free = keep_free, .user = &s};
    NIB_TRY(engine_open(name, &o, &internal, &engine, err));
    const engine_parts parts = engine_parts_of(engine);
    const nib_status status = measure(&parts, c, min, s.n_row, out, err);
    nib_engine_close(engine);
    return status;
}
