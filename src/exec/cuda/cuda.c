/* cuda.c - implements the contract (exec/backend.h) on a GPU; see cuda.h. */
#include "exec/cuda/launch.h"

#include "base/mem.h"
#include "base/num.h"
#include "memory/device_cuda.h"

#include <string.h>

/* ---- opening ---- */

static void cuda_close(backend *b) {
    cuda *c = cuda_of(b);
    if (c->k) {
        spans_drop(c);
        replay_close(c);
        fetches_close(c);
    }
    reduce_close(c);
    experts_host_close(c);
    attend_host_close(c);
    in_place_close(c);
    staged_close(c);
    gpu_workspace_close(c);
    estimates_close(c);
    choices_drop(c);
    steps_close(c);
    mem_free(c->mem.cos_sin);
    ledger_release(c->setup.ledger, c->setup.place, NIB_OWNER_RUNTIME, c->driver);
    device_close(b->device);
    mem_free(c);
}

static nib_status open_parts(cuda *c, nib_error *err) {
    const int n_rope = model_n_rope(cuda_model(c));
    nib_error why;
    if (device_open(c->setup.places, c->setup.place, &c->base.device, &why) != NIB_OK)
        return nib_fail(err, why.status == NIB_E_NOMEM ? NIB_E_NOMEM : NIB_E_DEVICE, "backend 'cuda': %s",
                        why.message);
    const uint64_t driver = device_cuda_driver(c->base.device);
    NIB_TRY(ledger_charge(c->setup.ledger, c->setup.place, NIB_OWNER_RUNTIME, driver, err));
    c->driver = driver;
    share_kernels(c, device_cuda_kernels(c->base.device));
    if (c->batched)
        log_line(c->setup.log,
                 "up to %d sequences may decode together: generated rows use the kernels for "
                 "many sequences",
                 c->setup.n_sequence);
    c->stream = device_cuda_stream(c->base.device);
    c->mem.cos_sin = mem_calloc((size_t)NUM_MAX(n_rope, 1), sizeof *c->mem.cos_sin);
    if (!c->mem.cos_sin)
        return nib_fail_nomem(err, (size_t)n_rope * sizeof *c->mem.cos_sin, "the rotary tables");
    NIB_TRY(steps_open(c, err));
    NIB_TRY(replay_open(c, err));
    NIB_TRY(reduce_open(c, err));
    NIB_TRY(fetches_open(c, err));
    NIB_TRY(in_place_open(c, err));
    NIB_TRY(attend_host_open(c, err));
    NIB_TRY(experts_host_open(c, err));
    NIB_TRY(staged_open(c, err));
    NIB_TRY(choices_make(c, err));
    c->setup.kernels = NULL;
    return NIB_OK;
}

static nib_status cuda_open(const backend_setup *s, backend **out, nib_error *err) {
    cuda *c = mem_calloc(1, sizeof *c);
    if (!c)
        return nib_fail_nomem(err, sizeof *c, "the back end");
    c->base.kind = &backend_cuda;
    c->setup = *s;
    const nib_status status = open_parts(c, err);
    if (status != NIB_OK) {
        cuda_close(&c->base);
        return status;
    }
    *out = &c->base;
    return NIB_OK;
}

/* Bytes of host memory, also for layers that the processor computes. VRAM is charged to its own tier. */
static uint64_t cuda_row_bytes(const backend_setup *s, const backend_rows *rows, int64_t n_row,
                               uint64_t *touched) {
    const uint64_t bytes = gpu_workspace_host_bytes(s->layout, rows) + experts_host_bytes(s->layout, rows);
    const uint64_t layers = in_place_row_bytes(s, rows, n_row, touched);
    if (touched)
        *touched += bytes;
    return bytes + layers;
}

