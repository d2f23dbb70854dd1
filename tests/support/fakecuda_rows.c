/* fakecuda_rows.c - the fake table's look-ups, norms, elementwise operations, residuals and largest logits.
 */
#include "support/fakecuda_parts.h"

#include "kernels/row_op.h"
#include "kernels/route.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int fake_norm(const cuda_norm *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(norm, fake_norm);
    for (int64_t r = 0; r < a->n_row; r++) {
        kernels_table()->norm(a->kind, (const float *)real(a->x) + r * a->ldx, real(a->w), real(a->b),
                              (float *)real(a->out) + r * a->ldo, a->k, a->n_group, a->w_full, a->eps);
        if (a->n_group2)
            kernels_table()->norm(a->kind, (const float *)real(a->x2) + r * a->ldx2, real(a->w2), real(a->b2),
                                  (float *)real(a->out2) + r * a->ldo2, a->k / a->n_group * a->n_group2,
                                  a->n_group2, a->w_full, a->eps);
    }
    return 0;
}

static float position_scale(const cuda_each *a, int64_t r) {
    op o = {.kind = OP_SCALE_POS};
    o.u.num.value = a->value;
    o.u.num.offset = a->offset;
    o.u.num.every = a->every;
    return op_position_scale(&o, ((const int32_t *)real(a->position))[r]);
}

int fake_columns(const cuda_columns *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(columns, fake_columns);
    op o = {.kind = OP_COPY};
    o.u.copy.n_group = a->n_group;
    o.u.copy.n = a->n;
    o.u.copy.at_in = a->at_in;
    o.u.copy.step_in = a->step_in;
    o.u.copy.at = a->at;
    o.u.copy.step = a->step;
    o.u.copy.n_zero = a->n_zero;
    for (int64_t r = 0; r < a->n_row; r++)
        op_copy_row(&o, (const float *)real(a->x) + r * a->ldx, (float *)real(a->out) + r * a->ldo);
    return 0;
}

int fake_rope(const cuda_rope *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(rope, fake_rope);
    for (int64_t r = 0; r < a->n_row; r++)
        kernels_table()->rope(a->style, (float *)real(a->x) + r * a->ldx, a->n_head, a->d_head, a->n_rot,
                              (const float *)real(a->cos_sin) + r * a->n_rot);
    return 0;
}

/* OP_ADD with `by`, and what follows. */
static int add_by(const cuda_each *a) {
    const kernel_table *t = kernels_table();
    float *const by = malloc((size_t)a->n_row * sizeof *by), *const at =
                                                                 (float *)((uintptr_t)by | DEVICE_BIT);
    const cuda_linear one = {.n_w = 1,
                             .w = {a->by},
                             .n_row = a->n_row,
                             .x = a->z,
                             .ldx = a->ldz,
                             .y = {at},
                             .ldy = {1},
                             .scratch = at /* not used */};
    const bool leaves = a->leaves.data;
    int e = a->by.n != 1 || a->by.format.layout != PACK_ROWS || !a->y || (leaves && !a->total)
                ? fake_misuse("a sum is weighed by a product that it cannot have")
                : fake_multiply(&one);
    for (int64_t r = 0; r < a->n_row && !e; r++) {
        float *const out = (float *)real(a->out) + r * a->ldo;
        t->add((const float *)real(a->x) + r * a->ldx, (const float *)real(a->y) + r * a->ldy,
               a->value * add_gate(&by[r]), out, a->n);
        if (a->total) {
            float *const total = (float *)real(a->total) + r * a->ldt;
            t->add(total, out, 1, total, a->n);
        }
    }
    free(by);
    if (!e && leaves)
        fake_leave(&a->leaves, real(a->total), a->ldt, 1, a->n, false);
    return e;
}

