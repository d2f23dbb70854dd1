/* launch_experts.c - mixtures of experts: the router's choice, and products with the chosen experts; and
 * products of parts of rows with a matrix each. */
#include "exec/cuda/launch.h"

#include <string.h>

/* Whether the layer's rows are those of a prompt, which `route` lists twice: for products of packed matrices,
 * and for those of floats. */
static void *wide_list(const launch_walk *w, const step *s) {
    return launch_is_wide(w, s) ? w->c->mem.expert_wide : NULL;
}

/* Whether products of the layer's experts read only the list for many rows: all are packed. */
static bool are_packed(const launch_walk *w) {
    const block *of = layout_block(w->c->setup.layout, w->g->block);
    for (int i = 0; i < of->program.n_op; i++)
        if (w->ops[i].kind == OP_EXPERTS && of->weights[w->ops[i].w].format.layout != PACK_TILE)
            return false;
    return true;
}

/* The router's product: of generated rows with the norm before it, and codes of its input for experts. */
static nib_status take_router(const launch_walk *w, const step *s, cuda_route *a, nib_error *err) {
    cuda *c = w->c;
    const op *o = &w->ops[s->first + s->n - 2];
    a->many = launch_is_wide(w, s);
    cuda_weight(c, w->g->block, o->w, &a->w);
    a->w_bias = launch_vector(w, o->b);
    const reg from = s->norm && !a->many ? s->norm->in : o->in;
    a->x = launch_at(w, from);
    a->ld_row = launch_ld(w, from);
    a->ended = c->mem.routes_ended;
    if (s->norm && a->many)
        NIB_TRY(launch_norm(w, s->norm, NULL, err));
    else if (s->norm) {
        a->norm = launch_vector(w, s->norm->w);
        a->eps = s->norm->u.norm.eps;
        a->normed = launch_at(w, o->in);
        a->ld_normed = launch_ld(w, o->in);
    }
    const bool leaves = s->rows_for && !a->many && !w->g->two;
    a->codes = leaves ? c->mem.expert_rows : NULL;
    c->now.rows_coded = leaves ? s->rows_for : NULL;
    c->now.rows_coded_at = a->codes;
    return NIB_OK;
}

nib_status launch_route(const launch_walk *w, const step *s, nib_error *err) {
    const op *o = &w->ops[s->first + s->n - 1];
    cuda_route a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    if (s->n > 1)
        NIB_TRY(take_router(w, s, &a, err));
    a.logits = launch_at(w, o->in);
    a.bias = launch_vector(w, o->b);
    a.times = launch_vector(w, o->w2);
    a.out = launch_at(w, o->out);
    a.n_row = w->g->n_row;
    a.ldx = launch_ld(w, o->in);
    a.ldo = launch_ld(w, o->out);
    a.n_expert = o->k;
    a.n_used = o->u.route.n_used;
    a.score = o->u.route.score;
    a.n_group = o->u.route.n_group;
    a.group_used = o->u.route.group_used;
    a.group_best = o->u.route.group_best;
    a.normalise = o->u.route.normalise;
    a.two = w->g->two;
    a.scale = o->u.route.scale;
    a.wide = wide_list(w, s);
    a.few = a.wide && are_packed(w) ? NULL : w->c->mem.expert_few;
    return replay_add(w->c, LAUNCH_ROUTE, o, &a, sizeof a, err);
}

/* Fills the arguments of products with experts. here: with those that are on the GPU, of which some are not.
 */
