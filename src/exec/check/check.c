/* check.c - implements the contract (exec/backend.h); see check.h. */
#include "exec/check/check.h"

#include "base/mem.h"
#include "base/num.h"
#include "exec/check/memory.h"
#include "exec/entries.h"
#include "kernels/act8.h"
#include "kernels/entries.h"

#include <math.h>
#include <string.h>

static check *check_of(backend *b) {
    return (check *)(void *)b;
}

/* ---- memory ---- */

static uint64_t round64(uint64_t n) {
    return (n + 63) & ~UINT64_C(63);
}

/* The widest row that any op of the model reads or writes. */
static int64_t widest(const layout *l) {
    int64_t max = 1;
    for (int b = 0; b < layout_n_block(l); b++) {
        const program *p = &layout_block(l, b)->program;
        for (int i = 0; i < p->n_op; i++)
            max = NUM_MAX(max, NUM_MAX(p->ops[i].n, p->ops[i].k));
    }
    return max;
}

static size_t scratch_bytes(const layout *l) {
    size_t max = linear_scratch_bytes(false);
    for (int b = 0; b < layout_n_block(l); b++) {
        const program *p = &layout_block(l, b)->program;
        for (int i = 0; i < p->n_op; i++)
            if (p->ops[i].kind == OP_ATTENTION && p->ops[i].u.attn.every)
                max = NUM_MAX(max, entries_attend_bytes(&p->ops[i]));
            else if (p->ops[i].kind == OP_ATTENTION)
                max = NUM_MAX(max, attend_scratch_bytes(p->ops[i].u.attn.d_head, true));
            else if (p->ops[i].kind == OP_SELECT)
                max = NUM_MAX(max, (size_t)entries_select_floats(&p->ops[i]) * sizeof(float));
    }
    return max;
}

static void *take(uint8_t *base, uint64_t *at, int64_t rows, uint64_t each) {
    uint8_t *p = base ? base + *at : NULL;
    *at += round64((uint64_t)rows * each);
    return p;
}

static uint64_t lay_out_rows(check *c, const layout *l, const backend_rows *rows, uint8_t *base) {
    const int64_t wide = num_round_up(widest(l), 16) + PACK_PANEL; /* groups begin within a panel */
    int64_t longest = 1;
    uint64_t at = 0;
    for (int r = 0; r < model_n_reg(layout_model(l)); r++)
        c->reg[r] = take(base, &at,
                         r == REG_X        ? rows->n_pass
                         : r == REG_LOGITS ? rows->n_head
                                           : 1,
                         (uint64_t)model_reg_width(layout_model(l), (reg)r) * sizeof(float));
    for (int t = 0; t < model_n_rope(layout_model(l)); t++)
        longest = NUM_MAX(longest, model_rope_dim(layout_model(l), t));
    c->row = take(base, &at, wide, sizeof(float));
    c->residual = take(base, &at, wide, sizeof(float));
    c->expert = take(base, &at, wide, sizeof(float));
    c->part = take(base, &at, wide, sizeof(float));
    c->cos_sin = take(base, &at, longest, sizeof(float));
    c->inv_freq = take(base, &at, longest, sizeof(float));
    c->codes = take(base, &at, 1, act_row_bytes((act_format){.bits = 8, .group = ACT8_GROUP}, wide));
    c->scratch = take(base, &at, 1, scratch_bytes(l));
    return at;
}

static uint64_t lay_out_host(check *c, const layout *l, const backend_rows *rows, uint8_t *base) {
    uint64_t at = 0;
    c->stream =
        take(base, &at, rows->n_pass, (uint64_t)model_reg_width(layout_model(l), REG_X) * sizeof(float));
    c->logits =
        take(base, &at, rows->n_head, (uint64_t)model_reg_width(layout_model(l), REG_LOGITS) * sizeof(float));
    c->seen = take(base, &at, widest(l), sizeof(float));
    return at;
}

