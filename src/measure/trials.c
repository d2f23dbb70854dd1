/* trials.c - see trials.h. */
#include "measure/trials.h"

#include "base/num.h"
#include "measure/divergence.h"

#include <math.h>
#include <string.h>

typedef struct sizes {
    uint64_t stream, logits, small; /* bytes */
} sizes;

static uint64_t round64(uint64_t n) {
    return (n + 63) & ~UINT64_C(63);
}

static bool count(const engine_parts *e, uint64_t n_row, uint64_t n_head, uint64_t n_segment, sizes *s,
                  uint64_t *all) {
    const hparams *h = model_hparams(e->m);
    const uint64_t n_block = (uint64_t)model_n_block(e->m);
    if (!num_mul_u64(n_row * (n_block - 1), (uint64_t)model_reg_width(e->m, REG_X) * sizeof(float),
                     &s->stream) ||
        !num_mul_u64(n_head, (uint64_t)h->n_vocab * sizeof(float), &s->logits))
        return false;
    s->small = round64(n_head * sizeof(double)) + round64(n_segment * sizeof(int64_t));
    s->stream = round64(s->stream);
    s->logits = round64(s->logits);
    return num_add_u64(s->stream, s->logits, all) && num_add_u64(*all, s->small, all);
}

nib_status measure_base_bytes(const engine_parts *e, const calibration *c, int64_t max, int64_t n_score,
                              uint64_t *bytes, nib_error *err) {
    sizes s;
    int64_t longest;
    uint64_t own, cache;
    const int64_t n_row = prompt_rows_count(c, max, &longest);
    if (!count(e, (uint64_t)n_row, (uint64_t)(n_score * c->n_prompt), (uint64_t)c->n_prompt, &s, &own))
        return nib_fail(err, NIB_E_NOFIT, "a measurement with %lld tokens overflows 64 bits",
                        (long long)n_row);
    NIB_TRY(kv_table_bytes(e->layout, kv_formats_all(TYPE_F32), true, longest, &cache, err));
    if (!num_add_u64(own, cache, bytes))
        return nib_fail(err, NIB_E_NOFIT, "a measurement with %lld tokens overflows 64 bits",
                        (long long)n_row);
    return NIB_OK;
}

static float *stream_before(const measure_base *b, int block_index) {
    return b->stream + (int64_t)(block_index - 1) * b->rows.n_row * model_reg_width(b->e->m, REG_X);
}

static size_t stream_bytes(const measure_base *b) {
    return (size_t)(b->rows.n_row * model_reg_width(b->e->m, REG_X)) * sizeof(float);
}

/* ---- the base pass ---- */

static nib_status keep_stream(void *user, int i, backend *by, nib_error *err) {
    const measure_base *b = user;
    const float *x;
    if (i == 0)
        return NIB_OK;
    NIB_TRY(by->kind->read_stream(by, 0, b->rows.n_row, &x, err));
    memcpy(stream_before(b, i), x, stream_bytes(b));
    return NIB_OK;
}

/* Index in base->logits of row `row` of a segment. */
static int64_t head_place(const measure_base *b, int segment_index, int64_t row) {
    return b->first_head[segment_index] + row - b->rows.segments[segment_index].head_row;
}

static nib_status keep_logits(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                              nib_error *err) {
    const measure_base *b = user;
    const int64_t n_vocab = model_hparams(b->e->m)->n_vocab;
    (void)err;
    memcpy(b->logits + head_place(b, segment_index, row) * n_vocab, logits,
           (size_t)(n_row * n_vocab) * sizeof *logits);
    return NIB_OK;
}

static nib_status take_memory(measure_base *b, const calibration *c, nib_error *err) {
    sizes s;
    uint64_t bytes;
    int64_t at = 0;
    if (!count(b->e, (uint64_t)b->rows.n_row, (uint64_t)b->rows.n_head, (uint64_t)c->n_prompt, &s, &bytes))
        return nib_fail(err, NIB_E_NOFIT, "a measurement with %lld tokens overflows 64 bits",
                        (long long)b->rows.n_row);
    NIB_TRY(memory_region_open(&b->memory, device_host(), b->e->ledger, NIB_OWNER_ACTIVATIONS, bytes, false,
                               "the residual streams of a pass", err));
    b->stream = b->memory.at;
    b->logits = b->stream + s.stream / sizeof(float);
    b->kl = (double *)(void *)(b->logits + s.logits / sizeof(float));
    b->first_head =
        (int64_t *)(void *)((uint8_t *)b->kl + round64((uint64_t)b->rows.n_head * sizeof(double)));
    for (int i = 0; i < b->rows.n_segment; i++) {
        b->first_head[i] = at;
        at += b->rows.segments[i].n_row - b->rows.segments[i].head_row;
    }
    return NIB_OK;
}