int fake_each(const cuda_each *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(each, fake_each);
    if (a->leaves.data && (a->n_row > 1 || a->n % 32))
        return fake_misuse("codes of several rows, or not of whole groups, are left");
    if (a->by.data)
        return add_by(a);
    const kernel_table *t = kernels_table();
    for (int64_t r = 0; r < a->n_row; r++) {
        const float *x = (const float *)real(a->x) + r * a->ldx,
                    *y = a->y ? (const float *)real(a->y) + r * a->ldy : NULL;
        float *out = (float *)real(a->out) + r * a->ldo;
        switch (a->kind) {
        case OP_ACT: t->act(a->act, x, out, a->n); break;
        case OP_GATE: t->gate(a->act, x, y, out, a->n); break;
        case OP_ADD:
            t->add(x, y, a->value * add_gate(a->z ? (const float *)real(a->z) + r * a->ldz : NULL), out,
                   a->n);
            break;
        case OP_TIMES: t->gate(ACT_NONE, x, y, out, a->n); break;
        case OP_SHARE:
        case OP_SOFTPLUS: {
            const op o = {.kind = a->kind, .n = a->n, .k = a->each ? a->n / a->each : a->n};
            row_op(t, &o, &(row_args){.in = x, .in2 = y, .out = out});
            break;
        }
        case OP_XIELU: t->xielu(&a->xielu, x, out, a->n); break;
        case OP_SCALE_POS: t->scale(x, position_scale(a, r), out, a->n); break;
        case OP_SCALE: t->scale(x, a->value, out, a->n); break;
        case OP_CLAMP: t->clamp(x, a->value, out, a->n); break;
        case OP_SOFTCAP: t->softcap(x, a->value, out, a->n); break;
        default: return fake_misuse("that is not done element by element");
        }
    }
    if (a->leaves.data)
        fake_leave(&a->leaves, real(a->out), a->ldo, 1, a->n, false);
    return 0;
}

/* The host's look-up. */
int fake_embed(const cuda_embed *a, cuda_stream s) {
    LAUNCH(s);
    if (fake_is_put_in_order(&a->w, 1) || !cuda_embeds(&a->w.format))
        return fake_misuse("a table is looked up that is not there, or not in a format of the kernel");
    KEEP(embed, fake_embed);
    const kernel_table *t = kernels_table();
    const view w = fake_as_qtile(&a->w);
    float *row = malloc((size_t)a->w.k * sizeof *row);
    for (int64_t r = 0; r < a->n_row; r++) {
        const int64_t at = ((const int32_t *)real(a->row))[r] + a->offset;
        float *out = (float *)real(a->out) + r * a->ldo;
        if (at < 0 || at >= w.n)
            return fake_misuse("a row is looked up that a table does not have");
        pack_read_row(&w, at, row);
        if (a->adds)
            t->add(out, row + a->column, a->factor, out, a->n);
        else
            t->scale(row + a->column, a->factor, out, a->n);
    }
    free(row), free((void *)(uintptr_t)w.data);
    fake.n_embedded += a->n_row;
    return 0;
}

/* ---- residuals ---- */

size_t fake_residual_scratch(int64_t n_row, int64_t k, int64_t k_chunk) {
    return CUDA_FETCH_HEAD + (size_t)(n_row * salient_count(k, k_chunk)) * sizeof(salient);
}

/* Host memory at the address that `map` returned. */
static residual residual_at(const cuda_residual *a, int i) {
    return (residual){.bits = 4,
                      .n = a->n[i],
                      .k = a->k,
                      .step = a->step[i],
                      .rows = real(a->rows[i]),
                      .scale = real(a->scale[i])};
}

static float norm_factor(const cuda_residual *a, const float *x) {
    float sum = 0;
    for (int64_t i = 0; i < a->k; i++)
        sum += x[i] * x[i];
    return 1 / sqrtf(sum / (float)a->k + a->eps);
}

/* One row: the channels, then each matrix's part. */
static void fetch_row(const cuda_residual *a, const float *x, float *part) {
    const kernel_table *t = kernels_table();
    const float *norm = real(a->norm), factor = norm ? norm_factor(a, x) : 1;
    float *own = malloc((size_t)a->k * sizeof *own);
    int32_t *at = malloc((size_t)a->k * sizeof *at);
    for (int64_t i = 0; i < a->k; i++)
        own[i] = norm ? x[i] * norm[i] : x[i];
    const int64_t n = salient_pick(t, SALIENT_APPROX, own, a->k, a->k_chunk, at);
    for (int w = 0; w < a->n_w; part += a->n[w++]) {
        const residual r = residual_at(a, w);
        for (int64_t o = 0; o < a->n[w]; o++) {
            float sum = 0;
            for (int64_t i = 0; i < n && r.step; i++)
                sum = fmaf(own[at[i]], residual_code(&r, at[i], o), sum);
            part[o] = r.step ? sum * r.scale[o] * factor : 0;
        }
    }
    free(own);
    free(at);
}