static nib_status cuda_reserve(backend *b, const backend_rows *rows, nib_error *err) {
    cuda *c = cuda_of(b);
    in_place_follow(c, b->split);
    attend_host_follow(c, b->split);
    experts_host_follow(c, b->split);
    NIB_TRY(reduce_check(c, err));
    NIB_TRY(in_place_reserve(c, rows, err));
    NIB_TRY(staged_reserve(c, err));
    NIB_TRY(gpu_workspace_open(c, rows, err));
    NIB_TRY(experts_host_reserve(c, rows, err));
    NIB_TRY(estimates_reserve(c, err));
    b->rows = *rows;
    b->rows.n_cell = NUM_MAX(rows->n_cell, NUM_MIN(c->mem.max_rows, rows->n_pass));
    if (c->attend_host.n > 0) /* prompt rows beside two cells are in registers behind theirs */
        b->rows.n_cell = NUM_MIN(b->rows.n_cell, c->mem.max_rows);
    b->by_role = c->k->has_wide() || c->in_place.n > 0 || c->attend_host.n > 0 || c->experts_host.n > 0;
    b->n_cut = NUM_MIN(c->in_place.host->rows.n_cell, c->mem.max_rows);
    b->max_generated = c->in_place.n > 0 ? NUM_MIN(rows->n_pass, (int64_t)IN_PLACE_MAX_ROWS) : 0;
    return NIB_OK;
}

/* ---- a pass ---- */

static nib_status check_caches(const cuda *c, nib_error *err) {
    for (int i = 0; i < c->now.pass.n_segment; i++) {
        const kv_table *kv = c->now.pass.segments[i].kv;
        if (kv->device != c->base.device)
            return nib_fail(err, NIB_E_DEVICE, "keys and values are not in the GPU's memory");
        const kv_formats f = kv_pool_paging(kv->pool)->formats;
        if (f.layers || (f.type != TYPE_F16 && !kv_is_coded(f.type)) ||
            f.type != kv_pool_paging(c->now.pass.segments->kv->pool)->formats.type)
            return nib_fail(
                err, NIB_E_DEVICE,
                "the cuda back end supports keys and values in f16, kv8 or kv4, one type in a pass");
    }
    return NIB_OK;
}

static nib_status cuda_begin(backend *b, const backend_pass *p, nib_error *err) {
    cuda *c = cuda_of(b);
    NIB_TRY(device_cuda_enter(b->device, err));
    if (c->failed.status != NIB_OK)
        return nib_fail(err, c->failed.status, "%s", c->failed.message);
    if (p->probe)
        return nib_fail(err, NIB_E_DEVICE,
                        "the cuda back end does not support probes: measure with --backend cpu");
    c->now.pass = *p;
    NIB_TRY(check_caches(c, err));
    if (c->seen != device_store_changes(c->base.store))
        replay_forget(c);
    c->seen = device_store_changes(c->base.store);
    c->now.origin = gpu_workspace_origin(c);
    c->now.has_prompts = c->now.reuses = c->now.several[0] = c->now.several[1] = false;
    int64_t n_row = 0;
    for (int i = 0; i < p->n_segment; i++) {
        const segment *s = &p->segments[i];
        c->now.several[b->by_role && s->generated] |= s->n_row > 1;
        c->now.has_prompts = c->now.has_prompts || !s->generated;
        c->now.reuses = c->now.reuses || kv_table_rows(s->kv, s->position) < s->n_row;
        n_row += s->n_row;
    }
    c->replay.repeats = n_row <= CUDA_MAX_ROWS && !c->now.several[0] && !c->now.several[1] &&
                        !(b->by_role && c->now.has_prompts);
    NIB_TRY(reduce_begin(c, err));
    NIB_TRY(gpu_workspace_send_tables(c, err));
    NIB_TRY(gpu_workspace_send_changes(c, err));
    replay_begin(c);
    NIB_TRY(in_place_begin(c, err));
    attend_host_begin(c);
    const nib_status status = staged_begin(c, err);
    if (status != NIB_OK) /* no end follows */
        in_place_end(c);
    return status;
}

