/* step.c - the only step loop; see step.h. */
#include "exec/step.h"

#include "base/mem.h"
#include "base/num.h"
#include "state/kv_calls.h"

typedef struct loop {
    stepper *s;
    const pass *p;
    canceller cancel; /* polls the pass's and the stepper's */
} loop;

static bool is_cancelled(void *user) {
    const loop *l = user;
    return cancel_asked(l->p->cancel) || cancel_asked(&l->s->cancel);
}

static bool is_head(const loop *l, int b) {
    return b == model_n_block(l->s->m) - 1;
}

/* Reads the results of a visit of the head, segment by segment. */
static nib_status give_logits(const loop *l, const visit *v, nib_error *err) {
    const pass *p = l->p;
    backend *by = l->s->backend;
    const int64_t each = p->n_best ? p->n_best : model_hparams(l->s->m)->n_vocab;
    const float *logits;
    const int32_t *ids = NULL;
    NIB_TRY(p->n_best ? by->kind->read_best(by, v->n_row, &ids, &logits, err)
                      : by->kind->read_logits(by, v->n_row, &logits, err));
    for (int64_t r = 0, n; r < v->n_row; r += n) {
        int64_t row = v->row + r;
        const segment *s = visits_segment(p->segments, p->n_segment, true, &row);
        const int at = (int)(s - p->segments);
        n = NUM_MIN(s->n_row - row, v->n_row - r);
        NIB_TRY(p->n_best ? p->best(p->user, at, row, n, ids + r * each, logits + r * each, err)
                          : p->rows(p->user, at, row, n, logits + r * each, err));
    }
    return NIB_OK;
}

static device_store *slots_of(const loop *l) {
    return l->p->layer ? l->p->layer : l->s->backend->store;
}

/* Runs a visit with the model's own weights. They are released also if the run fails. */
static nib_status run_acquired(const loop *l, backend_run *now, nib_error *err) {
    backend *by = l->s->backend;
    device_store *to = slots_of(l);
    NIB_TRY(acquire_block(now->pager, to, &now->visit, now->rest, &now->weights, err));
    const nib_status status = by->kind->run(by, now, err);
    const nib_status released =
        acquire_release(now->pager, to, &now->visit, now->rest, status == NIB_OK ? err : NULL);
    return status == NIB_OK ? released : status;
}

static nib_status do_visit(const loop *l, const visit *v, const visits *rest, nib_error *err) {
    const pass *p = l->p;
    const pass_change *change = p->change;
    backend *by = l->s->backend;
    const bool head = is_head(l, v->block);
    const view *other = change && change->views ? change->views[v->block] : NULL;
    backend_run now = {.visit = *v,
                       .rest = rest,
                       .weights.views = other,
                       .replaced = other != NULL,
                       .pager = l->s->pager,
                       .segment_row = v->row};
    now.segment = (int)(visits_segment(p->segments, p->n_segment, head, &now.segment_row) - p->segments);
    now.act_bits = change && change->act_bits ? change->act_bits[v->block] : 0;
    const nib_status status = other ? by->kind->run(by, &now, err) : run_acquired(l, &now, err);
    return status == NIB_OK && head && (p->rows || p->n_best) ? give_logits(l, v, err) : status;
}

static nib_status write_input(const loop *l, nib_error *err) {
    const pass *p = l->p;
    backend *by = l->s->backend;
    for (int i = 0; i < p->n_segment && p->input; i++)
        NIB_TRY(
            by->kind->write_stream(by, p->segments[i].row, p->segments[i].n_row, p->input(p->user, i), err));
    return NIB_OK;
}

static nib_status give_output(const loop *l, nib_error *err) {
    const pass *p = l->p;
    backend *by = l->s->backend;
    for (int i = 0; i < p->n_segment; i++) {
        const float *x;
        NIB_TRY(by->kind->read_stream(by, p->segments[i].row, p->segments[i].n_row, &x, err));
        p->output(p->user, i, x);
    }
    return NIB_OK;
}

static nib_status steps(const loop *l, visits list, nib_error *err) {
    int at = -1; /* the block of the previous visit */
    bool gives = l->p->output;
    nib_status status = write_input(l, err);
    visit v;
    while (status == NIB_OK && visits_next(&list, &v)) {
        status = cancel_check(&l->cancel, err);
        if (status == NIB_OK && gives && is_head(l, v.block)) {
            status = give_output(l, err);
            gives = false;
        }
        if (status == NIB_OK && v.block != at && l->p->enter)
            status = l->p->enter(l->p->user, v.block, l->s->backend, err);
        at = v.block;
        if (status == NIB_OK)
            status = do_visit(l, &v, &list, err);
    }
    return status == NIB_OK && gives ? give_output(l, err) : status;
}