int fake_residual(const cuda_residual *a, cuda_stream s) {
    CALL();
    if (!fake.replaying && (fake.side != FORKED || (s != fake.fork_from && s != fake.fork_to)))
        return fake_misuse("residuals are fetched before their rows are there");
    fake.side = FETCHED;
    fake.fetched_first = s == fake.fork_from;
    fake.n_aside += !fake.fetched_first;
    KEEP(residual, fake_residual);
    fake.n_fetched += a->n_row;
    fake.n_fetched_first += fake.fetched_first && !fake.replaying ? a->n_row : 0;
    for (int64_t r = 0; r < a->n_row; r++)
        fetch_row(a, (const float *)real(a->x) + r * a->ldx, (float *)real(a->part) + r * a->ldp);
    return 0;
}

int fake_residual_add(const cuda_residual_add *a, cuda_stream s) {
    const kernel_table *t = kernels_table();
    CALL();
    if (!fake.replaying && (fake.side != JOINED || s != fake.fork_from))
        return fake_misuse("residuals are added before they are there");
    if (!fake.replaying && fake.n_aside == 0)
        return fake_misuse("nothing runs beside a fetch");
    fake.side = IDLE;
    KEEP(residual_add, fake_residual_add);
    for (int64_t r = 0; r < a->n_row; r++) {
        const float *part = (const float *)real(a->part) + r * a->ldp;
        for (int w = 0; w < a->n_w; part += a->n[w++]) {
            float *y = (float *)real(a->y[w]) + r * a->ldy[w];
            t->add(y, part, 1, y, a->n[w]);
        }
        if (a->gated)
            t->gate(a->act, (const float *)real(a->y[0]) + r * a->ldy[0],
                    (const float *)real(a->y[1]) + r * a->ldy[1], (float *)real(a->out) + r * a->ldo,
                    a->n[0]);
    }
    return 0;
}

/* ---- the largest logits ---- */

size_t fake_sample_scratch(int64_t n_row) {
    return (size_t)n_row * 8;
}

static bool is_better(const float *x, int64_t a, int64_t b) {
    return b < 0 || x[a] > x[b] || (isnan(x[b]) && !isnan(x[a]));
}

/* A row's logits after its changes, to be freed. */
static float *changed_row(const cuda_sample *a, int64_t r) {
    const float *x = (const float *)real(a->logits) + r * a->ld;
    const logit_row *row = a->rows ? (const logit_row *)real(a->rows) + r : NULL;
    float *out = malloc((size_t)a->n_vocab * sizeof *out);
    memcpy(out, x, (size_t)a->n_vocab * sizeof *out);
    for (int32_t i = 0; row && i < row->n; i++) {
        const logit_change *c = (const logit_change *)real(a->changes) + row->first + i;
        out[c->token] = logit_changed(x[c->token], c, row);
    }
    return out;
}

int fake_sample(const cuda_sample *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(sample, fake_sample);
    for (int64_t r = 0; r < a->n_row; r++) {
        float *x = changed_row(a, r);
        bool *taken = calloc((size_t)a->n_vocab, sizeof *taken);
        for (int i = 0; i < a->top; i++) {
            int64_t best = -1;
            for (int64_t t = 0; t < a->n_vocab; t++)
                if (!taken[t] && is_better(x, t, best))
                    best = t;
            taken[best] = true;
            ((int32_t *)real(a->top_ids))[r * a->top + i] = (int32_t)best;
            ((float *)real(a->top_logits))[r * a->top + i] = x[best];
        }
        free(taken), free(x);
    }
    fake.n_sampled += a->n_row;
    return 0;
}
