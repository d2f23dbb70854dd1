/* interpreter.c - see interpreter.h.
 *
 * A block's program runs in one pool_run, unless the calling thread must fetch data between two ops: rows of
 * an embedding that is not resident, or a matrix. While its page is pinned, a matrix that is whole in a page
 * is computed like a resident one. A matrix in several pieces of rows is one op for each piece. A thread's
 * notes about quantized activations persist from one pool_run to the next, so the output of a norm, or of an
 * earlier product, is used for all pieces. worker.h describes the barriers. */
#include "exec/cpu/interpreter.h"

#include "base/num.h"
#include "exec/cpu/from_disk.h"
#include "exec/cpu/worker.h"
#include "exec/cut.h"

#include <string.h>

/* ---- resources ---- */

static bool clash(int64_t before, int64_t now) {
    return before != SPLIT_NONE && (before != now || now == SPLIT_OTHER);
}

void worker_charge(worker *w) {
    double now = time_thread();
    w->trace->busy += now - w->since;
    w->since = now;
}

void worker_barrier(worker *w) {
    double start = 0;
    if (w->trace) {
        worker_charge(w);
        start = time_now();
    }
    pool_barrier(w->j->e->threads);
    if (w->trace) {
        w->trace->wait += time_now() - start;
        w->since = time_thread();
    }
    memset(&w->seen, 0, sizeof w->seen);
}

void worker_enter(worker *w, const access *list, int n) {
    bool wait = false;
    for (int i = 0; i < n; i++) {
        const access *a = &list[i];
        if (a->resource == REG_NONE)
            continue;
        wait = wait || clash(w->seen.written[a->resource], a->split);
        wait = wait || (a->write && clash(w->seen.read[a->resource], a->split));
    }
    if (wait)
        worker_barrier(w);
    for (int i = 0; i < n; i++) {
        const access *a = &list[i];
        if (a->resource == REG_NONE)
            continue;
        int64_t *slot = a->write ? &w->seen.written[a->resource] : &w->seen.read[a->resource];
        *slot = *slot == SPLIT_NONE || *slot == a->split ? a->split : SPLIT_OTHER;
    }
    for (int i = 0; i < n; i++)
        if (list[i].write && list[i].resource == (int)w->acts.of)
            w->acts.of = REG_NONE;
}

/* Runs op o. Returns the number of ops that it ran; joined products count individually. */
static int run_op(worker *w, const op *o) {
    switch (o->kind) {
    case OP_EMBED: run_embed(w, o); break;
    case OP_EMBED_POS: run_embed_pos(w, o); break;
    case OP_NORM: run_norm(w, o); break;
    case OP_LINEAR: return run_linear(w, o);
    case OP_ROUTE:
    case OP_COPY:
    case OP_SCALE_POS:
    case OP_MIX:
    case OP_LIKE:
    case OP_TIMES:
    case OP_SHARE:
    case OP_SOFTPLUS:
    case OP_SPARSIFY:
    case OP_CONNECT: run_whole_rows(w, o); break;
    case OP_EXPERTS:
    case OP_GROUPS: run_experts(w, o); break;
    case OP_SPREAD: run_spread(w, o); break;
    case OP_SELECT: run_select(w, o); break;
    case OP_ROPE: run_rope(w, o); break;
    case OP_REDUCE: run_reduce(w, o); break;
    case OP_ATTENTION: run_attention(w, o); break;
    case OP_ACT:
    case OP_GATE:
    case OP_ADD:
    case OP_SCALE:
    case OP_CLAMP:
    case OP_SOFTCAP:
    case OP_XIELU: run_elements(w, o); break;
    case OP_CONV:
    case OP_SSD:
    case OP_SCAN:
    case OP_DELTA:
    case OP_POOL: run_recurrent(w, o); break;
    case OP_SHORTLIST: /* run_shortlist */
    case OP_COUNT: break;
    }
    return 1;
}

static bool is_last_piece(const job *j, const op *o) {
    return !j->part || j->part_row + j->part->n == j->cell->views[o->w].n;
}

static void run_ops(void *arg, int thread, int n_thread) {
    job *j = arg;
    const program *p = &layout_block(j->e->layout, j->cell->block)->program;
    worker w = worker_of(j, thread, n_thread);
    op_trace *trace = j->e->trace;
    w.since = trace ? time_thread() : 0;
    for (int i = j->first_op, n = 1; i < j->end_op; i += n) {
        if (j->cell->cache_only && !p->ops[i].fuse.feeds_cache) {
            n = 1;
            continue;
        }
        if (trace)
            w.trace = trace_at(trace, thread, j->cell->block, i);
        n = run_op(&w, &p->ops[i]);
        if (!trace)
            continue;
        worker_charge(&w);
        if (thread == 0 && is_last_piece(j, &p->ops[i]))
            trace_count(trace, j->cell->block, i, n, j->cell->n_row);
    }
    if (thread == 0)
        j->acts_after = w.acts;
}

