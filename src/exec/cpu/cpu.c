/* cpu.c - implements the contract (exec/backend.h) on the processor. Work is complete when a call returns. */
#include "exec/cpu/best.h"
#include "exec/cpu/cpu.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

/* ---- opening ---- */

static void cpu_close(backend *b) {
    cpu *c = cpu_of(b);
    trace_close(c->exec.trace);
    shortlist_close(&c->best);
    workspace_close(&c->ws);
    choices_close(&c->choices);
    from_disk_close(&c->on_disk);
    mem_free(c);
}

static nib_status cpu_open(const backend_setup *s, backend **out, nib_error *err) {
    const kernel_table *kernels = kernels_table();
    cpu *c = mem_calloc(1, sizeof *c);
    if (!c)
        return nib_fail_nomem(err, sizeof *c, "the back end");
    c->base = (backend){.kind = &backend_cpu, .device = device_host()};
    c->setup = *s;
    c->exec = (executor){.layout = s->layout,
                         .sparse_v = s->sparse_v,
                         .sparse_v_raw = s->sparse_v_raw,
                         .threads = s->threads,
                         .kernels = kernels,
                         .ws = &c->ws,
                         .choices = &c->choices,
                         .ahead = &c->ahead,
                         .act_bits = s->act_bits,
                         .fuse = s->fuse,
                         .sliced = s->sliced,
                         .residuals = s->residuals,
                         .sums = s->sums,
                         .best = &c->best,
                         .on_disk = &c->on_disk};
    const nib_status status = choices_open(&c->choices, s->layout, s->kernels, kernels, s->act_bits, err);
    if (status != NIB_OK) {
        cpu_close(&c->base);
        return status;
    }
    if (s->sliced && !kernels->linear_sliced)
        log_line(s->log, "bf16 tiles were requested, but kernels for %s have none: they are not used",
                 kernels->isa);
    *out = &c->base;
    return NIB_OK;
}

/* ---- rows ---- */

static workspace_use use_of(const backend_setup *s) {
    return (workspace_use){.norms = !s->fuse,
                           .residuals = s->a16,
                           .sliced = s->sliced,
                           .k_chunk = s->k_chunk,
                           .n_top = s->sparse_v > 0 ? s->n_ctx : 0,
                           .coded = kv_formats_any_coded(s->kv)};
}

/* Rows that go through the head together: they are quantized as a cell's are. */
static int64_t head_rows(const backend_rows *rows) {
    return NUM_MIN(rows->n_head, rows->n_cell);
}

static uint64_t cpu_row_bytes(const backend_setup *s, const backend_rows *rows, int64_t n_row,
                              uint64_t *touched) {
    workspace_use use = use_of(s);
    use.n_row = n_row;
    const uint64_t bytes = workspace_bytes(s->layout, s->n_thread, rows->n_pass, rows->n_cell,
                                           head_rows(rows), &use, touched),
                   staged = from_disk_bytes(s);
    if (touched)
        *touched += staged;
    return bytes + staged;
}

static nib_status cpu_reserve(backend *b, const backend_rows *rows, nib_error *err) {
    cpu *c = cpu_of(b);
    const backend_setup *s = &c->setup;
    workspace_close(&c->ws);
    NIB_TRY(workspace_open(&c->ws, s->layout, b->device, s->ledger, s->n_thread, rows->n_pass, rows->n_cell,
                           head_rows(rows), use_of(s), err));
    b->rows = *rows;
    b->rows.n_head = head_rows(rows);
    return from_disk_open(&c->on_disk, s, err);
}

/* ---- a pass ---- */

