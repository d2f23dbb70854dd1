/* replay.c - collects launches until other work has to be queued. A list of launches that repeats, like a
 * token's, becomes a CUDA graph, which one call launches.
 *
 * Everything that changes from token to token (positions, pages, angles, the residual stream) is data in
 * device memory. So the list repeats exactly: the same kernels with the same addresses. A list is recorded
 * when it is seen for the second time. */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "memory/device_cuda.h"

#include <assert.h>
#include <string.h>

nib_status replay_open(cuda *c, nib_error *err) {
    replay *r = &c->replay;
    int n = 0;
    for (int b = 0; b < layout_n_block(c->setup.layout); b++)
        n += c->blocks[b].n;
    r->max = 2 * NUM_MAX(n, 1) + 1; /* attention, products with outliers, and the head may be two launches */
    if (c->setup.residuals)
        r->max *= 2; /* with residuals products are up to four launches */
    for (int i = 0; i <= CUDA_MAX_GRAPHS; i++) {
        gpu_launch **list = i < CUDA_MAX_GRAPHS ? &r->graphs[i].list : &r->list;
        *list = mem_calloc((size_t)r->max, sizeof **list);
        if (!*list)
            return nib_fail_nomem(err, (size_t)r->max * sizeof **list, "the launches of a token");
    }
    return NIB_OK;
}

static void forget(const cuda *c, gpu_graph *g) {
    if (g->graph)
        c->k->graph_free(g->graph);
    g->graph = NULL;
    g->n = 0;
}

void replay_forget(cuda *c) {
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++)
        forget(c, &c->replay.graphs[i]);
    c->replay.before = NULL;
}

void replay_close(cuda *c) {
    replay_forget(c);
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++)
        mem_free(c->replay.graphs[i].list);
    mem_free(c->replay.list);
}

void replay_drop(cuda *c) {
    c->replay.n = 0;
}

nib_status replay_add(cuda *c, launch_kind kind, const op *of, const void *arguments, size_t size,
                      nib_error *err) {
    replay *r = &c->replay;
    if (r->n == r->max)
        NIB_TRY(replay_flush(c, err));
    gpu_launch *l = &r->list[r->n++];
    assert(size <= sizeof l->u);
    memset(l, 0, sizeof *l); /* lists are compared byte by byte */
    memcpy(&l->u, arguments, size);
    l->kind = kind;
    l->of = of;
    l->block = c->now.run.visit.block;
    l->aside = c->fetches.aside;
    return NIB_OK;
}

static cuda_stream stream_of(const cuda *c, const gpu_launch *l) {
    return l->aside ? c->fetches.side : c->stream;
}

static int launch_one(const cuda *c, const gpu_launch *l, cuda_stream on) {
    switch (l->kind) {
    case LAUNCH_EMBED: return c->k->embed(&l->u.embed, on);
    case LAUNCH_LINEAR: return c->k->linear(&l->u.linear, on);
    case LAUNCH_WIDE: return c->k->wide(&l->u.linear, on);
    case LAUNCH_BATCH: return c->k->batch(&l->u.linear, on);
    case LAUNCH_MIXED: return c->k->mixed(&l->u.linear, on);
    case LAUNCH_SPARSE: return c->k->sparse(&l->u.sparse, on);
    case LAUNCH_STORE: return c->k->store(&l->u.attend, on);
    case LAUNCH_PACK: return c->k->pack(&l->u.attend, on);
    case LAUNCH_ATTEND: return c->k->attend(&l->u.attend, on);
    case LAUNCH_PROMPT: return c->k->attend_prompt(&l->u.attend, on);
    case LAUNCH_NORM: return c->k->norm(&l->u.norm, on);
    case LAUNCH_EACH: return c->k->each(&l->u.each, on);
    case LAUNCH_COLUMNS: return c->k->columns(&l->u.columns, on);
    case LAUNCH_REDUCE: return c->k->reduce(&l->u.reduce, on);
    case LAUNCH_GATHER: return c->k->gather(&l->u.gather, on);
    case LAUNCH_ROPE: return c->k->rope(&l->u.rope, on);
    case LAUNCH_RECURRENT: return c->k->recurrent(&l->u.recurrent, on);
    case LAUNCH_ROUTE: return c->k->route(&l->u.route, on);
    case LAUNCH_EXPERTS: return c->k->experts(&l->u.experts, on);
    case LAUNCH_HAND_DOWN: return c->k->hand_down(&l->u.hand_down, on);
    case LAUNCH_HAND_UP: return c->k->hand_up(&l->u.hand_up, on);
    case LAUNCH_GROUPS: return c->k->groups(&l->u.groups, on);
    case LAUNCH_FETCH: return fetches_launch(c, &l->u.residual, on);
    case LAUNCH_ADD: return fetches_add(c, &l->u.residual_add);
    case LAUNCH_SHORTLIST: return c->k->shortlist(&l->u.shortlist, on);
    case LAUNCH_BEST: return c->k->sample(&l->u.sample, on);
    }
    return CUDA_UNSUPPORTED;
}

/* Launches with a span. The span of a fetch begins where the second stream forks. */
static int launch_timed(const cuda *c, const gpu_launch *l) {
    const nib_span span = span_of(c, l);
    const cuda_stream on = stream_of(c, l);
    int e = spans_open(c, &span, l->kind == LAUNCH_FETCH ? c->stream : on);
    e = e ? e : launch_one(c, l, on);
    return e ? e : spans_close(c, on);
}