/* ---- the calling thread's work between two ops ---- */

static void run(job *j) {
    if (j->first_op == j->end_op)
        return;
    for (int i = j->first_op; j->shares && i < j->end_op; i++)
        atomic_store_explicit(&j->shares[i].next, 0, memory_order_relaxed);
    pool_run(j->e->threads, run_ops, j);
    j->acts = j->acts_after;
}

static nib_status look_up_rows(const job *j, const op *o, nib_error *err) {
    const executor *e = j->e;
    const exec_cell *c = j->cell;
    worker w = {.j = j};
    float *row = (float *)e->ws->scratch;
    for (int64_t r = 0; r < c->n_row && !job_is_dropped(j); r++) {
        float *out = worker_at(&w, o->out, r, o->n);
        if (o->kind == OP_EMBED) {
            float *to = embed_is_direct(o) ? out : row;
            const int64_t at = embed_index(e->ws->tokens[c->row + r], &c->views[o->w]);
            NIB_TRY(pager_read_row(e->pager, c->block, o->w, at, to, err));
            embed_row(e->kernels, o, to, out);
            continue;
        }
        int64_t position = e->ws->positions[c->row + r] + o->u.num.offset;
        NIB_TRY(pager_read_row(e->pager, c->block, o->w, position, row, err));
        e->kernels->add(out, row, 1, out, o->n);
    }
    return NIB_OK;
}

/* Computes the product of op i with a matrix that is fetched in n pieces. */
static nib_status product_in_pieces(job *whole, int i, int n, nib_error *err) {
    const exec_cell *c = whole->cell;
    const op *o = &layout_block(whole->e->layout, c->block)->program.ops[i];
    job one = *whole;
    one.first_op = i;
    one.end_op = i + 1;
    for (int piece = 0; piece < n && !job_is_dropped(whole); piece++) {
        pager_piece rows;
        NIB_TRY(pager_fetch(one.e->pager, c->block, o->w, piece, &rows, err));
        one.part = &rows.v;
        one.part_row = rows.first_row;
        run(&one);
        pager_release(one.e->pager);
    }
    whole->acts = one.acts;
    return NIB_OK;
}

/* The end of the ops from `first` on that may be computed for some experts after the others: up to their sum.
 */
static int end_of_experts(const program *p, int first, int end) {
    for (int i = first; i < end; i++) {
        const op *o = &p->ops[i];
        if (o->kind == OP_EXPERTS && o->u.experts.sum)
            return i + 1;
        if (o->kind != OP_EXPERTS && o->kind != OP_ACT && o->kind != OP_GATE && o->kind != OP_CLAMP)
            break;
    }
    return first + 1;
}

/* Computes the products of op *i, and of those after it that read the same experts, for the experts that rows
 * have chosen: for those that are in memory, while the others are read. *i becomes the op after them. Few
 * rows choose few experts, so that waiting for one that comes first in a sum would leave nothing to compute.
 */
static nib_status experts_in_turn(job *whole, int *i, int end, nib_error *err) {
    const exec_cell *c = whole->cell;
    const program *p = &layout_block(whole->e->layout, c->block)->program;
    pager *from = whole->e->pager;
    expert_use uses[ROUTE_MAX_EXPERT];
    int32_t taken[ROUTE_MAX_EXPERT];
    const int n_use = experts_chosen(whole, &p->ops[*i], uses);
    job one = *whole;
    one.first_op = *i;
    one.end_op = end_of_experts(p, *i, end);
    one.taken = taken;
    one.paged = true;
    one.apart = c->experts || c->n_row <= EXPERT_APART;
    NIB_TRY(pager_ask_experts(from, uses, n_use, c->n_row, !one.apart, err));
    int n_done = 0;
    do {
        NIB_TRY(pager_take_experts(from, taken, ROUTE_MAX_EXPERT, &one.n_taken, err));
        n_done += one.n_taken;
        one.ends = n_done == n_use && !c->experts;
        if (one.n_taken > 0)
            run(&one);
        pager_end_experts(from, taken, one.n_taken);
    } while (one.n_taken > 0 && !job_is_dropped(whole));
    whole->acts = one.acts;
    *i = one.end_op;
    return NIB_OK;
}

