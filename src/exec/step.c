/* step.c - the step loop, the only one; see step.h. */
#include "exec/step.h"

#include "base/num.h"

#include <string.h>

typedef struct loop {
    stepper *s;
    const executor *e;
    const pass *p;
    int64_t head_row; /* rows of the stream whose logits are wanted begin there */
    canceller cancel; /* the pass's and the stepper's */
} loop;

static bool is_cancelled(void *user) {
    const loop *l = user;
    return cancel_asked(l->p->cancel) || cancel_asked(&l->s->cancel);
}

/* The rows whose logits are wanted stand one after the other in the stream from now on, from the first of
 * them or, where others stand between them, from its beginning. The head is the last to read it. */
static int64_t gather_wanted(const loop *l) {
    const pass *p = l->p;
    const size_t width = (size_t)model_hparams(l->e->m)->d_model;
    float *x = l->e->ws->reg[REG_X];
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

static nib_status begin_block(loop *l, int b, nib_error *err) {
    const pass *p = l->p;
    if (p->enter)
        NIB_TRY(p->enter(p->user, b, l->e->ws->reg[REG_X], err));
    if (b == model_n_block(l->e->m) - 1)
        l->head_row = gather_wanted(l);
    return NIB_OK;
}

/* Logits of a visit of the head, segment by segment. */
static nib_status give_logits(const loop *l, const visit *v, nib_error *err) {
    const pass *p = l->p;
    const int64_t n_vocab = model_hparams(l->e->m)->n_vocab;
    for (int64_t r = 0, n; r < v->n_row; r += n) {
        int64_t row = v->row + r;
        const segment *s = visits_segment(p->segments, p->n_segment, true, &row);
        n = NUM_MIN(s->n_row - row, v->n_row - r);
        NIB_TRY(
            p->rows(p->user, (int)(s - p->segments), row, n, l->e->ws->reg[REG_LOGITS] + r * n_vocab, err));
    }
    return NIB_OK;
}

static nib_status do_visit(const loop *l, const visit *v, const visits *rest, nib_error *err) {
    const executor *e = l->e;
    const pass *p = l->p;
    const view *views, *other = p->change && p->change->views ? p->change->views[v->block] : NULL;
    const bool head = v->block == model_n_block(e->m) - 1;
    int64_t segment_row = v->row;
    const segment *s = visits_segment(p->segments, p->n_segment, head, &segment_row);
    pager_pin(e->pager, v, rest, &views);
    const exec_cell now = {.block = v->block,
                           .views = other ? other : views,
                           .other_views = other != NULL,
                           .act_bits = p->change && p->change->act_bits ? p->change->act_bits[v->block] : 0,
                           .cache_only = v->cache_only,
                           .row = head ? l->head_row + v->row : v->row,
                           .n_row = v->n_row,
                           .segments = p->segments,
                           .n_segment = p->n_segment,
                           .segment = (int)(s - p->segments),
                           .segment_row = segment_row,
                           .probe = p->probe,
                           .logits = p->logits,
                           .cancel = &l->cancel};
    nib_status status = exec_cell_run(e, &now, err);
    pager_unpin(e->pager);
    return status == NIB_OK && head && p->rows ? give_logits(l, v, err) : status;
}

static nib_status steps(loop *l, visits list, nib_error *err) {
    int at = -1; /* the block of the visit before */
    nib_status status = NIB_OK;
    visit v;
    while (status == NIB_OK && visits_next(&list, &v)) {
        status = cancel_check(&l->cancel, err);
        if (status == NIB_OK && v.block != at)
            status = begin_block(l, v.block, err);
        at = v.block;
        if (status == NIB_OK)
            status = do_visit(l, &v, &list, err);
    }
    return status;
}

static visits visits_of(const executor *e, const pass *p) {
    const int n_block = model_n_block(e->m);
    const bool looked_at = p->probe || p->change || p->enter;
    return (visits){.next = p->order ? p->order : visits_by_block,
                    .n_block = n_block,
                    .first = p->first_block,
                    .end = p->end_block ? p->end_block : n_block,
                    .left_out = p->change ? p->change->left_out : NULL,
                    .segments = p->segments,
                    .n_segment = p->n_segment,
                    .n_cell = e->ws->n_cell,
                    .n_head = p->logits ? 1 : p->n_head,
                    /* streamed pages come for all rows of a block, as often for each block */
                    .whole = looked_at || pager_streams(e->pager),
                    .apart = looked_at || p->apart};
}

/* Tables for the rows and room in the caches; tells the ledger what becomes resident. */
static nib_status prepare(const executor *e, const pass *p, int64_t n_head, nib_error *err) {
    int64_t n_row = 0, n_logits = 0;
    for (int i = 0; i < p->n_segment; i++) {
        n_row += p->segments[i].n_row;
        n_logits += p->segments[i].n_row - p->segments[i].head_row;
    }
    workspace_reach(e->ws, n_row, NUM_MIN(n_row, e->ws->n_cell), p->logits ? 0 : NUM_MIN(n_logits, n_head));
    for (int i = 0; i < p->n_segment; i++) {
        const segment *s = &p->segments[i];
        NIB_TRY(kv_table_reach(s->kv, s->position, s->position + s->n_row, err));
        workspace_rows(e->ws, e->m, s->row, s->position, s->n_row, s->length, s->tokens);
    }
    return NIB_OK;
}

nib_status step_pass(stepper *s, const pass *p, nib_error *err) {
    const executor *e = &s->exec;
    const visits list = visits_of(e, p);
    pthread_mutex_lock(&s->lock);
    const double start = e->trace ? time_now() : 0;
    s->n_pass++;
    nib_status status = prepare(e, p, list.n_head, err);
    if (status == NIB_OK) {
        pager_begin(e->pager, &list);
        loop l = {.s = s, .e = e, .p = p};
        l.cancel = (canceller){is_cancelled, &l};
        pool_stay(e->threads);
        status = steps(&l, list, err);
        pool_leave(e->threads);
        pager_end(e->pager);
    }
    if (e->trace)
        s->pass_s += time_now() - start;
    pthread_mutex_unlock(&s->lock);
    return status;
}