nib_status measure_base_open(measure_base *b, const engine_parts *e, const calibration *c, int64_t max,
                             int64_t n_score, const probe *watch, nib_error *err) {
    memset(b, 0, sizeof *b);
    b->e = e;
    NIB_TRY(prompt_rows_open(&b->rows, e, c, max, n_score, err));
    NIB_TRY(take_memory(b, c, err));
    const pass p = {.segments = b->rows.segments,
                    .n_segment = b->rows.n_segment,
                    .apart = true,
                    .n_head = e->step->backend->rows.n_head,
                    .rows = keep_logits,
                    .enter = keep_stream,
                    .user = b,
                    .probe = watch};
    return step_pass(e->step, &p, err);
}

void measure_base_close(measure_base *b) {
    prompt_rows_close(&b->rows);
    memory_region_close(&b->memory);
    memset(b, 0, sizeof *b);
}

/* ---- a trial ---- */

typedef struct trying {
    measure_base *b;
    int first;
    bool began, has_error;
    double error2;
    int64_t n_error;
    /* rows whose divergence is being computed */
    const float *logits;
    int64_t place, n_row;
} trying;

/* Adds the relative squared differences of n_row rows. */
static void compare(trying *t, const float *base, const float *x, int64_t n_row, int64_t width) {
    for (int64_t r = 0; r < n_row; r++) {
        double all = 0, off = 0;
        for (int64_t i = 0; i < width; i++) {
            const double is = (double)base[r * width + i], d = (double)x[r * width + i] - is;
            all += is * is;
            off += d * d;
        }
        t->error2 += all > 0 ? off / all : off > 0;
    }
    t->n_error += n_row;
}

static nib_status enter(void *user, int i, backend *by, nib_error *err) {
    trying *t = user;
    const int64_t n_row = t->b->rows.n_row;
    const float *x;
    if (!t->began && t->first > 0)
        NIB_TRY(by->kind->write_stream(by, 0, n_row, stream_before(t->b, t->first), err));
    t->began = true;
    if (i != t->first + 1 || !t->has_error)
        return NIB_OK;
    NIB_TRY(by->kind->read_stream(by, 0, n_row, &x, err));
    compare(t, stream_before(t->b, i), x, n_row, model_reg_width(t->b->e->m, REG_X));
    return NIB_OK;
}

static void diverge(void *arg, int thread, int n_thread) {
    const trying *t = arg;
    const int64_t n_vocab = model_hparams(t->b->e->m)->n_vocab;
    for (int64_t r = thread; r < t->n_row; r += n_thread)
        t->b->kl[t->place + r] =
            divergence(t->b->logits + (t->place + r) * n_vocab, t->logits + r * n_vocab, n_vocab);
}

static nib_status take_rows(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                            nib_error *err) {
    trying *t = user;
    const engine_parts *e = t->b->e;
    const int64_t n_vocab = model_hparams(e->m)->n_vocab;
    (void)err;
    t->logits = logits;
    t->place = head_place(t->b, segment_index, row);
    t->n_row = n_row;
    pool_run(e->threads, diverge, t);
    if (t->first == model_n_block(e->m) - 1)
        compare(t, t->b->logits + t->place * n_vocab, logits, n_row, n_vocab);
    return NIB_OK;
}

nib_status measure_trial(measure_base *b, int first, const pass_change *change, trial_cost *out,
                         nib_error *err) {
    trying t = {.b = b, .first = first, .has_error = !change->left_out || !change->left_out[first]};
    const pass p = {.segments = b->rows.segments,
                    .n_segment = b->rows.n_segment,
                    .apart = true,
                    .first_block = first,
                    .n_head = b->e->step->backend->rows.n_head,
                    .rows = take_rows,
                    .enter = enter,
                    .user = &t,
                    .change = change};
    NIB_TRY(step_pass(b->e->step, &p, err));
    double sum = 0;
    for (int64_t i = 0; i < b->rows.n_head; i++)
        sum += b->kl[i];
    out->kl = sum / (double)b->rows.n_head;
    out->error = t.n_error ? sqrt(t.error2 / (double)t.n_error) : -1;
    if (!isfinite(out->kl))
        return nib_fail(err, NIB_E_MODEL, "%s: expected finite logits, found a NaN or an infinity",
                        layout_block(b->e->layout, first)->name);
    return NIB_OK;
}