/* Computes op i, attention to keys and values on the disk, for the rows whose pages are in RAM together. */
static nib_status attend_from_disk(job *whole, int i, nib_error *err) {
    const exec_cell *c = whole->cell;
    from_disk *from = whole->e->on_disk;
    const op *o = &layout_block(whole->e->layout, c->block)->program.ops[i];
    job one = *whole;
    one.first_op = i;
    one.end_op = i + 1;
    for (int64_t r = 0, end; r < c->n_row && !job_is_dropped(whole); r = one.kv_end) {
        NIB_TRY(from_disk_acquire(from, o->u.attn.layer, c->row + r, &end, err));
        one.kv = from->views;
        one.kv_first = r;
        one.kv_end = NUM_MIN(c->n_row, end - c->row);
        run(&one);
        if (c->row + one.kv_end == end)
            NIB_TRY(from_disk_release(from, err));
    }
    whole->acts = one.acts;
    return NIB_OK;
}

/* Whether the op needs something that is not completely resident, or not known yet. */
static bool is_fetched(const job *j, const op *o) {
    const exec_cell *c = j->cell;
    if (o->kind == OP_SHORTLIST || from_disk_has(j->e->on_disk, o))
        return true;
    const bool has_weights = op_is_product(o) || o->kind == OP_EMBED || o->kind == OP_EMBED_POS;
    return has_weights && !c->views[o->w].data;
}

/* Fetches what op i needs. If the op is already computed then, *i becomes the next op; otherwise its weights
 * are in memory now. */
static nib_status fetch_op(job *j, int *i, int end, nib_error *err) {
    const exec_cell *c = j->cell;
    const op *o = &layout_block(j->e->layout, c->block)->program.ops[*i];
    if (o->kind == OP_SHORTLIST)
        return run_shortlist(j, (*i)++, err);
    if (!op_is_product(o)) {
        NIB_TRY(o->kind == OP_ATTENTION ? attend_from_disk(j, *i, err) : look_up_rows(j, o, err));
        ++*i;
        return NIB_OK;
    }
    if (o->kind == OP_EXPERTS)
        return experts_in_turn(j, i, end, err);
    const int n = pager_n_piece(j->e->pager, c->block, o->w);
    if (n > 1 || c->other_views) { /* the views are not the pager's */
        NIB_TRY(product_in_pieces(j, *i, n, err));
        ++*i;
        return NIB_OK;
    }
    pager_piece all;
    return pager_fetch(j->e->pager, c->block, o->w, 0, &all, err);
}

/* Runs ops [first, end), in one job as far as nothing must be fetched in between. The weights that were
 * fetched last stay in memory. */
static nib_status run_all(job *j, int first, int end, nib_error *err) {
    const program *p = &layout_block(j->e->layout, j->cell->block)->program;
    nib_status status = NIB_OK;
    for (j->first_op = first; j->first_op < end && status == NIB_OK && !job_is_dropped(j);) {
        for (j->end_op = j->first_op; j->end_op < end && !is_fetched(j, &p->ops[j->end_op]);)
            j->end_op++;
        run(j);
        j->first_op = j->end_op;
        if (j->first_op == end)
            break;
        pager_release(j->e->pager);
        status = fetch_op(j, &j->first_op, end, err);
    }
    return status;
}

static void call_probe(const exec_cell *c, const workspace *ws, const probe_places *places, int i,
                       const program *p) {
    for (int point = 0; point < PROBE_N && c->probe->point; point++) {
        const reg r = places->from[point];
        if (places->at[point] != i)
            continue;
        const bool stream = r == REG_X;
        const op *o = i < 0 ? &p->ops[p->n_op - 1] : &p->ops[i];
        const probe_data seen = {.point = (probe_point)point,
                                 .block = c->block,
                                 .segment = c->segment,
                                 .row = c->segment_row,
                                 .n_row = c->n_row,
                                 .x = ws->reg[r] + (stream ? c->row * o->n : 0),
                                 .width = o->n,
                                 .scale = point == PROBE_FFN ? o->u.num.value : 1};
        c->probe->point(c->probe->user, &seen);
    }
}

static void report_experts(const exec_cell *c, const workspace *ws, const op *o) {
    const int64_t n_used = o->u.experts.n_used, k = o->u.experts.k;
    for (int64_t r = 0; r < c->n_row; r++)
        for (int64_t i = 0; i < n_used; i++) {
            const probe_input in = {.block = c->block,
                                    .w = o->w,
                                    .n_row = 1,
                                    .x = ws->reg[o->in] + r * o->k + (o->u.experts.each ? i * k : 0),
                                    .k = k};
            c->probe->expert(c->probe->user, &in, route_expert(ws->reg[o->in2] + r * 2 * n_used, i));
        }
}

static void report_input(const exec_cell *c, const workspace *ws, const op *o) {
    if (o->kind == OP_EXPERTS && c->probe && c->probe->expert)
        report_experts(c, ws, o);
    if (o->kind != OP_LINEAR || !c->probe || !c->probe->input)
        return;
    const probe_input in = {.block = c->block,
                            .w = o->w,
                            .n_row = c->n_row,
                            .x = ws->reg[o->in] + (o->in == REG_X ? c->row * o->k : 0),
                            .k = o->k};
    c->probe->input(c->probe->user, &in);
}