static void take_experts(const launch_walk *w, const step *s, bool here, cuda_experts *a) {
    cuda *c = w->c;
    const op *o = &w->ops[s->first];
    const bool gated = s->tail && s->tail->kind == OP_GATE;
    memset(a, 0, sizeof *a); /* its padding too: launches are compared byte by byte */
    a->n_w = s->n_w;
    a->n_expert = o->u.experts.n_expert;
    a->n_used = o->u.experts.n_used;
    a->n = o->u.experts.n;
    a->n_row = w->g->n_row;
    a->x = launch_at(w, o->in);
    a->ldx = launch_ld(w, o->in);
    a->chosen = launch_at(w, o->in2);
    a->ldc = launch_ld(w, o->in2);
    a->few = c->mem.expert_few;
    a->wide = wide_list(w, s);
    a->each = o->u.experts.each;
    a->sum = o->u.experts.sum;
    a->weighted = o->u.experts.weighted;
    a->two = w->g->two;
    a->gated = gated;
    a->act = gated ? s->tail->u.act.kind : ACT_SILU;
    a->adds = o->adds || (s->tail && !gated);
    for (int i = 0; i < s->n_w; i++) {
        const reg out = s->tail ? s->tail->out : o[i].out;
        cuda_weight(c, w->g->block, o[i].w, &a->w[i]);
        if (here)
            a->w[i].data = device_store_experts(c->base.store, w->g->block, o[i].w);
        a->bias[i] = launch_vector(w, o[i].b);
        a->y[i] = launch_at(w, out);
        a->ldy[i] = launch_ld(w, out);
    }
    a->scratch = c->mem.expert_scratch;
    a->codes = c->now.rows_coded == s ? c->now.rows_coded_at : NULL;
    a->here = here ? device_store_places(c->base.store, w->g->block) : NULL;
    a->apart = here && a->sum;
    if (!a->apart)
        a->row_leaves = launch_leaves(w, s);
    c->now.coded_whole = false;
    const op *then = s->rows_for ? &w->ops[s->rows_for->first] : NULL;
    if (then && then->u.experts.sum && !here)
        cuda_weight(c, w->g->block, then->w, &a->next);
    const bool leaves = then && !a->wide && !a->two &&
                        !(then->u.experts.sum && !here && cuda_experts_quantize(a->n_row, a->n_used));
    a->leaves = leaves ? c->mem.expert_codes : NULL;
    c->now.rows_coded = leaves ? s->rows_for : NULL;
    c->now.rows_coded_at = a->leaves;
}

nib_status launch_experts(const launch_walk *w, const step *s, nib_error *err) {
    cuda_experts a;
    if (experts_host_has(w->c, &w->c->now.run.visit))
        return experts_host_launch(w, s, err);
    take_experts(w, s, false, &a);
    return replay_add(w->c, LAUNCH_EXPERTS, &w->ops[s->first], &a, sizeof a, err);
}

nib_status launch_experts_here(const launch_walk *w, const step *s, const float **part, nib_error *err) {
    cuda_experts a;
    take_experts(w, s, true, &a);
    *part = a.apart ? cuda_experts_part(&a) : NULL;
    return replay_add(w->c, LAUNCH_EXPERTS, &w->ops[s->first], &a, sizeof a, err);
}

nib_status launch_groups(const launch_walk *w, const step *s, nib_error *err) {
    const op *o = &w->ops[s->first + (s->gather ? 1 : 0)];
    const reg in = s->gather ? s->gather->in : o->in, out = s->scatter ? s->scatter->out : o->out;
    cuda_groups a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    cuda_weight(w->c, w->g->block, o->w, &a.w);
    a.spread = o->kind == OP_SPREAD;
    a.many = launch_is_wide(w, s);
    a.two = w->g->two;
    a.adds = o->adds;
    a.n_group = o->u.experts.n_expert;
    a.n = o->u.experts.n;
    a.k = o->u.experts.k;
    a.n_row = w->g->n_row;
    a.x = launch_at(w, in) + (s->gather ? s->gather->u.copy.at_in : 0);
    a.ldx = launch_ld(w, in);
    a.step_x = s->gather ? s->gather->u.copy.step_in : a.k;
    a.y = launch_at(w, out) + (s->scatter ? s->scatter->u.copy.at : 0);
    a.ldy = launch_ld(w, out);
    a.step_y = s->scatter ? s->scatter->u.copy.step : a.n;
    return replay_add(w->c, LAUNCH_GROUPS, o, &a, sizeof a, err);
}