/* Fills the tables of the pass's rows and reports memory that becomes resident to the ledger. */
static nib_status cpu_begin(backend *b, const backend_pass *p, nib_error *err) {
    cpu *c = cpu_of(b);
    int64_t n_row = 0, n_logits = 0;
    c->pass = *p;
    c->head_row = -1;
    for (int i = 0; i < p->n_segment; i++) {
        n_row += p->segments[i].n_row;
        n_logits += p->segments[i].n_row - p->segments[i].head_row;
    }
    workspace_reach(&c->ws, p->attends ? 0 : n_row, NUM_MIN(n_row, c->ws.n_cell),
                    p->logits || p->hidden ? 0 : NUM_MIN(n_logits, p->n_head));
    for (int i = 0; i < p->n_segment && !p->attends; i++) {
        const segment *s = &p->segments[i];
        workspace_rows(&c->ws, layout_model(c->setup.layout), s->row, s->position, s->n_row, s->length,
                       s->tokens);
    }
    NIB_TRY(from_disk_begin(&c->on_disk, p, err));
    pool_pin_caller(c->setup.threads);
    return NIB_OK;
}

static nib_status cpu_end(backend *b, nib_error *err) {
    cpu *c = cpu_of(b);
    pool_unpin_caller(c->setup.threads);
    return from_disk_end(&c->on_disk, err);
}

/* Makes the rows whose logits are needed contiguous in the residual stream. They begin at the first of them,
 * or, if other rows are between them, they are copied to the beginning. The head is the last block, so no
 * other row is needed. */
static int64_t gather_wanted(const cpu *c) {
    const backend_pass *p = &c->pass;
    const size_t width = (size_t)model_reg_width(layout_model(c->setup.layout), REG_X);
    float *x = c->ws.reg[REG_X];
    int64_t n = 0, first = 0, next = -1;
    bool together = true;
    for (int i = 0; i < p->n_segment; i++) {
        const segment *s = &p->segments[i];
        if (s->head_row == s->n_row)
            continue;
        first = next < 0 ? s->row + s->head_row : first;
        together = together && (next < 0 || next == s->row + s->head_row);
        next = s->row + s->n_row;
    }
    for (int i = 0; i < p->n_segment && !together; i++) {
        const segment *s = &p->segments[i];
        const int64_t rows = s->n_row - s->head_row;
        memmove(x + (size_t)n * width, x + (size_t)(s->row + s->head_row) * width,
                (size_t)rows * width * sizeof *x);
        n += rows;
    }
    return together ? first : 0;
}

static nib_status cpu_run(backend *b, const backend_run *r, nib_error *err) {
    cpu *c = cpu_of(b);
    const visit *v = &r->visit;
    const bool head = v->block == layout_n_block(c->setup.layout) - 1;
    if (head && c->head_row < 0)
        c->head_row = gather_wanted(c);
    c->exec.pager = r->pager;
    exec_cell now = {.block = v->block,
                     .part = v->part,
                     .bank = v->bank,
                     .views = r->weights.views,
                     .other_views = r->replaced,
                     .act_bits = r->act_bits,
                     .cache_only = v->cache_only,
                     .row = head ? c->head_row + v->row : v->row,
                     .n_row = v->n_row,
                     .segments = c->pass.segments,
                     .n_segment = c->pass.n_segment,
                     .segment = r->segment,
                     .segment_row = r->segment_row,
                     .hidden = head ? c->pass.hidden : NULL,
                     .hidden_row = v->row,
                     .probe = c->pass.probe,
                     .logits = c->pass.logits,
                     .experts = r->experts,
                     .cancel = c->pass.cancel};
    c->has_best = now.best = head && c->pass.n_best == 1 && !c->setup.whole_head && best_can(&c->exec, &now);
    return exec_cell_run(&c->exec, &now, err);
}

/* ---- reads: the registers are host memory ---- */

static float *cpu_register_at(backend *b, reg r, int64_t row) {
    const cpu *c = cpu_of(b);
    return c->ws.reg[r] + row * model_reg_width(layout_model(c->setup.layout), r);
}

static nib_status cpu_read_stream(backend *b, int64_t row, int64_t n_row, const float **out, nib_error *err) {
    (void)n_row;
    (void)err;
    *out = cpu_register_at(b, REG_X, row);
    return NIB_OK;
}

static nib_status cpu_write_stream(backend *b, int64_t row, int64_t n_row, const float *x, nib_error *err) {
    (void)err;
    memcpy(cpu_register_at(b, REG_X, row), x,
           (size_t)(n_row * model_reg_width(layout_model(cpu_of(b)->setup.layout), REG_X)) * sizeof *x);
    return NIB_OK;
}