static nib_status wait_until_done(cuda *c, nib_error *err) {
    angles_ahead(c);
    return device_cuda_ok(c->base.device, c->k->stream_sync(c->stream), "computing", err);
}

/* The same before results are read: they are those of all ranks, or nobody gets them. */
static nib_status wait_for_results(cuda *c, nib_error *err) {
    NIB_TRY(wait_until_done(c, err));
    return reduce_end(c, err);
}

static nib_status cuda_end(backend *b, nib_error *err) {
    cuda *c = cuda_of(b);
    nib_error why = {0};
    nib_status status = replay_flush(c, &why); /* the processor may compute experts of it */
    in_place_end(c);
    if (status == NIB_OK)
        status = wait_until_done(c, &why);
    const nib_status copied = staged_end(c, status == NIB_OK ? &why : NULL);
    status = status == NIB_OK ? copied : status;
    replay_drop(c);
    replay_end(c, status == NIB_OK);
    if (status == NIB_OK)
        return reduce_end(c, err);
    /* Of the processor's experts. */
    const bool hosts = status == NIB_E_CANCELLED || status == NIB_E_IO || status == NIB_E_MODEL;
    if (hosts && wait_until_done(c, NULL) == NIB_OK)
        return nib_fail(err, status, "%s", why.message);
    c->failed = why;
    return nib_fail(err, status, "%s", why.message);
}

/* The next group: rows of the visit that are adjacent in the pass, from row r of the visit on. */
static row_group group_at(const cuda *c, int64_t r) {
    const visit *v = &c->now.run.visit;
    const bool head = v->block == layout_n_block(c->setup.layout) - 1;
    const int bits = c->now.run.act_bits ? c->now.run.act_bits : c->setup.act_bits[v->block];
    const int64_t max = NUM_MIN(v->n_row - r, c->now.wide ? c->mem.max_rows : CUDA_MAX_ROWS);
    int64_t row = v->row + r;
    row_group g = {.block = v->block,
                   .row = row,
                   .n_row = max,
                   .run_row = r,
                   .bank = v->bank,
                   .two = bits == 16,
                   .mixed = bits == NIB_ACT_AX};
    if (!head)
        return g;
    const segment *s = visits_segment(c->now.pass.segments, c->now.pass.n_segment, true, &row);
    g.row = s->row + row;
    for (g.n_row = 1; g.n_row < max; g.n_row++) {
        row = v->row + r + g.n_row;
        s = visits_segment(c->now.pass.segments, c->now.pass.n_segment, true, &row);
        if (s->row + row != g.row + g.n_row)
            break;
    }
    return g;
}

static nib_status copy_row(const cuda *c, void *to, const void *from, int64_t n, nib_error *err) {
    return spans_copy(c, "copy rows", DEVICE_COMPUTE, to, from, (uint64_t)n * sizeof(float), err);
}

/* Copies n_row rows of n floats to the host, where they are contiguous. */
static nib_status read_rows(cuda *c, float *to, const float *from, int64_t ld, int64_t n, int64_t n_row,
                            nib_error *err) {
    const bool together = ld == n;
    NIB_TRY(replay_flush(c, err));
    for (int64_t r = 0; r < (together ? 1 : n_row); r++)
        NIB_TRY(copy_row(c, to + r * n, from + r * ld, together ? n * n_row : n, err));
    return wait_for_results(c, err);
}

/* Sends the hidden states of a group's rows to their receiver, instead of logits. */
static nib_status send_hidden(cuda *c, const row_group *g, nib_error *err) {
    const hidden_receiver *to = c->now.pass.hidden;
    reg from;
    NIB_TRY(launch_hidden(c, g, &from, err));
    const int64_t width = model_reg_width(cuda_model(c), from), ld = c->mem.ld[from];
    const float *x = c->mem.reg[from] + (from == REG_X ? g->row * ld : 0);
    NIB_TRY(read_rows(c, c->mem.stream_copy, x, ld, width, g->n_row, err));
    to->receive(to->user, c->now.run.visit.row + g->run_row, g->n_row, c->mem.stream_copy, width);
    return NIB_OK;
}

