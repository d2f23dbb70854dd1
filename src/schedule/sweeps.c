/* sweeps.c - see sweeps.h. */
#include "schedule/sweeps.h"

#include "base/mem.h"

#include <string.h>

static const char *const names[] = {"refill", "block", "row"};

const char *sweep_name(sweep_kind k) {
    return names[k];
}

bool sweep_find(const char *name, sweep_kind *out) {
    for (int i = 0; i < SWEEP_N_KIND; i++)
        if (!strcmp(name, names[i])) {
            *out = (sweep_kind)i;
            return true;
        }
    return false;
}

bool sweeps_admits(sweeps *s, int64_t n_running) {
    if (n_running >= s->width)
        return false;
    if (s->kind != SWEEP_REFILL)
        return s->filling;
    return s->spacing == 0 || s->n_begun * s->spacing <= s->n_sweep * s->width;
}

void sweeps_enter(sweeps *s) {
    s->n_begun++;
}

void sweeps_next(sweeps *s, int64_t n_running) {
    s->filling = n_running == 0;
    s->n_sweep += s->n_begun > 0;
}

/* ---- the counter ---- */

/* The state of a walk: batches in flight, oldest first. */
typedef struct walk {
    const sweep_work *work;
    int64_t *batch;    /* [n]: tokens that each has */
    segment *segments; /* [n] */
    int64_t n;
    int64_t held; /* positions in all layers */
    sweep_counts *out;
} walk;

/* Counts a visit of a layer by one batch. Its keys and values are read and written there; after its last
 * token they are free. */
static void count_cell(walk *w, const visit *v, int last_block) {
    int64_t row = v->row;
    const segment *s = visits_segment(w->segments, (int)w->n, false, &row);
    const bool ends = w->batch[s - w->segments] + 1 == w->work->n_gen;
    w->out->n_cell++;
    w->out->n_load += v->block != last_block;
    w->out->kv_read += s->position;
    w->out->kv_written += s->n_row;
    w->out->stream_rows += s->n_row;
    w->held += s->n_row;
    w->out->max_kv = NUM_MAX(w->out->max_kv, w->held);
    if (ends)
        w->held -= s->position + s->n_row;
}

static void count_sweep(walk *w, int *last_block) {
    const int n_block = w->work->n_layer + 2; /* the embedding before, the head behind */
    for (int64_t i = 0; i < w->n; i++) {
        const int64_t n = w->batch[i], n_prompt = w->work->n_prompt;
        w->segments[i] = (segment){.position = n ? n_prompt + n - 1 : 0, .n_row = n ? 1 : n_prompt};
        w->segments[i].head_row = w->segments[i].n_row - 1;
    }
    segments_number(w->segments, (int)w->n);
    visits list = {.next = visits_by_block,
                   .n_block = n_block,
                   .first = 1,
                   .end = n_block - 1,
                   .segments = w->segments,
                   .n_segment = (int)w->n,
                   .n_cell = INT64_MAX,
                   .n_head = 1,
                   .whole = true,
                   .apart = true};
    for (visit v; visits_next(&list, &v); *last_block = v.block)
        count_cell(w, &v, *last_block);
}

/* Every batch in flight has another token; those that have all leave. */
static void advance(walk *w) {
    int64_t n = 0;
    for (int64_t i = 0; i < w->n; i++)
        if (w->batch[i] + 1 < w->work->n_gen)
            w->batch[n++] = w->batch[i] + 1;
    w->n = n;
}

nib_status sweeps_count(const sweeps *s, const sweep_work *work, sweep_counts *out, nib_error *err) {
    sweeps at = {.kind = s->kind, .width = s->width, .spacing = s->spacing};
    const size_t most = (size_t)NUM_MIN(s->width, work->n_batch);
    walk w = {.work = work, .out = out};
    int last_block = -1;
    *out = (sweep_counts){0};
    w.batch = mem_calloc(most, sizeof *w.batch);
    w.segments = mem_calloc(most, sizeof *w.segments);
    if (w.batch && w.segments)
        do {
            sweeps_next(&at, w.n);
            while (at.n_begun < work->n_batch && sweeps_admits(&at, w.n)) {
                w.batch[w.n++] = 0;
                sweeps_enter(&at);
            }
            count_sweep(&w, &last_block);
            advance(&w);
        } while (w.n > 0 || at.n_begun < work->n_batch);
    const bool counted = w.batch && w.segments;
    mem_free(w.batch);
    mem_free(w.segments);
    return counted ? NIB_OK : nib_fail_nomem(err, most * sizeof(segment), "counting a schedule");
}

double sweeps_least_loads(const sweep_work *w, double capacity) {
    const double n = (double)w->n_gen;
    const double each =
        n * (double)w->n_prompt + n * (n - 1) / 2; /* of all tokens of a batch, in one layer */
    return each * (double)w->n_batch * (double)w->n_layer / (capacity / w->n_layer);
}
