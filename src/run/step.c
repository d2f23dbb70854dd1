/* step.c - the step loop, the only one; see step.h. */
#include "run/step.h"

#include "base/num.h"

typedef struct loop {
    nib_engine *e;
    const pass *p;
    int pinned;
    const view *views; /* of the pinned block */
} loop;

static bool is_left_out(const pass *p, int b) {
    return p->change && p->change->left_out && p->change->left_out[b];
}

static nib_status begin_block(loop *l, int b, nib_error *err) {
    const pass *p = l->p;
    if (l->pinned >= 0)
        pager_unpin(l->e->pager, l->pinned);
    l->pinned = -1;
    if (p->enter)
        NIB_TRY(p->enter(p->user, b, l->e->ws.reg[REG_X], err));
    pager_pin(l->e->pager, b, &l->views);
    l->pinned = b;
    return NIB_OK;
}

static nib_status do_cell(loop *l, const cell *c, bool again, nib_error *err) {
    nib_engine *e = l->e;
    const pass *p = l->p;
    const segment *s = &p->segments[c->segment];
    const view *other = p->change && p->change->views ? p->change->views[c->block] : NULL;
    const bool head = c->block == model_n_block(e->m) - 1;
    exec_cell now = {.block = c->block,
                     .views = other ? other : l->views,
                     .other_views = other != NULL,
                     .act_bits = p->change && p->change->act_bits ? p->change->act_bits[c->block] : 0,
                     .again = again,
                     .cache_only = c->cache_only,
                     .segment = c->segment,
                     .segment_row = c->row,
                     .row = s->row + c->row,
                     .n_row = c->n_row,
                     .position = s->position + c->row,
                     .tokens = s->tokens + c->row,
                     .kv = s->kv,
                     .probe = p->probe,
                     .logits = p->logits};
    NIB_TRY(exec_cell_run(&e->exec, &now, err));
    if (head && p->rows)
        return p->rows(p->user, c->segment, c->row, c->n_row, e->ws.reg[REG_LOGITS], err);
    return NIB_OK;
}

static nib_status steps(loop *l, schedule *order, nib_error *err) {
    int at = -1; /* the block whose cells are being done, also when it is left out */
    nib_status status = NIB_OK;
    cell c;
    while (status == NIB_OK && schedule_next(order, &c)) {
        if (l->p->cancel && atomic_exchange(l->p->cancel, false)) {
            status = nib_fail(err, NIB_E_CANCELLED, "cancelled");
            break;
        }
        if (is_left_out(l->p, c.block))
            continue;
        if (c.block != at)
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
static void prepare(nib_engine *e, const pass *p, int64_t n_head) {
    int64_t n_row = 0, longest = 0, n_logits = 0;
    for (int i = 0; i < p->n_segment; i++) {
        const segment *s = &p->segments[i];
        n_row += s->n_row;
        longest = NUM_MAX(longest, s->n_row);
        n_logits = NUM_MAX(n_logits, s->n_row - s->head_row);
    }
    workspace_reach(&e->ws, n_row, NUM_MIN(longest, e->ws.n_cell), p->logits ? 0 : NUM_MIN(n_logits, n_head));
    for (int i = 0; i < p->n_segment; i++) {
        const segment *s = &p->segments[i];
        kv_cache_reach(s->kv, s->position + s->n_row);
        workspace_rope(&e->ws, e->m, s->row, s->position, s->n_row, s->length);
    }
}

nib_status step_pass(nib_engine *e, const pass *p, nib_error *err) {
    const int64_t n_head = p->logits ? 1 : p->n_head;
    /* streamed pages come for whole cells, as often for each block */
    const bool whole = p->probe || p->change || p->enter || pager_streams(e->pager);
    schedule order = schedule_begin(model_n_block(e->m), p->first_block, p->segments, p->n_segment,
                                    e->ws.n_cell, n_head, whole);
    pthread_mutex_lock(&e->lock);
    const double start = e->exec.trace ? time_now() : 0;
    e->n_pass++;
    prepare(e, p, n_head);
    pager_expect(e->pager, schedule_n_cell(&order), schedule_n_head(&order));
    loop l = {.e = e, .p = p, .pinned = -1};
    pool_stay(e->threads);
    const nib_status status = steps(&l, &order, err);
    pool_leave(e->threads);
    if (e->exec.trace)
        e->pass_s += time_now() - start;
    pthread_mutex_unlock(&e->lock);
    return status;
}
