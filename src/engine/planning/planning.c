/* planning.c - collects facts for the planner: about the model from its headers, about the machine and the
 * model's weights from their profiles. */
#include "engine/planning/planning.h"

#include "base/mem.h"
#include "base/num.h"
#include "exec/shortlist.h"
#include "engine/rates.h"
#include "profile/importance.h"
#include "profile/quality.h"
#include "numbers/recipe.h"
#include "engine/learn.h"
#include "engine/packed_folder.h"
#include "engine/residual/residual.h"
#include "engine/imatrix.h"
#include "model/page_layout.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_PROMPT = 512, DEFAULT_GEN = 128 };

void planning_close(planning *f) {
    mem_free(f->blocks);
    mem_free(f->pages);
    learned_clear(&f->learned);
    planning_forget_share(f);
    memset(f, 0, sizeof *f);
}

/* ---- the model ---- */

static uint64_t matrix_file_bytes(const weight *w) {
    uint64_t row = 0;
    type_row_bytes(w->type, w->k, &row);
    return row * (uint64_t)w->n;
}

static int bits_of(const weight *w) {
    return w->format.layout == PACK_TILE ? w->format.bits : 0;
}

/* *bits: of the format of most of a block's matrix bytes. *file_share: file bytes for each packed byte. */
static void look_at_matrices(const block *b, int *bits, double *file_share) {
    uint64_t of[PLAN_BITS] = {0}, packed = 0, in_file = 0;
    for (int i = 0; i < b->n_weight; i++) {
        const weight *w = &b->weights[i];
        if (w->vector || w->shared_block >= 0)
            continue;
        of[bits_of(w)] += w->bytes;
        packed += w->bytes;
        in_file += matrix_file_bytes(w);
    }
    *bits = 0;
    for (int i = 0; i < PLAN_BITS; i++)
        if (of[i] > of[*bits])
            *bits = i;
    *file_share = packed ? (double)in_file / (double)packed : 1;
}

/* Share of a block's matrix bytes that are in formats with minima. */
static double asym_share(const block *b) {
    uint64_t all = 0, asym = 0;
    for (int i = 0; i < b->n_weight; i++) {
        const weight *w = &b->weights[i];
        if (w->vector || w->shared_block >= 0)
            continue;
        all += w->bytes;
        asym += w->format.layout == PACK_TILE && w->format.asym ? w->bytes : 0;
    }
    return all ? (double)asym / (double)all : 0;
}

static void count_ops(const layout *lay, planning *f) {
    for (int b = 0; b < layout_n_block(lay); b++) {
        const program *p = &layout_block(lay, b)->program;
        f->blocks[b].n_op = p->n_op;
        for (int i = 0; i < p->n_op; i++) {
            const op *o = &p->ops[i];
            int owner = b, w = o->w;
            if (o->kind == OP_ATTENTION)
                f->q.attention_macs += o->cost.macs;
            if (!op_is_product(o))
                continue;
            if (o->kind == OP_EXPERTS)
                f->blocks[b].expert_share = (double)o->u.experts.n_used / (double)o->u.experts.n_expert;
            page_layout_own(lay, &owner, &w);
            f->blocks[owner].macs += o->cost.macs;
            f->blocks[owner].cache_macs += o->fuse.feeds_cache ? o->cost.macs : 0;
        }
    }
}

/* Adds the bytes of every block's pages in this layout to choice c of the block. */
static nib_status add_choices(planning *f, const layout *lay, int c, nib_error *err) {
    pager_page *pages;
    int n_page;
    NIB_TRY(pager_pages(lay, &pages, &n_page, err));
    for (int b = 0; b < f->q.n_block; b++)
        f->blocks[b].choices[c].bytes = f->blocks[b].choices[c].chosen_bytes =
            f->blocks[b].choices[c].table_bytes = f->blocks[b].choices[c].second_bytes = 0;
    for (int i = 0; i < n_page; i++) {
        plan_choice *x = &f->blocks[pages[i].block].choices[c];
        *(pages[i].table ? &x->table_bytes : &x->bytes) += pages[i].bytes;
        x->second_bytes += pages[i].second ? pages[i].bytes : 0;
        x->chosen_bytes += pages[i].chosen ? pages[i].bytes : 0;
    }
    for (int b = 0; b < f->q.n_block; b++) {
        plan_choice *x = &f->blocks[b].choices[c];
        double share;
        look_at_matrices(layout_block(lay, b), &x->bits, &share);
        x->more_op = layout_block(lay, b)->program.n_op - f->blocks[b].n_op;
        x->asym_bytes = (uint64_t)(asym_share(layout_block(lay, b)) * (double)x->bytes);
        x->file_bytes = (uint64_t)(share * (double)x->bytes);
    }
    mem_free(pages);
    return NIB_OK;
}

