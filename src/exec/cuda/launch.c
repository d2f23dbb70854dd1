/* launch.c - turns a block's steps for some rows into launches: products, sampling.
 *
 * Products and attention of a prompt use the kernels for many rows (c->now.wide). After the attention of the
 * last layer, only rows whose logits are needed remain, mostly one. From there on, and in the head, products
 * use the kernels of generated rows, which read the weights of one row several times as fast. */
#include "base/num.h"
#include "exec/cuda/launch.h"
#include "exec/cut.h"
#include "kernels/cuda/residual_first.h"

#include <string.h>

bool launch_is_wide(const launch_walk *w, const step *s) {
    const int last = layout_n_block(w->c->setup.layout) - 2;
    if (!w->c->now.wide || w->g->block > last)
        return false;
    return w->g->block < last || s->feeds_cache || s->kind == STEP_ATTEND;
}

static const weight *weight_of(const launch_walk *w, const step *s) {
    return &layout_block(w->c->setup.layout, w->g->block)->weights[w->ops[s->first].w];
}

static launch_kind product_kind(const launch_walk *w, const step *s) {
    if (w->g->mixed && weight_of(w, s)->format.layout == PACK_TILE)
        return LAUNCH_MIXED;
    return launch_is_wide(w, s) ? LAUNCH_WIDE : w->c->batched ? LAUNCH_BATCH : LAUNCH_LINEAR;
}

static const float *vector_of(const cuda *c, int b, int index) {
    view v;
    cuda_weight(c, b, index, &v);
    return v.data;
}

const float *launch_vector(const launch_walk *w, int index) {
    return vector_of(w->c, w->g->block, index);
}

/* Whether products with the step's first matrix read and leave codes of this many rows. */
static bool has_left_rows(const cuda *c, int b, const step *s, int64_t n_row) {
    const block *of = layout_block(c->setup.layout, b);
    const int index = of->program.ops[s->first].w;
    const weight *w = &of->weights[index];
    const view v = {.n = w->n, .k = w->k, .format = w->format};
    return !choices_by(c, b, index, n_row) && n_row <= c->k->left_rows(&v);
}

/* Whether the step may leave codes of the group's rows. With one row, every launch that can does. */
static bool leaves_rows(const launch_walk *w, const step *s) {
    const int64_t n_row = w->g->n_row;
    return n_row == 1 || ((s->kind == STEP_ATTEND || s->kind == STEP_REDUCE ||
                           (s->kind == STEP_LINEAR && has_left_rows(w->c, w->g->block, s, n_row))) &&
                          has_left_rows(w->c, s->codes_for_block, s->codes_for, n_row));
}

/* Only `linear` reads codes. The norm of a block that was never run is not loaded yet. */
cuda_codes launch_leaves(const launch_walk *w, const step *s) {
    const step *to = s->codes_for;
    if (w->c->batched || w->g->mixed || launch_is_wide(w, s))
        return (cuda_codes){0};
    if (s->kind == STEP_ATTEND && launch_attends_in_parts(w, &w->ops[s->first + s->n - 1]))
        return (cuda_codes){0};
    if (fetches_has(w->c, w->g->block, s) || steps_has_outliers(w->c, w->g->block, s))
        return (cuda_codes){0}; /* a later launch adds to the output */
    if (!to || !device_store_is_loaded(w->c->base.store, s->codes_for_block) || w->g->two ||
        !leaves_rows(w, s))
        return (cuda_codes){0};
    const block *of = layout_block(w->c->setup.layout, s->codes_for_block);
    return (cuda_codes){w->c->mem.codes[s->out],
                        to->norm ? vector_of(w->c, s->codes_for_block, to->norm->w) : NULL,
                        of->weights[of->program.ops[to->first].w].format.group};
}

static const void *taken(const launch_walk *w, const step *s) {
    const cuda *c = w->c;
    const bool left =
        c->now.coded == s && c->now.coded_row == w->g->row && c->now.n_coded == w->g->n_row && !w->g->two;
    return left ? c->mem.codes[s->in] : NULL;
}

/* Adds the launch that fetches the residuals of rows [r, r + n) of the group. *first: the products belong to
 * the second stream, since the fetch stays in the first one. first NULL: the products come before the
 * fetch. */
