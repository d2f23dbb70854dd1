/* step.c - the step loop, the only one; see step.h. */
#include "exec/step.h"

#include "base/num.h"

#include <string.h>

typedef struct loop {
    stepper *s;
    const executor *e;
    const pass *p;
    int pinned;
    const view *views; /* of the pinned block */
    int64_t head_row;  /* rows of the stream whose logits are wanted begin there */
    canceller cancel;  /* the pass's and the stepper's */
} loop;

static bool is_cancelled(void *user) {
    const loop *l = user;
    return cancel_asked(l->p->cancel) || cancel_asked(&l->s->cancel);
}

static bool is_left_out(const pass *p, int b) {
    return p->change && p->change->left_out && p->change->left_out[b];
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
    if (l->pinned >= 0)
        pager_unpin(l->e->pager, l->pinned);
    l->pinned = -1;
    if (p->enter)
        NIB_TRY(p->enter(p->user, b, l->e->ws->reg[REG_X], err));
    pager_pin(l->e->pager, b, &l->views);
    l->pinned = b;
    if (b == model_n_block(l->e->m) - 1)
        l->head_row = gather_wanted(l);
    return NIB_OK;
}

/* A head cell's logits, segment by segment. */
static nib_status give_logits(const loop *l, const cell *c, nib_error *err) {
    const pass *p = l->p;
    const int64_t n_vocab = model_hparams(l->e->m)->n_vocab;
    for (int64_t r = 0, n; r < c->n_row; r += n) {
        int64_t row = c->row + r;
        const segment *s = schedule_find(p->segments, p->n_segment, true, &row);
        n = NUM_MIN(s->n_row - row, c->n_row - r);
        NIB_TRY(
            p->rows(p->user, (int)(s - p->segments), row, n, l->e->ws->reg[REG_LOGITS] + r * n_vocab, err));
    }
    return NIB_OK;
}

static nib_status do_cell(loop *l, const cell *c, bool again, nib_error *err) {
    const executor *e = l->e;
    const pass *p = l->p;
    const view *other = p->change && p->change->views ? p->change->views[c->block] : NULL;
    const bool head = c->block == model_n_block(e->m) - 1;
    int64_t segment_row = c->row;
    const segment *s = schedule_find(p->segments, p->n_segment, head, &segment_row);
    const exec_cell now = {.block = c->block,
                           .views = other ? other : l->views,
                           .other_views = other != NULL,
                           .act_bits = p->change && p->change->act_bits ? p->change->act_bits[c->block] : 0,
                           .again = again,
                           .cache_only = c->cache_only,
                           .row = head ? l->head_row + c->row : c->row,
                           .n_row = c->n_row,
                           .segments = p->segments,
                           .n_segment = p->n_segment,
                           .segment = (int)(s - p->segments),
                           .segment_row = segment_row,
                           .probe = p->probe,
                           .logits = p->logits,
                           .cancel = &l->cancel};
    NIB_TRY(exec_cell_run(e, &now, err));
    return head && p->rows ? give_logits(l, c, err) : NIB_OK;
}

static nib_status steps(loop *l, schedule *order, nib_error *err) {
    int at = -1; /* the block whose cells are being done, also when it is left out */
    nib_status status = NIB_OK;
    cell c;
    while (status == NIB_OK && schedule_next(order, &c)) {
        if (is_left_out(l->p, c.block))
            continue;
        status = cancel_check(&l->cancel, err);
        if (status == NIB_OK && c.block != at)
            status = begin_block(l, c.block, err);
        at = c.block;
        if (status == NIB_OK)
            status = do_cell(l, &c, schedule_stays(order, c.block), err);
    }
    if (l->pinned >= 0)
        pager_unpin(l->e->pager, l->pinned);
    return status;
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
    const int64_t n_head = p->logits ? 1 : p->n_head;
    const bool looked_at = p->probe || p->change || p->enter;
    /* streamed pages come for whole cells, as often for each block */
    const bool whole = looked_at || pager_streams(e->pager);
    schedule order = schedule_begin(model_n_block(e->m), p->first_block, p->segments, p->n_segment,
                                    e->ws->n_cell, n_head, whole, looked_at || p->apart);
    pthread_mutex_lock(&s->lock);
    const double start = e->trace ? time_now() : 0;
    s->n_pass++;
    nib_status status = prepare(e, p, n_head, err);
    if (status == NIB_OK) {
        pager_expect(e->pager, schedule_n_cell(&order), schedule_n_head(&order));
        loop l = {.s = s, .e = e, .p = p, .pinned = -1};
        l.cancel = (canceller){is_cancelled, &l};
        pool_stay(e->threads);
        status = steps(&l, &order, err);
        pool_leave(e->threads);
    }
    if (e->trace)
        s->pass_s += time_now() - start;
    pthread_mutex_unlock(&s->lock);
    return status;
}