static nib_status list_blocks(planning *f, const engine_core *e, nib_error *err) {
    const layout *lay = e->layout;
    const int n = layout_n_block(lay);
    f->blocks = mem_calloc((size_t)n, sizeof *f->blocks);
    if (!f->blocks)
        return nib_fail_nomem(err, (size_t)n * sizeof *f->blocks, "planning");
    f->q.blocks = f->blocks;
    f->q.n_block = n;
    f->q.ahead_bytes = model_ahead_bytes(layout_model(lay), !e->kind->memory);
    for (int b = 0; b < n; b++) {
        plan_block_facts *x = &f->blocks[b];
        snprintf(x->name, sizeof x->name, "%s", layout_block(lay, b)->name);
        x->is_layer = layout_block(lay, b)->layer >= 0;
        x->importance = x->kl_a8 = x->kl_a4 = x->kl_left_out = x->change = x->kl_fewer = -1;
        x->place = -1;
        x->n_choice = 1;
        snprintf(x->choices[0].format, sizeof x->choices[0].format, "file");
    }
    count_ops(lay, f);
    NIB_TRY(add_choices(f, lay, 0, err));
    return pager_pages(lay, &f->pages, &f->q.n_page, err);
}

/* ---- profiles of the weights ---- */

static void add_scores(planning *f, const importance *p) {
    for (int b = 0, layer = 0; b < f->q.n_block; b++)
        if (f->blocks[b].is_layer && layer < p->n_layer) {
            f->blocks[b].change = p->raw[IMPORTANCE_COSINE][layer];
            f->blocks[b].importance = p->score[layer++];
        }
}

/* Appends format j to the choices of every block. */
static nib_status add_format(planning *f, const layout *lay, const quality *q, int j, nib_error *err) {
    int c = 0;
    for (int b = 0; b < f->q.n_block; b++)
        c = NUM_MAX(c, f->blocks[b].n_choice);
    if (c == PLAN_MAX_CHOICE)
        return NIB_OK;
    NIB_TRY(add_choices(f, lay, c, err));
    for (int b = 0; b < f->q.n_block; b++) {
        plan_block_facts *x = &f->blocks[b];
        plan_choice *at = &x->choices[c];
        const plan_choice *own = &x->choices[0];
        snprintf(at->format, sizeof at->format, "%s", q->format[j]);
        at->kl = q->kl[b * q->n_format + j];
        if (at->bytes + at->table_bytes >= own->bytes + own->table_bytes)
            at->kl = -1;
        x->n_choice = c + 1;
    }
    return NIB_OK;
}

/* Adds format j, unless the model cannot have it (rows that are too long). */
static nib_status try_format(planning *f, const engine_core *e, const quality *q, int j, nib_error *err) {
    const layout_choice choice = {.format = q->format[j], .shortlist = layout_has_shortlist(e->layout)};
    layout *all;
    nib_error why;
    nib_status status = layout_make(e->m, &choice, &all, &why);
    if (status == NIB_E_NOMEM && err)
        *err = why;
    if (status != NIB_OK)
        return status == NIB_E_NOMEM ? status : NIB_OK;
    status = add_format(f, all, q, j, err);
    layout_free(all);
    return status;
}

static nib_status add_costs(planning *f, const engine_core *e, const quality *q, nib_error *err) {
    if (q->n_block != f->q.n_block)
        return NIB_OK;
    memcpy(f->prompts, q->prompts, sizeof f->prompts);
    f->q.prompts = f->prompts;
    for (int b = 0; b < f->q.n_block; b++) {
        f->blocks[b].kl_a8 = q->kl_activation[2 * b];
        f->blocks[b].kl_a4 = q->kl_activation[2 * b + 1];
        f->blocks[b].kl_left_out = q->kl_left_out[b];
        f->blocks[b].place = (int)q->place[b];
        if (q->place[b] >= 0 && q->place[b] + 1 < q->n_block)
            f->blocks[b].kl_fewer = q->kl_fewer[(int)q->place[b] + 1];
    }
    bool uses_imatrix = false;
    const int n_format =
        residuals_requested(e) ? 0 : q->n_format; /* residuals exist for the file's formats only */
    for (int j = 0; j < n_format; j++) {
        recipe r;
        uses_imatrix = uses_imatrix || (recipe_parse(q->format[j], 1, &r) && r.uses_imatrix);
        NIB_TRY(try_format(f, e, q, j, err));
    }
    uint64_t channels = 0; /* bytes of channel statistics, kept while pages are packed with them */
    if (uses_imatrix)
        NIB_TRY(imatrix_model_bytes(e->m, &channels, err));
    f->channels = channels;
    f->q.held[NIB_OWNER_TABLES] += channels;
    f->q.touched[NIB_OWNER_TABLES] += channels;
    return NIB_OK;
}