static uint64_t bytes_of_views(const view *views, int n) {
    uint64_t sum = 0, one;
    for (int i = 0; i < n; i++)
        sum += pack_bytes(&views[i].format, views[i].n, views[i].k, &one) ? one : 0;
    return sum;
}

/* Bytes of the weights' memory; 0: no memory to find out. */
static uint64_t store_bytes(const layout *l) {
    device_store *s;
    if (device_store_open(l, &check_memory, &s, NULL) != NIB_OK)
        return 0;
    const uint64_t bytes =
        NUM_MAX(device_store_fixed(s), UINT64_C(256)) + DEVICE_BLOCKS * device_store_slot(s, NULL);
    device_store_close(s);
    return bytes;
}

static uint64_t check_row_bytes(const backend_setup *s, const backend_rows *rows, int64_t n_row,
                                uint64_t *touched) {
    check none = {0};
    const uint64_t bytes = lay_out_rows(&none, s->layout, rows, NULL) +
                           lay_out_host(&none, s->layout, rows, NULL) + store_bytes(s->layout);
    (void)n_row;
    if (touched)
        *touched = bytes;
    return bytes;
}

static nib_status check_reserve(backend *b, const backend_rows *rows, nib_error *err) {
    check *c = check_of(b);
    const layout *l = c->setup.layout;
    ledger *to = c->setup.ledger;
    memory_region_close(&c->rows);
    memory_region_close(&c->host);
    NIB_TRY(memory_region_open(&c->rows, b->device, to, NIB_OWNER_ACTIVATIONS, lay_out_rows(c, l, rows, NULL),
                               false, "activations", err));
    NIB_TRY(memory_region_open(&c->host, device_host(), to, NIB_OWNER_ACTIVATIONS,
                               lay_out_host(c, l, rows, NULL), false, "copies of activations", err));
    lay_out_rows(c, l, rows, check_at(c->rows.at));
    lay_out_host(c, l, rows, c->host.at);
    b->rows = *rows;
    return NIB_OK;
}

/* ---- opening ---- */

static void check_close(backend *b) {
    check *c = check_of(b);
    memory_region_close(&c->rows);
    memory_region_close(&c->replaced);
    memory_region_close(&c->host);
    mem_free(c->views);
    mem_free(c->pages);
    mem_free(c);
}

static nib_status check_open(const backend_setup *s, backend **out, nib_error *err) {
    int max = 1;
    for (int b = 0; b < layout_n_block(s->layout); b++)
        max = NUM_MAX(max, layout_block(s->layout, b)->n_weight);
    check *c = mem_calloc(1, sizeof *c);
    view *views = mem_calloc((size_t)max, sizeof *views);
    if (!c || !views) {
        mem_free(c);
        mem_free(views);
        return nib_fail_nomem(err, sizeof *c, "the back end");
    }
    c->base = (backend){.kind = &backend_check, .device = check_device()};
    c->setup = *s;
    c->ref = kernels_table_for("ref");
    c->views = views;
    *out = &c->base;
    return NIB_OK;
}

/* ---- weights ---- */

/* Copies weights that are not the pager's, one by one. Their memory is allocated on demand, because only
 * measurements use them. */
static nib_status copy_replaced(check *c, const block *of, nib_error *err) {
    device *d = c->base.device;
    const uint64_t n_byte = bytes_of_views(c->run.weights.views, of->n_weight);
    if (!c->replaced.at || n_byte > c->replaced.bytes) {
        memory_region_close(&c->replaced);
        NIB_TRY(memory_region_open(&c->replaced, d, c->setup.ledger, NIB_OWNER_ACTIVATIONS, n_byte, false,
                                   "a block's weights", err));
    }
    uint8_t *at = c->replaced.at;
    for (int i = 0; i < of->n_weight; i++) {
        const uint64_t n = bytes_of_views(&c->run.weights.views[i], 1);
        c->views[i] = c->run.weights.views[i];
        if (!c->views[i].data)
            continue;
        NIB_TRY(d->kind->copy(d, DEVICE_LOAD_WEIGHTS, at, c->views[i].data, n, err));
        c->views[i].data = check_at(at);
        at += n;
    }
    return NIB_OK;
}