static nib_status fetch(const launch_walk *w, const step *s, int64_t r, int64_t n, bool *first,
                        nib_error *err) {
    const op *o = &w->ops[s->first];
    const reg in = s->norm ? s->norm->in : o->in;
    cuda_residual a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    fetches_args(w->c, w->g->block, s, &a);
    a.n_row = n;
    a.ldx = launch_ld(w, in);
    a.x = launch_at(w, in) + r * a.ldx;
    a.norm = s->norm ? launch_vector(w, s->norm->w) : NULL;
    a.eps = s->norm ? s->norm->u.norm.eps : 0;
    if (first)
        *first = cuda_residual_first(&a);
    w->c->fetches.aside = !first || !*first;
    const nib_status status = replay_add(w->c, LAUNCH_FETCH, o, &a, sizeof a, err);
    w->c->fetches.aside = false;
    return status;
}

static bool is_gated(const step *s) {
    return s->tail && s->tail->kind == OP_GATE;
}

/* Whether additions to the products come before the step's gate or activation. */
static bool adds_first(const launch_walk *w, const step *s) {
    return fetches_has(w->c, w->g->block, s) || steps_has_outliers(w->c, w->g->block, s);
}

/* Whether the products compute the step's gate. */
static bool gates_at_once(const launch_walk *w, const step *s) {
    return is_gated(s) && !adds_first(w, s);
}

/* Whether the step's products can compute the LayerNorm before them, and an activation without a gate. Those
 * with integer codes cannot. */
static bool has_more(const launch_walk *w, const step *s) {
    const block *b = layout_block(w->c->setup.layout, w->g->block);
    return (product_kind(w, s) != LAUNCH_LINEAR ||
            b->weights[w->ops[s->first].w].format.layout == PACK_ROWS) &&
           !adds_first(w, s);
}

/* Whether the products compute the step's activation, or a launch after them does. */
static bool acts_at_once(const launch_walk *w, const step *s) {
    return s->tail && s->tail->kind == OP_ACT && has_more(w, s);
}
static bool acts_after(const launch_walk *w, const step *s) {
    return s->tail && s->tail->kind == OP_ACT && !acts_at_once(w, s);
}

/* Whether the products compute the LayerNorm that is the step before. */
static bool norms_layer(const launch_walk *w, const step *s) {
    return s->layer_norm && !w->is_head && has_more(w, s);
}

/* The output register of product i of the step. */
static reg output_of(const launch_walk *w, const step *s, int i) {
    return s->tail && (s->tail->kind == OP_ADD || gates_at_once(w, s) || acts_at_once(w, s))
               ? s->tail->out
               : w->ops[s->first + i].out;
}

/* The output of a gate after additions, for rows from r of the group on. */
static float *gate_of(const launch_walk *w, const step *s, int64_t r, act_kind *act, int64_t *ldo) {
    *act = s->tail->u.act.kind;
    *ldo = launch_ld(w, s->tail->out);
    return launch_at(w, s->tail->out) + r * *ldo;
}

/* Adds the outliers of the step's weights for all rows, and computes the gate if nothing else is added. */
static nib_status add_outliers(const launch_walk *w, const step *s, nib_error *err) {
    const op *o = &w->ops[s->first];
    const reg in = s->norm ? s->norm->in : o->in;
    cuda_sparse a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.n_w = s->n_w;
    a.n_row = w->g->n_row;
    a.ldx = launch_ld(w, in);
    a.x = launch_at(w, in);
    a.norm = s->norm ? launch_vector(w, s->norm->w) : NULL;
    a.eps = s->norm ? s->norm->u.norm.eps : 0;
    a.gated = is_gated(s) && !fetches_has(w->c, w->g->block, s);
    for (int i = 0; i < s->n_w; i++) {
        const reg out = output_of(w, s, i);
        cuda_weight(w->c, w->g->block, o[i].w, &a.w[i]);
        a.ldy[i] = launch_ld(w, out);
        a.y[i] = launch_at(w, out);
    }
    if (a.gated)
        a.out = gate_of(w, s, 0, &a.act, &a.ldo);
    return replay_add(w->c, LAUNCH_SPARSE, o, &a, sizeof a, err);
}