static visits visits_of(const stepper *s, const pass *p) {
    const int n_block = model_n_block(s->m);
    const int64_t n_cell = s->links ? s->links->n_cell : 0, n_head = s->links ? s->links->n_head : 0;
    const bool looked_at = p->probe || p->change || p->enter;
    return (visits){.next = visits_by_block,
                    .n_block = n_block,
                    .first = s->links ? s->links->first : p->first_block,
                    .end = s->links       ? s->links->end
                           : p->end_block ? p->end_block
                                          : n_block,
                    .left_out = p->change ? p->change->left_out : NULL,
                    .segments = p->segments,
                    .n_segment = p->n_segment,
                    .n_cell = n_cell ? n_cell : s->backend->rows.n_cell,
                    .n_head = p->logits ? 1
                              : n_head  ? n_head
                                        : p->n_head,
                    /* streamed pages are read once for all rows of a block */
                    .whole =
                        looked_at || p->output || pager_streams(s->pager) || (s->links && s->links->whole),
                    .apart = looked_at || p->apart,
                    .by_role = s->backend->by_role,
                    .cut = s->backend->cut,
                    .n_cut = s->backend->n_cut,
                    .held = p->layer || s->backend->device != device_host()};
}

/* The blocks of a pass, or of this stage. */
static nib_status run_stage(const loop *l, const visits *list, nib_error *err) {
    const step_links *links = l->s->links;
    if (links && links->receive && !links->shares)
        NIB_TRY(links->receive(links->user, l->p, l->s->backend, err));
    NIB_TRY(steps(l, *list, err));
    return links && links->send ? links->send(links->user, l->p, l->s->backend, err) : NIB_OK;
}

/* Nothing but a pass's rows and results crosses a pipeline. */
static nib_status check_stage(const pass *p, nib_error *err) {
    if (p->probe || p->change || p->enter || p->input || p->output || p->first_block || p->end_block ||
        p->processor)
        return nib_fail(err, NIB_E_USAGE, "several devices do not measure: expected one process");
    return NIB_OK;
}

/* Whether passes prepare the tables. Ranks after the first one repeat its calls instead. */
static bool has_tables(const stepper *s) {
    return !s->links || !s->links->repeats;
}

static nib_status reach(const pass *p, nib_error *err) {
    for (int i = 0; i < p->n_segment; i++) {
        const segment *s = &p->segments[i];
        const int64_t end = s->position + s->n_row;
        NIB_TRY(kv_call_reach(s->kv, s->position, end, NUM_MIN(s->length, end), s->generated, err));
    }
    for (int i = 0; i < p->n_segment; i++)
        NIB_TRY(kv_call_fill(p->segments[i].kv, p->segments[i].position + p->segments[i].n_row, err));
    return NIB_OK;
}

/* Runs this stage's blocks on the rows of a pass, or of a part of it. */
static nib_status run_rows(stepper *s, const pass *p, nib_error *err) {
    const visits rows = visits_of(s, p), *list = &rows;
    loop here = {.s = s, .p = p}, *l = &here;
    backend *by = s->backend;
    here.cancel = (canceller){is_cancelled, &here};
    const backend_pass now = {.segments = p->segments,
                              .n_segment = p->n_segment,
                              .n_head = list->n_head,
                              .logits = p->logits,
                              .plain = !p->probe && !p->change && !p->enter && !p->input && !p->output &&
                                       !p->hidden && !p->apart && p->first_block == 0 && p->end_block == 0 &&
                                       (!l->s->links || l->s->links->shares),
                              .n_best = p->n_best,
                              .processor = p->processor,
                              .probe = p->probe,
                              .hidden = p->hidden,
                              .cancel = &l->cancel};
    if (l->s->links && l->s->links->shares && l->s->links->receive)
        NIB_TRY(l->s->links->receive(l->s->links->user, p, by, err));
    NIB_TRY(by->kind->begin(by, &now, err));
    pager_begin(l->s->pager, list);
    const nib_status status = run_stage(l, list, err);
    pager_end(l->s->pager);
    const nib_status ended = by->kind->end(by, status == NIB_OK ? err : NULL);
    acquire_end(slots_of(l));
    return status == NIB_OK ? ended : status;
}