/* recorded: for a graph, whose launches run later. */
static nib_status launch_list(cuda *c, const gpu_launch *list, int n, bool recorded, nib_error *err) {
    for (int i = 0; i < n; i++) {
        if (!recorded)
            NIB_TRY(experts_host_before(c, &list[i], err));
        const int e = c->spans ? launch_timed(c, &list[i]) : launch_one(c, &list[i], stream_of(c, &list[i]));
        NIB_TRY(device_cuda_ok(c->base.device, e, op_name(list[i].of->kind), err));
        if (!recorded)
            experts_host_after(c, &list[i]);
    }
    return NIB_OK;
}

/* Launches a graph, and computes what it asks of the host. */
static nib_status launch_graph(cuda *c, const gpu_graph *g, nib_error *err) {
    NIB_TRY(
        device_cuda_ok(c->base.device, c->k->graph_launch(g->graph, c->stream), "launching a graph", err));
    return c->experts_host.n > 0 ? experts_host_serve(c, g->list, g->n, err) : NIB_OK;
}

/* Records the list's graph. */
static nib_status record(cuda *c, gpu_graph *g, nib_error *err) {
    NIB_TRY(device_cuda_ok(c->base.device, c->k->graph_begin(c->stream), "recording launches", err));
    const nib_status status = launch_list(c, g->list, g->n, true, err);
    /* Also after an error, so that the stream leaves recording. */
    const int e = c->k->graph_end(c->stream, &g->graph);
    if (status != NIB_OK && !e)
        c->k->graph_free(g->graph);
    NIB_TRY(status);
    return device_cuda_ok(c->base.device, e, "recording launches", err);
}

/* Finds the graph of the collected list of n launches (*known), or else the least recently used one, which is
 * replaced. */
static gpu_graph *find(replay *r, int n, bool *known) {
    gpu_graph *oldest = &r->graphs[0];
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++) {
        gpu_graph *g = &r->graphs[i];
        *known = g->n == n && memcmp(g->list, r->list, (size_t)n * sizeof *r->list) == 0;
        if (*known)
            return g;
        if (g->used < oldest->used)
            oldest = g;
    }
    return oldest;
}

nib_status replay_flush_once(cuda *c, nib_error *err) {
    const int n = c->replay.n;
    c->replay.n = 0;
    return launch_list(c, c->replay.list, n, false, err);
}

nib_status replay_flush(cuda *c, nib_error *err) {
    replay *r = &c->replay;
    const int n = r->n;
    nib_error why;
    bool known;
    r->n = 0;
    if (n == 0)
        return NIB_OK;
    r->n_flush++;
    r->last = NULL;
    if (n < CUDA_MIN_GRAPH || !r->repeats || c->spans)
        return launch_list(c, r->list, n, false, err);
    gpu_graph *g = find(r, n, &known);
    g->used = ++r->clock;
    if (!known) {
        forget(c, g);
        memcpy(g->list, r->list, (size_t)n * sizeof *r->list);
        g->n = n;
        return launch_list(c, g->list, n, false, err);
    }
    if (!g->graph && !r->refused && record(c, g, &why) != NIB_OK) {
        g->graph = NULL;
        r->refused = true;
        log_line(c->setup.log, "launches cannot be recorded as a graph and are queued one by one: %s",
                 why.message);
    }
    if (!g->graph)
        return launch_list(c, g->list, n, false, err);
    r->last = g;
    return launch_graph(c, g, err);
}

static bool is_same_key(const replay_key *a, const replay_key *b) {
    return a->n_row == b->n_row && a->n_head == b->n_head && a->n_best == b->n_best &&
           a->logits == b->logits && a->changes == b->changes && a->looks_up == b->looks_up &&
           a->page_table == b->page_table && a->origin == b->origin && a->choice == b->choice;
}

void replay_begin(cuda *c) {
    replay *r = &c->replay;
    const backend_pass *p = &c->now.pass;
    r->key = (replay_key){.n_best = p->n_best,
                          .logits = p->logits != NULL,
                          .changes = c->mem.change_rows != NULL,
                          .looks_up = device_store_has_tables(c->base.store),
                          .page_table = c->mem.page_table,
                          .origin = c->now.origin,
                          .choice = c->setup.residuals ? c->setup.residuals->choice : 0};
    for (int i = 0; i < p->n_segment; i++) {
        r->key.n_row += p->segments[i].n_row;
        r->key.n_head += p->segments[i].n_row - p->segments[i].head_row;
    }
    r->copied = false;
    r->n_flush = 0;
    r->last = NULL;
    r->ahead = !c->spans && r->repeats && r->before && p->plain && r->key.n_head == r->key.n_row &&
               is_same_key(&r->key, &r->before_key);
}

void replay_end(cuda *c, bool well) {
    replay *r = &c->replay;
    if (!r->ahead)
        r->before = r->repeats && c->now.pass.plain && !r->copied && r->n_flush == 1 ? r->last : NULL;
    if (!well)
        r->before = NULL;
    r->before_key = r->key;
    r->ahead = false;
}

nib_status replay_launch_ahead(cuda *c, nib_error *err) {
    replay *r = &c->replay;
    r->n = 0;
    r->before->used = ++r->clock;
    return launch_graph(c, r->before, err);
}