/* Adds the fetched residuals and computes the gate. */
static nib_status add_fetched(const launch_walk *w, const step *s, int64_t r, int64_t n, nib_error *err) {
    const op *o = &w->ops[s->first];
    cuda_residual_add a;
    memset(&a, 0, sizeof a);
    a.part = w->c->mem.part;
    a.n_w = s->n_w;
    a.n_row = n;
    a.gated = is_gated(s);
    for (int i = 0; i < s->n_w; i++) {
        const reg out = output_of(w, s, i);
        a.n[i] = o[i].n;
        a.ldp += o[i].n;
        a.ldy[i] = launch_ld(w, out);
        a.y[i] = launch_at(w, out) + r * a.ldy[i];
    }
    if (a.gated)
        a.out = gate_of(w, s, r, &a.act, &a.ldo);
    return replay_add(w->c, LAUNCH_ADD, o, &a, sizeof a, err);
}

/* Computes the head's product for the group's rows from r on: estimates of all logits, then exact logits of
 * those that may be among the largest. */
static nib_status two_steps(const launch_walk *w, const op *o, int64_t r, const cuda_linear *a,
                            nib_error *err) {
    cuda *c = w->c;
    cuda_linear rough = *a;
    cuda_shortlist exact;
    rough.w[0] = c->estimates.sketch;
    rough.by = NULL;
    NIB_TRY(replay_add(c, LAUNCH_LINEAR, o, &rough, sizeof rough, err));
    memset(&exact, 0, sizeof exact); /* its padding too: launches are compared byte by byte */
    exact.head = *a;
    exact.step = c->estimates.step;
    exact.top = c->now.pass.n_best;
    exact.rows = c->mem.change_rows ? c->mem.change_rows + c->now.run.visit.row + w->g->run_row + r : NULL;
    exact.changes = c->mem.change_rows ? c->mem.change_list : NULL;
    exact.scratch = c->mem.short_scratch;
    return replay_add(c, LAUNCH_SHORTLIST, o, &exact, sizeof exact, err);
}

/* The sum over ranks of the step's product; NULL: there is none, or the product is not finished by one
 * launch. */
static const step *sum_behind(const launch_walk *w, const step *s) {
    const steps *all = &w->c->blocks[w->g->block];
    const step *next = s + 1;
    const op *o = &w->ops[s->first];
    const bool there = w->c->setup.sums && next < all->list + all->n && next->kind == STEP_REDUCE &&
                       s->n_w == 1 && !s->tail && !o->adds && w->ops[next->first].in == o->out;
    return there && product_kind(w, s) == LAUNCH_LINEAR && !fetches_has(w->c, w->g->block, s) &&
                   !steps_has_outliers(w->c, w->g->block, s)
               ? next
               : NULL;
}

/* Lets the product of all rows of the group add its output over ranks, and what comes after, if its kernel
 * can. */
static void add_over_ranks(const launch_walk *w, const step *s, cuda_linear *a) {
    const step *sum = sum_behind(w, s);
    cuda_linear with;
    if (!sum || a->n_row != w->g->n_row)
        return;
    memcpy(&with, a, sizeof with); /* its padding too */
    with.y[0] = launch_at(w, sum->out);
    with.ldy[0] = launch_ld(w, sum->out);
    with.adds = sum->tail != NULL;
    with.leaves = launch_leaves(w, sum);
    with.sum = reduce_next(w->c);
    if (!w->c->k->sums(&with))
        return;
    memcpy(a, &with, sizeof *a);
    reduce_count(w->c, a->n_row, a->w[0].n);
    w->c->now.summed = sum;
}