/* Rows [first, first + n) of a pass as a pass of their own. */
static nib_status make_part(stepper *s, const pass *p, int64_t first, int64_t n, pass *out, nib_error *err) {
    *out = *p;
    out->n_segment = 0;
    if (mem_grow((void **)&s->part, &s->cap_part, (size_t)p->n_segment, sizeof *s->part))
        return nib_fail_nomem(err, (size_t)p->n_segment * sizeof *s->part, "a part of a pass");
    for (int64_t at = first; at < first + n;) {
        int64_t row = at;
        const segment *from = visits_segment(p->segments, p->n_segment, false, &row);
        segment *to = &s->part[out->n_segment++];
        *to = *from;
        to->tokens += row;
        to->position += row;
        to->n_row = NUM_MIN(from->n_row - row, first + n - at);
        to->head_row = NUM_MIN(NUM_MAX(from->head_row - row, 0), to->n_row);
        at += to->n_row;
    }
    segments_number(s->part, out->n_segment);
    out->segments = s->part;
    out->number = ++s->n_sent;
    return NIB_OK;
}

/* Ranks that share layers and give a pass up that nobody has cancelled have waited for each other. */
static nib_status check_cause(const stepper *s, const pass *p, nib_status status, nib_error *err) {
    if (status != NIB_E_CANCELLED || !s->links->shares || cancel_asked(p->cancel) || cancel_asked(&s->cancel))
        return status;
    return nib_fail(err, NIB_E_FAILED, "ranks have waited for each other's sums for too long");
}

/* Runs a pass part by part, so that the stages after this one begin with the first part. */
static nib_status run_parts(stepper *s, const pass *p, step_parts *out, nib_error *err) {
    const segment *last = &p->segments[p->n_segment - 1];
    const int64_t n = last->row + last->n_row;
    *out =
        (step_parts){.first = s->n_sent + 1, .n_row = s->links->n_part && !p->hidden ? s->links->n_part : n};
    for (int64_t row = 0; row < n; row += out->n_row, out->n++) {
        pass part;
        NIB_TRY(make_part(s, p, row, NUM_MIN(out->n_row, n - row), &part, err));
        nib_status status = run_rows(s, &part, err);
        if (status != NIB_OK && s->links->abandon)
            status = s->links->abandon(s->links->user, part.number, status, err);
        if (status != NIB_OK)
            return check_cause(s, p, status, err);
    }
    return NIB_OK;
}

static nib_status run_pass(stepper *s, const pass *p, step_parts *out, nib_error *err) {
    if (s->links)
        NIB_TRY(check_stage(p, err));
    if (has_tables(s))
        NIB_TRY(reach(p, err));
    if (s->backend->store)
        NIB_TRY(device_store_look(s->backend->store, err));
    if (!s->links || !s->links->results)
        return run_rows(s, p, err);
    const nib_status status = run_parts(s, p, out, err);
    if (status != NIB_OK)
        step_end(s, NULL, out, NULL);
    return status;
}

nib_status step_begin(stepper *s, const pass *p, step_parts *out, nib_error *err) {
    *out = (step_parts){0};
    pthread_mutex_lock(&s->lock);
    const double start = s->trace ? time_now() : 0;
    s->n_pass++;
    const nib_status status = run_pass(s, p, out, err);
    for (int i = 0; i < p->n_segment && has_tables(s); i++)
        kv_call_settle(p->segments[i].kv);
    if (s->trace)
        s->pass_s += time_now() - start;
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* After an error the results of the other parts are dropped. */
nib_status step_end(stepper *s, const pass *p, const step_parts *parts, nib_error *err) {
    nib_status status = NIB_OK;
    for (int64_t i = 0; i < parts->n; i++) {
        const pass *to = status == NIB_OK ? p : NULL;
        const nib_status each =
            s->links->results(s->links->user, to, parts->first + i, i * parts->n_row, to ? err : NULL);
        if (status == NIB_OK)
            status = to ? check_cause(s, to, each, err) : each;
    }
    return status;
}

nib_status step_pass(stepper *s, const pass *p, nib_error *err) {
    step_parts parts;
    NIB_TRY(step_begin(s, p, &parts, err));
    return step_end(s, p, &parts, err);
}

void step_clear(stepper *s) {
    mem_free(s->part);
    s->part = NULL;
}

nib_status step_settle(stepper *s, kv_pool *pages, nib_error *err) {
    pthread_mutex_lock(&s->lock);
    const nib_status status = kv_pool_settle(pages, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}