/* Runs op by op, so that the probe can read the registers in between. */
static nib_status run_probed(job *whole, nib_error *err) {
    const exec_cell *c = whole->cell;
    const program *p = &layout_block(whole->e->layout, c->block)->program;
    probe_places places;
    probe_find(p, &places);
    whole->fuse = false;
    for (int i = PROBE_BEFORE; i < p->n_op && !job_is_dropped(whole); i++) {
        if (i >= 0) {
            report_input(c, whole->e->ws, &p->ops[i]);
            NIB_TRY(run_all(whole, i, i + 1, err));
        }
        call_probe(c, whole->e->ws, &places, i, p);
    }
    return NIB_OK;
}

/* Runs the head up to its product. Norms are not fused, because their floats are the result. */
static nib_status run_hidden(job *whole, nib_error *err) {
    const exec_cell *c = whole->cell;
    const program *p = &layout_block(whole->e->layout, c->block)->program;
    const op *head = probe_head_product(p);
    whole->fuse = false;
    for (int i = 0; i < head - p->ops && !job_is_dropped(whole); i++) {
        report_input(c, whole->e->ws, &p->ops[i]);
        NIB_TRY(run_all(whole, i, i + 1, err));
    }
    report_input(c, whole->e->ws, head);
    const float *x = whole->e->ws->reg[head->in] + (head->in == REG_X ? c->row * head->k : 0);
    if (!job_is_dropped(whole))
        c->hidden->receive(c->hidden->user, c->hidden_row, c->n_row, x, head->k);
    return NIB_OK;
}

/* Computes the visit's experts, apart. Those that the pager gives are found when their op is. */
static nib_status run_experts_apart(const job *whole, nib_error *err) {
    const exec_cell *c = whole->cell;
    const program *p = &layout_block(whole->e->layout, c->block)->program;
    const int first = cut_first(p, VISIT_EXPERTS), end = cut_end(p, VISIT_EXPERTS);
    expert_use uses[ROUTE_MAX_EXPERT];
    int32_t taken[ROUTE_MAX_EXPERT];
    job one = *whole;
    one.n_taken = experts_chosen(whole, &p->ops[first], uses);
    for (int i = 0; i < one.n_taken; i++)
        taken[i] = uses[i].expert;
    one.taken = taken;
    one.apart = true;
    return one.n_taken > 0 ? run_all(&one, first, end, err) : NIB_OK;
}

/* Whether a cell is timed to choose the distance of prefetches: a layer with few rows whose weights are all
 * in memory. */
static bool is_timed(const executor *e, const exec_cell *now) {
    return !e->ahead->chosen && now->n_row <= AHEAD_MAX_ROWS && now->block > 0 &&
           now->block + 1 < layout_n_block(e->layout) && !now->part && !now->cache_only && !now->probe &&
           !pager_streams(e->pager);
}

static void add_time(const executor *e, const exec_cell *now, double seconds) {
    const program *p = &layout_block(e->layout, now->block)->program;
    double bytes = 1;
    for (int i = 0; i < p->n_op; i++)
        bytes += op_weight_bytes(&p->ops[i], (double)now->n_row);
    ahead_add(e->ahead, seconds / bytes);
}

nib_status exec_cell_run(const executor *e, const exec_cell *now, nib_error *err) {
    share shares[PROGRAM_MAX_OP];
    atomic_bool dropped = false;
    job_failure failure = {.taken = false};
    job whole = {.e = e,
                 .cell = now,
                 .fuse = e->fuse,
                 .act_bits = now->act_bits ? now->act_bits : e->act_bits[now->block],
                 .acts = {.of = REG_NONE},
                 .dropped = &dropped,
                 .failure = &failure};
    const double begin = is_timed(e, now) ? time_now() : 0;
    whole.ahead = begin > 0 ? ahead_next(e->ahead) : e->ahead->chosen;
    whole.shares = e->fuse && !now->probe && !now->hidden ? shares : NULL;
    const program *p = &layout_block(e->layout, now->block)->program;
    const nib_status status = now->hidden    ? run_hidden(&whole, err)
                              : now->experts ? run_experts_apart(&whole, err)
                              : now->probe
                                  ? run_probed(&whole, err)
                                  : run_all(&whole, cut_first(p, now->part), cut_end(p, now->part), err);
    pager_release(e->pager);
    if (status == NIB_OK && failure.taken) {
        if (err)
            *err = failure.why;
        return failure.why.status;
    }
    if (status == NIB_OK && dropped)
        return nib_fail(err, NIB_E_CANCELLED, "cancelled");
    if (status == NIB_OK && begin > 0)
        add_time(e, now, time_now() - begin);
    return status;
}