static nib_status wait_for_weights(check *c, const block *of, nib_error *err) {
    device *d = c->base.device;
    for (int i = 0; i < of->n_weight; i++) {
        c->views[i] = c->run.weights.views[i];
        c->views[i].data = check_at(c->views[i].data);
    }
    return d->kind->wait(d, c->run.weights.mark, err);
}

/* ---- a pass ---- */

/* Ends the validity of data that was read. */
static void forget(const check *c) {
    const int64_t n = c->base.rows.n_pass * check_width(c, REG_X),
                  n_logits = c->base.rows.n_head * check_width(c, REG_LOGITS);
    for (int64_t i = 0; i < n; i++)
        c->stream[i] = NAN;
    for (int64_t i = 0; i < n_logits; i++)
        c->logits[i] = NAN;
}

static nib_status check_begin(backend *b, const backend_pass *p, nib_error *err) {
    (void)err;
    check_of(b)->pass = *p;
    forget(check_of(b));
    return NIB_OK;
}

static nib_status check_end(backend *b, nib_error *err) {
    (void)err;
    forget(check_of(b));
    return NIB_OK;
}

static nib_status check_run(backend *b, const backend_run *r, nib_error *err) {
    check *c = check_of(b);
    const bool head = r->visit.block == layout_n_block(c->setup.layout) - 1;
    forget(c);
    c->run = *r;
    probe_find(&layout_block(c->setup.layout, r->visit.block)->program, &c->places);
    const block *of = layout_block(c->setup.layout, r->visit.block);
    nib_status status = r->replaced ? copy_replaced(c, of, err) : wait_for_weights(c, of, err);
    for (int64_t i = 0; i < r->visit.n_row && status == NIB_OK; i++)
        status = check_row(c, i, err);
    NIB_TRY(status);
    if (head && c->pass.logits)
        memcpy(c->pass.logits, c->reg[REG_LOGITS], (size_t)check_width(c, REG_LOGITS) * sizeof(float));
    return NIB_OK;
}

/* ---- reads ---- */

static nib_status check_read_stream(backend *b, int64_t row, int64_t n_row, const float **out,
                                    nib_error *err) {
    const check *c = check_of(b);
    const int64_t width = check_width(c, REG_X);
    (void)err;
    memcpy(c->stream, c->reg[REG_X] + row * width, (size_t)(n_row * width) * sizeof(float));
    *out = c->stream;
    return NIB_OK;
}

static nib_status check_write_stream(backend *b, int64_t row, int64_t n_row, const float *x, nib_error *err) {
    const check *c = check_of(b);
    const int64_t width = check_width(c, REG_X);
    (void)err;
    memcpy(c->reg[REG_X] + row * width, x, (size_t)(n_row * width) * sizeof(float));
    return NIB_OK;
}

static nib_status check_read_logits(backend *b, int64_t n_row, const float **out, nib_error *err) {
    const check *c = check_of(b);
    (void)err;
    memcpy(c->logits, c->reg[REG_LOGITS], (size_t)(n_row * check_width(c, REG_LOGITS)) * sizeof(float));
    *out = c->logits;
    return NIB_OK;
}

static nib_status refuse_residuals(int bits, salient_rule rule, nib_error *err) {
    (void)bits, (void)rule;
    return nib_fail(err, NIB_E_USAGE, "residuals: expected --backend cpu or cuda");
}

const backend_kind backend_check = {
    .name = "check",
    .memory = &check_memory,
    .check_residuals = refuse_residuals,
    .open = check_open,
    .close = check_close,
    .row_bytes = check_row_bytes,
    .reserve = check_reserve,
    .begin = check_begin,
    .run = check_run,
    .end = check_end,
    .read_stream = check_read_stream,
    .write_stream = check_write_stream,
    .read_logits = check_read_logits,
};