/* A profile that cannot be read is logged and ignored. */
static nib_status add_profiles(planning *f, const engine_core *e, nib_error *err) {
    importance scores = {0};
    quality costs = {0};
    nib_error why;
    nib_status status = NIB_OK;
    char *path = importance_find(f->content);
    if (path && importance_load(path, f->content, &scores, &why) != NIB_OK)
        log_line(&e->log, "importance: %s", why.message);
    else if (path)
        add_scores(f, &scores);
    mem_free(path);
    path = quality_find(f->content);
    if (path && quality_load(path, f->content, &costs, &why) != NIB_OK)
        log_line(&e->log, "quality costs: %s", why.message);
    else if (path)
        status = add_costs(f, e, &costs, err);
    mem_free(path);
    importance_clear(&scores);
    quality_clear(&costs);
    return status;
}

/* ---- the question ---- */

static void resolve_workload(planning *f, const engine_core *e) {
    const int64_t n_prompt = f->of.n_prompt, n_gen = f->of.n_gen;
    f->q.n_ctx = e->resolved.n_ctx;
    f->q.n_batch = e->resolved.n_batch;
    f->q.n_sequence = e->resolved.n_sequence;
    f->q.n_best = e->resolved.n_best;
    f->q.best_waits = shortlist_of(e->layout, e->resolved.n_best, &f->q.sketch_bytes, &f->q.sketch_bits);
    /* with a tied head, the token's row was read when its logit was computed */
    f->q.row_waits = e->resolved.n_best && model_hparams(e->m)->tied_head ? 0 : 1;
    f->q.n_gen = NUM_MIN(n_gen > 0 ? n_gen : DEFAULT_GEN, f->q.n_ctx);
    /* the last generated token is not computed */
    f->q.n_prompt = NUM_MIN(n_prompt > 0 ? n_prompt : DEFAULT_PROMPT, f->q.n_ctx - f->q.n_gen + 1);
    f->q.n_prompt = NUM_MAX(f->q.n_prompt, 1);
}

static uint64_t cap_of(void *user, uint64_t ram) {
    return core_cap_of(user, ram);
}

nib_status planning_gather(planning *f, const engine_core *e, const planning_of *of, nib_error *err) {
    const settings *o = &e->resolved;
    memset(f, 0, sizeof *f);
    f->of = *of;
    resolve_workload(f, e);
    snprintf(f->model, sizeof f->model, "%s", model_name(e->m) ? model_name(e->m) : "");
    NIB_TRY(container_content_key(e->container, f->content, err));
    NIB_TRY(list_blocks(f, e, err));
    f->q.need = pager_needs(e->layout, e->resolved.n_thread);
    NIB_TRY(planning_caches(f, e, err));
    engine_rates(e, f->q.need.max_page, f->q.need.part, &f->q.rates);
    NIB_TRY(planning_held(f, e, err));
    NIB_TRY(planning_share(f, e, e->layout, err));
    learn_disks(e, &f->q);
    f->q.model = f->model;
    f->q.content = f->content;
    f->q.pages = f->pages;
    memcpy(f->q.cap, o->cap, sizeof f->q.cap);
    f->q.cap_of = cap_of;
    f->q.cap_user = (void *)(uintptr_t)e;
    f->q.mode = 'a';
    f->q.stream = o->stream;
    f->q.residuals = o->residuals_in_ram;
    f->q.activation = o->activation;
    return NIB_OK;
}

/* ---- a plan ---- */