static nib_status run_rows(cuda *c, nib_error *err) {
    const bool comes =
        device_store_comes(c->base.store, c->now.run.visit.block) && !experts_host_has(c, &c->now.run.visit);
    const bool once = comes || c->now.run.visit.part;
    const bool head = c->now.run.visit.block == layout_n_block(c->setup.layout) - 1;
    const int first = c->in_place.now ? c->in_place.first : 0;
    if (comes) {
        device *d = c->base.device;
        NIB_TRY(replay_flush(c, err));
        NIB_TRY(d->kind->follow(d, DEVICE_COMPUTE, c->now.run.weights.mark, err));
    } else if (head)
        NIB_TRY(estimates_make(c, err));
    c->replay.copied = c->replay.copied || once;
    if (c->replay.ahead && c->now.run.visit.block > first)
        return cancel_check(c->now.pass.cancel, err);
    if (c->replay.ahead && first > 0) /* the copy of the residual stream is queued */
        return replay_launch_ahead(c, err);
    for (int64_t i = 0; i < c->now.run.visit.n_row;) {
        const row_group g = group_at(c, i);
        NIB_TRY(cancel_check(c->now.pass.cancel, err));
        NIB_TRY(head && c->now.pass.hidden ? send_hidden(c, &g, err) : launch_group(c, &g, err));
        i += g.n_row;
    }
    if (once) /* its slot is given back, or attention comes in between */
        return replay_flush_once(c, err);
    if (c->replay.ahead)
        return replay_launch_ahead(c, err);
    return c->replay.repeats ? NIB_OK : replay_flush(c, err);
}

static nib_status cuda_run(backend *b, const backend_run *r, nib_error *err) {
    cuda *c = cuda_of(b);
    const bool head = r->visit.block == layout_n_block(c->setup.layout) - 1;
    c->now.run = *r;
    if (r->replaced || (r->act_bits && r->act_bits != 8 && r->act_bits != 16))
        return nib_fail(
            err, NIB_E_DEVICE,
            "the cuda back end cannot replace weights or use 4-bit activations: measure with --backend cpu");
    c->now.wide = c->k->has_wide() && !r->visit.generated;
    c->now.stored = c->now.wide || c->now.several[r->visit.generated];
    NIB_TRY(in_place_hand_over(c, err));
    if (in_place_has(c, &r->visit))
        return in_place_run(c, r, err);
    if (r->visit.part == VISIT_ATTENTION)
        return attend_host_run(c, r, err);
    NIB_TRY(run_rows(c, err));
    if (r->visit.part == VISIT_BEFORE)
        return attend_host_send(c, err);
    if (!head || c->now.pass.hidden)
        return NIB_OK;
    if (c->now.pass.n_best && !c->replay.ahead)
        NIB_TRY(launch_best(c, r->visit.n_row, err));
    NIB_TRY(replay_flush(c, err));
    if (!c->now.pass.logits || c->now.pass.n_best)
        return NIB_OK;
    const int64_t n = model_reg_width(cuda_model(c), REG_LOGITS);
    NIB_TRY(copy_row(c, c->mem.logits, c->mem.reg[REG_LOGITS], n, err));
    NIB_TRY(wait_for_results(c, err));
    memcpy(c->now.pass.logits, c->mem.logits, (size_t)n * sizeof *c->mem.logits);
    return NIB_OK;
}

/* ---- results ---- */

static nib_status cuda_read_stream(backend *b, int64_t row, int64_t n_row, const float **out,
                                   nib_error *err) {
    cuda *c = cuda_of(b);
    backend *host = c->in_place.host;
    if (c->in_place.has_stream)
        return host->kind->read_stream(host, row, n_row, out, err);
    *out = c->mem.stream_copy;
    return read_rows(c, c->mem.stream_copy, c->mem.reg[REG_X] + row * c->mem.ld[REG_X], c->mem.ld[REG_X],
                     model_reg_width(cuda_model(c), REG_X), n_row, err);
}