/* Adds the products of rows [r, r + n) of the group. */
static nib_status multiply_rows(const launch_walk *w, const step *s, int64_t r, int64_t n, nib_error *err) {
    const op *o = &w->ops[s->first], *norm = norms_layer(w, s) ? s->layer_norm : s->norm;
    const reg in = norm ? norm->in : o->in;
    const launch_kind kind = product_kind(w, s);
    const bool few = kind == LAUNCH_LINEAR;
    cuda_linear a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.n_w = s->n_w;
    a.n_row = n;
    a.by = few ? choices_by(w->c, w->g->block, o->w, n * (w->g->two ? 2 : 1)) : NULL;
    a.ldx = launch_ld(w, in);
    a.x = launch_at(w, in) + r * a.ldx;
    a.norm = norm ? launch_vector(w, norm->w) : NULL;
    a.eps = norm ? norm->u.norm.eps : 0;
    a.centred = norm && norm == s->layer_norm;
    a.shift = a.centred ? launch_vector(w, norm->b) : NULL;
    a.two = w->g->two;
    a.n8 = kind == LAUNCH_MIXED ? weight_of(w, s)->n8 : 0;
    a.gated = gates_at_once(w, s);
    a.acts = acts_at_once(w, s);
    a.act = a.gated || a.acts ? s->tail->u.act.kind : ACT_SILU;
    a.adds = o->adds || (s->tail && s->tail->kind == OP_ADD);
    a.exact = s->routes;
    a.scratch = few ? w->c->mem.linear_scratch : w->c->mem.wide_scratch;
    a.codes = taken(w, s);
    a.codes_whole = a.codes && w->c->now.coded_whole;
    a.leaves = launch_leaves(w, s);
    for (int i = 0; i < s->n_w; i++) {
        const reg out = output_of(w, s, i);
        cuda_weight(w->c, w->g->block, o[i].w, &a.w[i]);
        a.bias[i] = launch_vector(w, o[i].b);
        a.ldy[i] = launch_ld(w, out);
        a.y[i] = launch_at(w, out) + r * a.ldy[i];
    }
    add_over_ranks(w, s, &a);
    if (launch_shares_head(w, s) && !launch_narrow(w, &a))
        return NIB_OK;
    w->c->now.coded_whole = a.leaves.data && w->c->k->leaves_whole(&a);
    if (w->is_head && few && estimates_serve(w->c, &a))
        return two_steps(w, o, r, &a, err);
    return replay_add(w->c, kind, o, &a, sizeof a, err);
}

static nib_status multiply(const launch_walk *w, const step *s, nib_error *err) {
    const launch_kind kind = product_kind(w, s);
    const bool few = kind == LAUNCH_LINEAR || kind == LAUNCH_BATCH;
    const int64_t each = few ? CUDA_MAX_ROWS : w->g->n_row;
    for (int64_t r = 0; r < w->g->n_row; r += each)
        NIB_TRY(multiply_rows(w, s, r, NUM_MIN(w->g->n_row - r, each), err));
    if (launch_shares_head(w, s))
        return launch_gather(w, s, err);
    return steps_has_outliers(w->c, w->g->block, s) ? add_outliers(w, s, err) : NIB_OK;
}

/* Residuals of few rows are fetched while the products run, those of many rows after the products, a few rows
 * at a time. */
static nib_status products(const launch_walk *w, const step *s, nib_error *err) {
    const int64_t n_row = w->g->n_row;
    const bool many = n_row > CUDA_MAX_FETCH;
    bool first = false;
    if (!fetches_has(w->c, w->g->block, s))
        return multiply(w, s, err);
    if (!many)
        NIB_TRY(fetch(w, s, 0, n_row, &first, err));
    w->c->fetches.aside = first;
    const nib_status status = multiply(w, s, err);
    w->c->fetches.aside = false;
    NIB_TRY(status);
    for (int64_t r = 0; r < n_row; r += CUDA_MAX_FETCH) {
        const int64_t n = NUM_MIN(n_row - r, (int64_t)CUDA_MAX_FETCH);
        if (many)
            NIB_TRY(fetch(w, s, r, n, NULL, err));
        NIB_TRY(add_fetched(w, s, r, n, err));
    }
    return NIB_OK;
}

static nib_status products_and_tail(const launch_walk *w, const step *s, nib_error *err) {
    NIB_TRY(products(w, s, err));
    return acts_after(w, s) ? launch_each(w, s->tail, err) : NIB_OK;
}

/* Whether the norm is part of the next step. */
static bool is_part(const launch_walk *w, const step *s) {
    const steps *all = &w->c->blocks[w->g->block];
    return s + 1 < all->list + all->n && s[1].layer_norm == &w->ops[s->first] && norms_layer(w, s + 1);
}