static nib_status resolve_targets(planning *f, const engine_core *e, const nib_plan_options *how,
                                  nib_error *err) {
    const char *name = how->quality ? how->quality : "lossless";
    if (!plan_quality(name, &f->q.max_loss, &f->q.may_round))
        return nib_fail(err, NIB_E_USAGE,
                        "quality: expected lossless, high, balanced or small, found \"%.40s\"", name);
    if (!(how->speed >= 0) || how->speed > 1e9)
        return nib_fail(err, NIB_E_USAGE, "speed: expected tokens a second, found %s",
                        num_text(how->speed, 6));
    if (how->mode && (how->mode < 'a' || how->mode > 'c'))
        return nib_fail(err, NIB_E_USAGE, "mode: expected a, b or c, found '%c'", how->mode);
    f->q.speed = how->speed;
    if (how->speed > 0 && !how->quality) { /* as much loss as the speed needs */
        f->q.max_loss = PLAN_SPEED_LOSS;
        f->q.may_round = true;
    }
    f->q.mode = how->mode ? how->mode : 'a';
    f->q.may_leave_out = !how->mode && f->q.may_round && how->weights == NIB_WEIGHTS_FASTEST;
    f->q.may_round = f->q.may_round && how->weights != NIB_WEIGHTS_FILE;
    f->q.max_loss = NUM_MAX(f->q.max_loss - how->kv_loss, 0);
    /* without a request: the engine's default, whatever its loss */
    if (!how->quality && f->q.speed <= 0 && f->q.mode == 'a') {
        f->q.max_loss = PLAN_ANY_LOSS;
        f->q.usual_activation = !f->q.activation;
        f->q.activation = f->q.activation ? f->q.activation : 8;
    }
    f->q.packed = engine_packed_expected(e);
    return NIB_OK;
}

/* If no costs are measured and no bound was requested, MCAP's fallback applies: layers are left out until the
 * others fit, whatever that costs, in the order of plan_layer_order. */
static void bound_loss(planning *f, const nib_plan_options *how) {
    bool measured = false;
    for (int b = 0; b < f->q.n_block; b++)
        measured = measured || f->blocks[b].kl_left_out >= 0 || f->blocks[b].place >= 0;
    if (f->q.mode != 'a' && !how->quality && !measured)
        f->q.max_loss = PLAN_ANY_LOSS;
}

static bool keeps_formats(const plan *p) {
    for (int b = 0; b < p->n_block; b++)
        if (p->blocks[b].left_out || strcmp(p->blocks[b].slices[0].format, "file") != 0)
            return false;
    return true;
}

static const plan_choice *chosen(const plan_block_facts *x, const char *recipe_name) {
    for (int c = 0; c < x->n_choice; c++)
        if (!strcmp(x->choices[c].format, recipe_name))
            return &x->choices[c];
    return &x->choices[0];
}

/* The layout with the formats of a plan that the planner made. It still contains the left-out layers, which
 * have no resident pages. */
static nib_status layout_of(const engine_core *e, const plan *p, layout **out, nib_error *err) {
    layout_part *parts = mem_calloc((size_t)p->n_block, sizeof *parts);
    const layout_choice choice = {.parts = parts, .shortlist = layout_has_shortlist(e->layout)};
    if (!parts)
        return nib_fail_nomem(err, (size_t)p->n_block * sizeof *parts, "planning");
    for (int b = 0; b < p->n_block; b++)
        plan_block_recipe(&p->blocks[b], parts[b].format); /* cannot fail for the planner's own plan */
    const nib_status status = layout_make(e->m, &choice, out, err);
    mem_free(parts);
    return status;
}

/* Reduces every block's choices to the plan's, so that the pages are known. */
static nib_status fix_formats(planning *f, const layout *lay, const plan *p, nib_error *err) {
    for (int b = 0; b < p->n_block; b++) {
        plan_block_facts *x = &f->blocks[b];
        const plan_block *of = &p->blocks[b];
        char name[PACK_NAME] = "file";
        plan_block_recipe(of, name);
        plan_choice only = of->left_out ? (plan_choice){.kl = x->kl_left_out} : *chosen(x, name);
        x->choices[0] = only;
        x->n_choice = 1;
        x->activation = of->activation;
        x->gone = of->left_out;
    }
    mem_free(f->pages);
    f->pages = NULL;
    NIB_TRY(add_choices(f, lay, 0, err));
    NIB_TRY(pager_pages(lay, &f->pages, &f->q.n_page, err));
    f->q.pages = f->pages;
    f->q.need = pager_needs(lay, f->q.rates.n_thread);
    return NIB_OK;
}

/* Page sizes depend a little on the chosen formats, so the residency is decided once more, with the final
 * pages. */