static nib_status cuda_write_stream(backend *b, int64_t row, int64_t n_row, const float *x, nib_error *err) {
    cuda *c = cuda_of(b);
    backend *host = c->in_place.host;
    const int64_t n = model_reg_width(cuda_model(c), REG_X);
    if (c->in_place.has_stream)
        return host->kind->write_stream(host, row, n_row, x, err);
    c->now.coded = NULL;
    NIB_TRY(replay_flush(c, err));
    for (int64_t r = 0; r < n_row; r++)
        NIB_TRY(copy_row(c, c->mem.reg[REG_X] + (row + r) * c->mem.ld[REG_X], x + r * n, n, err));
    return wait_for_results(c, err);
}

static nib_status cuda_read_logits(backend *b, int64_t n_row, const float **out, nib_error *err) {
    cuda *c = cuda_of(b);
    *out = c->mem.logits;
    return read_rows(c, c->mem.logits, c->mem.reg[REG_LOGITS], c->mem.ld[REG_LOGITS],
                     model_reg_width(cuda_model(c), REG_LOGITS), n_row, err);
}

static nib_status cuda_read_best(backend *b, int64_t n_row, const int32_t **ids, const float **logits,
                                 nib_error *err) {
    cuda *c = cuda_of(b);
    const int64_t n = n_row * c->now.pass.n_best;
    *ids = c->mem.found;
    *logits = (const float *)(const void *)(c->mem.found + n);
    NIB_TRY(spans_copy(c, "copy the largest logits", DEVICE_COMPUTE, c->mem.found, c->mem.best,
                       2 * (uint64_t)n * sizeof *c->mem.found, err));
    return wait_for_results(c, err);
}

static double cuda_head_share(backend *b) {
    return estimates_share(cuda_of(b));
}

static nib_status cuda_spans_start(backend *b, size_t max, nib_span_scale *scale, nib_error *err) {
    return spans_start(cuda_of(b), max, scale, err);
}

static nib_status cuda_spans_stop(backend *b, nib_span *out, size_t *n, size_t *n_dropped, nib_error *err) {
    return spans_stop(cuda_of(b), out, n, n_dropped, err);
}

static nib_status check_residuals(int bits, salient_rule rule, nib_error *err) {
    return bits == 4 && rule == SALIENT_APPROX
               ? NIB_OK
               : nib_fail(
                     err, NIB_E_USAGE,
                     "residuals with --backend cuda: expected --residual-bits 4 and --residual-rule approx");
}

const backend_kind backend_cuda = {
    .name = "cuda",
    .tier = NIB_TIER_VRAM,
    .memory = &device_cuda_kind,
    .no_f32_cache = true,
    .one_kv_format = true,
    .slides = true,
    .no_integer_zeros = true,
    .plain_formats = true,
    .map = KERNEL_MAP_DEVICE,
    .check_residuals = check_residuals,
    .n_batch = 2048,     /* 8b: 35,000 tok/s with 512 rows, 42,000 with 2,048 (docs/gpu.md) */
    .row_multiple = 256, /* rows of a thread block of products (kernels/cuda/wide_rounds.cuh) */
    .open = cuda_open,
    .check_ops = steps_check_ops,
    .close = cuda_close,
    .row_bytes = cuda_row_bytes,
    .share = cuda_share,
    .reserve = cuda_reserve,
    .begin = cuda_begin,
    .run = cuda_run,
    .end = cuda_end,
    .read_stream = cuda_read_stream,
    .write_stream = cuda_write_stream,
    .read_logits = cuda_read_logits,
    .read_best = cuda_read_best,
    .max_best = CUDA_MAX_TOP,
    .max_changes = CUDA_MAX_CHANGES,
    .spans_start = cuda_spans_start,
    .spans_stop = cuda_spans_stop,
    .head_share = cuda_head_share,
};