static nib_status launch_step(const launch_walk *w, const step *s, nib_error *err) {
    const op *o = &w->ops[s->first];
    switch (s->kind) {
    case STEP_EMBED: return launch_embed(w, s, err);
    case STEP_NORM: return is_part(w, s) ? NIB_OK : launch_norm(w, o, s->n > 1 ? o + 1 : NULL, err);
    case STEP_LINEAR: return products_and_tail(w, s, err);
    case STEP_ATTEND: return launch_attend(w, s, err);
    case STEP_EACH:
    case STEP_ADD: return launch_elements(w, s, err);
    case STEP_COLUMNS: return launch_columns(w, o, err);
    case STEP_ROPE: return launch_rope(w, o, err);
    case STEP_REDUCE: return launch_reduce(w, s, err);
    case STEP_RECURRENT: return launch_recurrent(w, s, err);
    case STEP_ROUTE: return launch_route(w, s, err);
    case STEP_EXPERTS: return launch_experts(w, s, err);
    case STEP_GROUPS: return launch_groups(w, s, err);
    }
    return NIB_OK;
}

/* The step's part in the visit. Before attention on the processor the GPU rotates its inputs. */
static nib_status launch_part(const launch_walk *w, const step *s, nib_error *err) {
    const visit_part part = w->c->now.run.visit.part;
    const program *p = &layout_block(w->c->setup.layout, w->g->block)->program;
    if (part == VISIT_WHOLE || (s->first >= cut_first(p, part) && s->first + s->n <= cut_end(p, part)))
        return launch_step(w, s, err);
    if (part == VISIT_BEFORE && s->kind == STEP_ATTEND && s->rope) {
        if (s->q_norm)
            NIB_TRY(launch_norm(w, s->q_norm, s->k_norm, err));
        NIB_TRY(launch_rope(w, s->rope, err));
        return launch_rope(w, s->rope + 1, err);
    }
    return NIB_OK;
}

nib_status launch_group(cuda *c, const row_group *g, nib_error *err) {
    const steps *all = &c->blocks[g->block];
    const launch_walk w = {c, g, layout_block(c->setup.layout, g->block)->program.ops,
                           g->block == layout_n_block(c->setup.layout) - 1};
    for (int i = 0; i < all->n; i++) {
        const step *s = &all->list[i];
        if (c->now.run.visit.cache_only && !s->feeds_cache)
            continue;
        c->now.summed = NULL;
        NIB_TRY(launch_part(&w, s, err));
        if (c->now.summed)
            s = &all->list[++i];
        c->now.coded = launch_leaves(&w, s).data && !c->now.run.visit.cache_only ? s->codes_for : NULL;
        c->now.coded_row = g->row;
        c->now.n_coded = g->n_row;
    }
    return NIB_OK;
}

nib_status launch_hidden(cuda *c, const row_group *g, reg *out, nib_error *err) {
    const steps *all = &c->blocks[g->block];
    const program *p = &layout_block(c->setup.layout, g->block)->program;
    const op *product = probe_head_product(p);
    const launch_walk w = {c, g, p->ops, true};
    const step *s = all->list;
    for (; product < p->ops + s->first || product >= p->ops + s->first + s->n; s++)
        NIB_TRY(launch_step(&w, s, err));
    *out = product->in;
    c->now.coded = NULL;
    return s->norm ? launch_norm(&w, s->norm, NULL, err) : NIB_OK;
}

nib_status launch_best(cuda *c, int64_t n_row, nib_error *err) {
    static const op of = {.kind = OP_LINEAR};
    cuda_sample a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.logits = c->mem.reg[REG_LOGITS];
    a.n_row = n_row;
    a.ld = c->mem.ld[REG_LOGITS];
    a.n_vocab = model_reg_width(cuda_model(c), REG_LOGITS);
    a.rows = c->mem.change_rows ? c->mem.change_rows + c->now.run.visit.row : NULL;
    a.changes = c->mem.change_rows ? c->mem.change_list : NULL;
    a.top = c->now.pass.n_best;
    a.top_ids = c->mem.best;
    a.top_logits = (float *)(void *)(c->mem.best + n_row * c->now.pass.n_best);
    a.scratch = c->mem.best_scratch;
    return replay_add(c, LAUNCH_BEST, &of, &a, sizeof a, err);
}