static nib_status resolve_pages(planning *f, const engine_core *e, plan *p, nib_error *err) {
    plan exact;
    layout *lay;
    NIB_TRY(layout_of(e, p, &lay, err));
    nib_status status = fix_formats(f, lay, p, err);
    if (status == NIB_OK)
        status = planning_share(f, e, lay, err);
    const uint64_t more = layout_heap_bytes(lay) - layout_heap_bytes(e->layout); /* may be negative (wraps) */
    f->q.held[NIB_OWNER_TABLES] += more;
    f->q.touched[NIB_OWNER_TABLES] += more;
    layout_free(lay);
    NIB_TRY(status);
    f->q.mode = 'a';
    f->q.may_leave_out = false;
    f->q.speed = 0;
    f->q.max_loss = PLAN_ANY_LOSS;
    NIB_TRY(plan_make(&f->q, &exact, err));
    for (int b = 0; b < p->n_block; b++) {
        memcpy(p->blocks[b].slices, exact.blocks[b].slices, sizeof p->blocks[b].slices);
        p->blocks[b].n_slice = p->blocks[b].left_out ? 0 : exact.blocks[b].n_slice;
        p->blocks[b].on_gpu = exact.blocks[b].on_gpu;
    }
    p->predicted = exact.predicted;
    p->device = exact.device;
    p->packed = exact.packed;
    memcpy(p->binds, exact.binds, sizeof p->binds);
    plan_clear(&exact);
    return NIB_OK;
}

/* Chooses the formats with the fewest bytes, as blocks[].only. *loss: theirs. */
static nib_status choose_fewest(planning *f, double max_loss, double *loss, nib_error *err) {
    const size_t n = (size_t)f->q.n_block;
    int *choice = mem_calloc(n, sizeof *choice);
    const nib_status status = choice ? plan_fewest_bytes(&f->q, max_loss, choice, loss, err)
                                     : nib_fail_nomem(err, n * sizeof *choice, "planning");
    for (size_t b = 0; status == NIB_OK && b < n; b++)
        f->blocks[b].only = choice[b];
    f->q.only_fewest = true;
    mem_free(choice);
    return status;
}

static nib_status layout_of_only(const planning *f, const engine_core *e, layout **out, nib_error *err) {
    const size_t n = (size_t)f->q.n_block;
    layout_part *parts = mem_calloc(n, sizeof *parts);
    const layout_choice choice = {.parts = parts, .shortlist = layout_has_shortlist(e->layout)};
    if (!parts)
        return nib_fail_nomem(err, n * sizeof *parts, "planning");
    for (size_t b = 0; b < n; b++)
        snprintf(parts[b].format, sizeof parts[b].format, "%s",
                 f->blocks[b].choices[f->blocks[b].only].format);
    const nib_status status = layout_make(e->m, &choice, out, err);
    mem_free(parts);
    return status;
}

nib_status planning_fewest(const engine_core *e, double max_loss, layout **out, double *loss,
                           uint64_t *channels, nib_error *err) {
    planning f;
    bool any = false;
    *out = NULL;
    nib_status status = planning_gather(&f, e, &(planning_of){.n_prompt = 0}, err);
    if (status == NIB_OK)
        status = add_profiles(&f, e, err);
    if (status == NIB_OK)
        status = choose_fewest(&f, max_loss, loss, err);
    for (int b = 0; status == NIB_OK && b < f.q.n_block; b++)
        any = any || f.blocks[b].only;
    if (status == NIB_OK && any)
        status = layout_of_only(&f, e, out, err);
    *channels = f.channels;
    planning_close(&f);
    return status;
}

nib_status planning_make(const engine_core *e, const nib_plan_options *how, plan *out, nib_error *err) {
    planning f;
    plan p = {0};
    const planning_of of = {.n_prompt = how->n_prompt, .n_gen = how->n_gen};
    nib_status status = planning_gather(&f, e, &of, err);
    if (status == NIB_OK)
        status = resolve_targets(&f, e, how, err);
    if (status == NIB_OK)
        status = add_profiles(&f, e, err);
    if (status == NIB_OK) {
        bound_loss(&f, how);
        if (how->weights == NIB_WEIGHTS_FEWEST && f.q.may_round)
            status = choose_fewest(&f, f.q.max_loss, &(double){0}, err);
    }
    if (status == NIB_OK) {
        planning_fewer_rows(&f, e);
        learn_load(e, &f.q, &f.learned);
        status = plan_make(&f.q, &p, err);
    }
    if (status == NIB_OK && !keeps_formats(&p))
        status = resolve_pages(&f, e, &p, err);
    planning_close(&f);
    if (status == NIB_OK)
        *out = p;
    else
        plan_clear(&p);
    return status;
}