static nib_status cpu_read_logits(backend *b, int64_t n_row, const float **out, nib_error *err) {
    (void)n_row;
    (void)err;
    *out = cpu_of(b)->ws.reg[REG_LOGITS];
    return NIB_OK;
}

/* Finds the first of the largest logits: the maximum in 16 lanes, then its first position. */
static void find_best(const float *logits, int64_t n, int32_t *id, float *logit) {
    enum { LANES = 16 };
    float max[LANES], best = -INFINITY;
    for (int l = 0; l < LANES; l++)
        max[l] = -INFINITY;
    for (int64_t i = 0; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            max[l] = logits[i + l] > max[l] ? logits[i + l] : max[l];
    for (int64_t i = n / LANES * LANES; i < n; i++)
        best = logits[i] > best ? logits[i] : best;
    for (int l = 0; l < LANES; l++)
        best = max[l] > best ? max[l] : best;
    *logit = best;
    *id = 0;
    while (best > -INFINITY && logits[*id] != best)
        ++*id;
}

static nib_status cpu_read_best(backend *b, int64_t n_row, const int32_t **ids, const float **logits,
                                nib_error *err) {
    cpu *c = cpu_of(b);
    const int64_t n_vocab = model_hparams(layout_model(c->setup.layout))->n_vocab;
    (void)err;
    if (c->has_best) {
        c->n_best_panel += best_collect(&c->exec, n_row, c->ws.best_ids, c->ws.best_logits);
        c->n_best_row += (uint64_t)n_row;
    }
    for (int64_t r = 0; r < n_row && !c->has_best; r++)
        find_best(c->ws.reg[REG_LOGITS] + r * n_vocab, n_vocab, &c->ws.best_ids[r], &c->ws.best_logits[r]);
    *ids = c->ws.best_ids;
    *logits = c->ws.best_logits;
    return NIB_OK;
}

static nib_status cpu_trace(backend *b, op_trace **out, nib_error *err) {
    cpu *c = cpu_of(b);
    if (c->exec.trace)
        trace_clear(c->exec.trace);
    else
        NIB_TRY(trace_open(c->setup.layout, c->setup.n_thread, c->setup.fuse, &c->exec.trace, err));
    *out = c->exec.trace;
    return NIB_OK;
}

/* ---- the head in two steps ---- */

static nib_status cpu_shortlist_open(backend *b, int n_best, const canceller *cancel, uint64_t *n_read,
                                     nib_error *err) {
    cpu *c = cpu_of(b);
    return shortlist_open(&c->best, c->setup.layout, c->setup.threads, c->setup.ledger, n_best, cancel,
                          n_read, err);
}

static void cpu_shortlist_close(backend *b, const layout *whole) {
    cpu *c = cpu_of(b);
    shortlist_close(&c->best);
    c->setup.layout = c->exec.layout = whole;
}

static double cpu_head_share(backend *b) {
    const cpu *c = cpu_of(b);
    const double each = (double)num_div_up(model_hparams(layout_model(c->setup.layout))->n_vocab, PACK_PANEL);
    const double all = (double)(c->best.n_row + c->n_best_row) * each;
    return all > 0 ? (double)(c->best.n_exact + c->n_best_panel) / all : 1;
}

const backend_kind backend_cpu = {
    .name = "cpu",
    .slides = true,
    .has_disk = true,
    .has_sparse_v = true,
    .open = cpu_open,
    .close = cpu_close,
    .row_bytes = cpu_row_bytes,
    .reserve = cpu_reserve,
    .begin = cpu_begin,
    .run = cpu_run,
    .end = cpu_end,
    .register_at = cpu_register_at,
    .read_stream = cpu_read_stream,
    .write_stream = cpu_write_stream,
    .read_logits = cpu_read_logits,
    .read_best = cpu_read_best,
    .max_best = 1,
    .best_from = BEST_MIN_ROWS,
    .trace = cpu_trace,
    .shortlist_bytes = shortlist_bytes,
    .shortlist_open = cpu_shortlist_open,
    .shortlist_close = cpu_shortlist_close,
    .head_share = cpu_head_share,
};
