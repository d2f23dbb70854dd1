/* layout.c - see layout.h. A layout under construction begins with the blocks of another layout or of the
 * model. Parts are copied before they change (layout_own), so shared data is never written. */
#include "model/layout.h"

#include "base/mem.h"
#include "base/num.h"
#include "model/layout_parts.h"
#include "model/stage.h"
#include "numbers/recipe.h"

#include <string.h>

/* With this bound for each matrix, a block of BLOCK_MAX_WEIGHT matrices passes block_sum. */
#define MAX_BYTES (UINT64_MAX / 8 / BLOCK_MAX_WEIGHT)

static bool own_matrix(const weight *w) {
    return !w->vector && !w->exact && w->shared_block < 0 && !weight_is_second(w);
}

/* ---- beginning and ending ---- */

static bool is_file(const char *format) {
    return !format || !strcmp(format, "file");
}

static const char *format_of(const layout_choice *c, int b) {
    return c->parts ? c->parts[b].format : c->format;
}

static bool stays(const model *m, const layout_choice *c, int b) {
    return is_file(format_of(c, b)) || (c->parts && c->parts[b].left_out) || !model_in_stage(m, b);
}

/* Lengths of a block's copied arrays. */
static void copied_lengths(const layout *l, const block *b, size_t *n_weight, size_t *n_op) {
    int more_weight = 0, more_op = 0;
    if (l->stacks)
        stack_counts(b, &more_weight, &more_op);
    *n_weight = (size_t)(b->n_weight + more_weight);
    *n_op = (size_t)(b->program.n_op + more_op);
}

static bool is_copied(const model *m, const layout_choice *c, int b) {
    bool copied = !stays(m, c, b) || (c->shortlist && b == m->n_block - 1);
    for (int i = 0; i < m->blocks[b].n_weight; i++) {
        const int owner = m->blocks[b].weights[i].shared_block;
        copied = copied || (owner >= 0 && !stays(m, c, owner));
    }
    return copied;
}

/* The memory of a layout, in one piece: planning makes and frees many layouts. */
static size_t copied_bytes(const layout *l, const layout_choice *c) {
    enum { ALIGN = 64 };
    const model *m = l->m;
    size_t n = (size_t)m->n_block * (sizeof *l->blocks + sizeof *l->own) + ALIGN;
    n += c->places ? (size_t)m->n_block * sizeof *c->places + ALIGN : 0;
    for (int b = 0; b < m->n_block; b++) {
        size_t n_weight, n_op;
        if (!is_copied(m, c, b))
            continue;
        copied_lengths(l, &m->blocks[b], &n_weight, &n_op);
        n += n_weight * sizeof(weight) + n_op * sizeof(op) + ALIGN;
    }
    return n;
}

/* The caller frees *out in any case. */
static nib_status begin(const model *m, const block *blocks, const layout_choice *c, size_t n_byte,
                        layout **out, nib_error *err) {
    layout *l = *out = mem_calloc(1, sizeof *l);
    if (!l)
        return nib_fail_nomem(err, sizeof *l, "a layout");
    arena_init(&l->mem);
    l->m = m;
    for (int b = 0; c && b < m->n_block; b++)
        l->stacks = l->stacks || (!stays(m, c, b) && strchr(format_of(c, b), '+'));
    n_byte = c ? copied_bytes(l, c) : n_byte;
    if (!arena_reserve(&l->mem, n_byte))
        return nib_fail_nomem(err, n_byte, "a layout");
    l->blocks = arena_array(&l->mem, (size_t)m->n_block, sizeof *l->blocks);
    l->own = arena_array(&l->mem, (size_t)m->n_block, sizeof *l->own);
    if (!l->blocks || !l->own)
        return nib_fail_nomem(err, n_byte, "a layout");
    memcpy(l->blocks, blocks, (size_t)m->n_block * sizeof *blocks);
    return NIB_OK;
}

static nib_status copy_places(layout *l, const layout_place *from, nib_error *err) {
    const size_t n = (size_t)l->m->n_block;
    if (!from)
        return NIB_OK;
    l->places = arena_array(&l->mem, n, sizeof *l->places);
    if (!l->places)
        return nib_fail_nomem(err, n * sizeof *l->places, "a layout");
    memcpy(l->places, from, n * sizeof *l->places);
    return NIB_OK;
}

/* Blocks that another layout owns are copied, because they are freed with it; the model's blocks stay shared.
 */
static nib_status begin_from(const layout *from, layout **out, nib_error *err) {
    NIB_TRY(begin(from->m, from->blocks, NULL, from->mem.bytes, out, err));
    NIB_TRY(copy_places(*out, from->places, err));
    for (int b = 0; b < from->m->n_block; b++)
        if (from->own[b].weights)
            NIB_TRY(layout_own(*out, b, err));
    return NIB_OK;
}

nib_status layout_own(layout *l, int which, nib_error *err) {
    block *b = &l->blocks[which];
    layout_arrays *own = &l->own[which];
    size_t n_weight, n_op;
    if (own->weights)
        return NIB_OK;
    copied_lengths(l, b, &n_weight, &n_op);
    own->ops = arena_array(&l->mem, n_op, sizeof *own->ops);
    own->weights = own->ops ? arena_array(&l->mem, n_weight, sizeof *own->weights) : NULL;
    if (!own->weights)
        return nib_fail_nomem(err, n_weight * sizeof *own->weights + n_op * sizeof *own->ops,
                              "a block's description");
    memcpy(own->weights, b->weights, (size_t)b->n_weight * sizeof *own->weights);
    memcpy(own->ops, b->program.ops, (size_t)b->program.n_op * sizeof *own->ops);
    b->weights = own->weights;
    b->program.ops = own->ops;
    return NIB_OK;
}

/* Updates what depends on the weights, in every block, because the ops of a tied head read its owner's
 * weights. */
static nib_status finish(layout *l, nib_error *err) {
    for (int i = 0; i < l->m->n_block; i++) {
        block *b = &l->blocks[i];
        if (!l->own[i].weights)
            continue;
        cost_program(l->blocks, b->weights, l->own[i].ops, b->program.n_op);
        NIB_TRY(block_sum(b, err));
    }
    return NIB_OK;
}

bool layout_place_is_cut(const layout_place *p) {
    uint64_t here = 0, all = 0;
    for (int second = 0; second < 2; second++)
        for (int i = 0; i < PLACES; i++) {
            here |= i == PLACE_GPU ? p->bytes[second][i] : 0;
            all |= i == PLACE_GPU ? 0 : p->bytes[second][i];
        }
    return here && all;
}

/* The home of the page that ends with byte `end` of the block's first or second slices. */
static int home_at(const layout_place *of, bool second, uint64_t end) {
    static const int fastest_first[] = {PLACE_GPU, PLACE_RAM, PLACE_DISK};
    int last = PLACE_RAM;
    for (size_t i = 0; i < NUM_COUNT(fastest_first); i++) {
        const uint64_t bytes = of->bytes[second][fastest_first[i]];
        if (bytes == 0)
            continue;
        last = fastest_first[i];
        if (end <= bytes)
            return last;
        end -= bytes;
    }
    return last;
}

/* Pages of one block are not adjacent: tables and second slices follow all others. */
static nib_status assign_homes(layout *l, nib_error *err) {
    const page_layout *pages = &l->pages;
    if (!l->places)
        return NIB_OK;
    l->home_of = mem_alloc((size_t)pages->n_page + 1);
    if (!l->home_of)
        return nib_fail_nomem(err, (size_t)pages->n_page, "the pages' homes");
    for (int b = 0; b < l->m->n_block; b++) {
        uint64_t end[2] = {0, 0};
        for (int i = 0; i < pages->n_page; i++) {
            const weight_page *page = &pages->pages[i];
            if (page->block == b)
                l->home_of[i] =
                    (uint8_t)home_at(&l->places[b], page->second, end[page->second] += page->bytes);
        }
    }
    return NIB_OK;
}

/* Completes a layout. pages: those of a layout with weights of the same sizes; NULL: cut new pages. */
static nib_status hand_out(layout *l, nib_status status, const page_layout *pages, layout **out,
                           nib_error *err) {
    if (status == NIB_OK)
        status = finish(l, err);
    if (status == NIB_OK)
        status = pages ? page_layout_copy(&l->pages, pages, l, err) : page_layout_open(&l->pages, l, err);
    if (status == NIB_OK)
        status = assign_homes(l, err);
    if (status == NIB_OK)
        *out = l;
    else
        layout_free(l);
    return status;
}

void layout_free(layout *l) {
    if (!l)
        return;
    page_layout_close(&l->pages);
    mem_free(l->home_of);
    arena_deinit(&l->mem);
    mem_free(l);
}

/* ---- formats ---- */

/* Writes weight w in its new format to *out. */
static nib_status choose(const block *b, const weight *w, const char *format, weight *out, nib_error *err) {
    recipe r;
    uint64_t second;
    *out = *w;
    if (!recipe_parse(format, w->k, &r) || r.n_slice == 0)
        return nib_fail(err, NIB_E_USAGE,
                        "%s: expected \"file\" or a uniform format (as \"u4g64\") for %s [%lld, %lld], found "
                        "\"%.32s\"",
                        b->name, w->name, (long long)w->n, (long long)w->k, format);
    out->format = r.slice[0];
    out->uses_imatrix = r.uses_imatrix;
    if (!pack_bytes(&out->format, w->n, w->k, &out->bytes) || out->bytes > MAX_BYTES ||
        (r.n_slice > 1 && (!pack_bytes(&r.slice[1], w->n, w->k, &second) || second > MAX_BYTES)))
        return nib_fail(err, NIB_E_USAGE, "%s: %s is too large in the format %.32s", b->name, w->name,
                        format);
    return NIB_OK;
}

/* Copies the formats of the owner's matrices to the blocks that share them. */
static nib_status update_sharers(layout *l, int owner, nib_error *err) {
    for (int i = 0; i < l->m->n_block; i++)
        for (int j = 0; j < l->blocks[i].n_weight; j++) {
            const weight *w = &l->blocks[i].weights[j];
            if (w->shared_block != owner || weight_is_second(w))
                continue;
            const pack_format *f = &l->blocks[owner].weights[w->shared_index].format;
            if (!memcmp(&w->format, f, sizeof *f))
                continue;
            NIB_TRY(layout_own(l, i, err));
            l->own[i].weights[j].format = *f;
        }
    return NIB_OK;
}

static nib_status reformat(layout *l, int which, const char *format, nib_error *err) {
    block *b = &l->blocks[which];
    recipe r;
    for (int i = 0; i < b->n_weight; i++)
        if (own_matrix(&b->weights[i])) {
            NIB_TRY(layout_own(l, which, err));
            NIB_TRY(choose(b, &b->weights[i], format, &l->own[which].weights[i], err));
        }
    NIB_TRY(update_sharers(l, which, err));
    recipe_parse(format, 1, &r);
    return r.n_slice > 1 ? stack_add(l, which, &r.slice[1], err) : NIB_OK;
}

static nib_status leave_out(layout *l, int which, nib_error *err) {
    block *b = &l->blocks[which];
    if (b->layer < 0)
        return nib_fail(err, NIB_E_USAGE, "%s: expected a layer to leave out, found another block", b->name);
    b->n_weight = 0;
    b->program.n_op = 0;
    b->bytes = 0;
    return NIB_OK;
}

/* Whether a block of the stage has matrices of this block (a tied head). */
static bool is_shared(const model *m, int which) {
    for (int b = 0; b < m->n_block; b++)
        for (int i = 0; i < m->blocks[b].n_weight && model_in_stage(m, b); i++)
            if (m->blocks[b].weights[i].shared_block == which)
                return true;
    return false;
}

/* Other ranks compute the blocks outside the model's stage. */
static void leave_to_others(layout *l, int which) {
    block *b = &l->blocks[which];
    b->program.n_op = 0;
    if (is_shared(l->m, which))
        return;
    b->n_weight = 0;
    b->bytes = 0;
}

static nib_status apply(layout *l, const layout_choice *c, nib_error *err) {
    for (int b = 0; b < l->m->n_block; b++)
        if (!model_in_stage(l->m, b))
            leave_to_others(l, b);
        else if (c->parts && c->parts[b].left_out)
            NIB_TRY(leave_out(l, b, err));
        else if (!stays(l->m, c, b))
            NIB_TRY(reformat(l, b, format_of(c, b), err));
    return NIB_OK;
}

/* ---- the output head ---- */

const op *layout_head(const layout *l, const weight **matrix) {
    const block *b = &l->blocks[l->m->n_block - 1];
    const op *head = NULL;
    for (int i = 0; i < b->program.n_op; i++) {
        const op *o = &b->program.ops[i];
        if (o->out != REG_LOGITS || (o->kind != OP_LINEAR && o->kind != OP_SHORTLIST))
            continue;
        if (head || b->weights[o->w].format.layout != PACK_TILE)
            return NULL;
        head = o;
    }
    if (!head)
        return NULL;
    *matrix = &b->weights[head->w];
    if ((*matrix)->shared_block >= 0)
        *matrix = &l->blocks[(*matrix)->shared_block].weights[(*matrix)->shared_index];
    return head;
}

static nib_status set_shortlist(layout *l, bool on, nib_error *err) {
    const int last = l->m->n_block - 1;
    const weight *matrix;
    NIB_TRY(layout_own(l, last, err));
    const op *head = layout_head(l, &matrix);
    l->own[last].ops[head - l->own[last].ops].kind = on ? OP_SHORTLIST : OP_LINEAR;
    layout_fuse(l, last);
    return NIB_OK;
}

/* ---- layouts ---- */

nib_status layout_make(const model *m, const layout_choice *choice, layout **out, nib_error *err) {
    layout *l = NULL;
    nib_status status = begin(m, m->blocks, choice, 0, &l, err);
    if (status == NIB_OK)
        status = copy_places(l, choice->places, err);
    if (status == NIB_OK && choice->shortlist)
        status = set_shortlist(l, true, err);
    if (status == NIB_OK)
        status = apply(l, choice, err);
    return hand_out(l, status, NULL, out, err);
}

nib_status layout_with_shortlist(const layout *from, bool on, layout **out, nib_error *err) {
    layout *l = NULL;
    nib_status status = begin_from(from, &l, err);
    if (status == NIB_OK)
        status = set_shortlist(l, on, err);
    return hand_out(l, status, NULL, out, err);
}

static nib_status set_packings(layout *l, int which, layout_packing_fn packing, const void *user,
                               nib_error *err) {
    const block *b = &l->blocks[which];
    for (int i = 0; i < b->n_weight; i++) {
        const weight *w = &b->weights[i];
        if (!own_matrix(w) || w->format.layout != PACK_TILE)
            continue;
        const uint8_t to = (uint8_t)packing(user, which, w);
        if (w->format.packing == to)
            continue;
        NIB_TRY(layout_own(l, which, err));
        l->own[which].weights[i].format.packing = to;
    }
    return update_sharers(l, which, err);
}

nib_status layout_with_packings(const layout *from, layout_packing_fn packing, const void *user, layout **out,
                                nib_error *err) {
    layout *l = NULL;
    nib_status status = begin_from(from, &l, err);
    for (int b = 0; b < from->m->n_block && status == NIB_OK; b++)
        status = set_packings(l, b, packing, user, err);
    return hand_out(l, status, &from->pages, out, err);
}

nib_status layout_with_imatrix(const layout *from, layout_imatrix_fn find, const void *user, layout **out,
                               nib_error *err) {
    layout *l = NULL;
    nib_status status = begin_from(from, &l, err);
    for (int b = 0; b < from->m->n_block && status == NIB_OK; b++)
        for (int i = 0; i < from->blocks[b].n_weight && status == NIB_OK; i++) {
            if (!from->blocks[b].weights[i].uses_imatrix)
                continue;
            status = layout_own(l, b, err);
            if (status == NIB_OK)
                l->own[b].weights[i].imatrix = find(user, b, i);
        }
    return hand_out(l, status, &from->pages, out, err);
}

/* ---- what others read ---- */

const model *layout_model(const layout *l) {
    return l->m;
}

int layout_n_block(const layout *l) {
    return l->m->n_block;
}

const block *layout_block(const layout *l, int i) {
    return &l->blocks[i];
}

bool layout_is_left_out(const layout *l, int which) {
    return l->blocks[which].program.n_op == 0;
}

bool layout_has_shortlist(const layout *l) {
    const weight *matrix;
    const op *head = layout_head(l, &matrix);
    return head && head->kind == OP_SHORTLIST;
}

const page_layout *layout_pages(const layout *l) {
    return &l->pages;
}

const layout_place *layout_places(const layout *l) {
    return l->places;
}

const uint8_t *layout_homes(const layout *l) {
    return l->home_of;
}

uint64_t layout_home_bytes(const layout *l, int place) {
    uint64_t sum = 0;
    for (int i = 0; l->home_of && i < l->pages.n_page; i++)
        sum += l->home_of[i] == place ? l->pages.pages[i].bytes : 0;
    return sum;
}

uint64_t layout_heap_bytes(const layout *l) {
    return sizeof *l + l->mem.bytes + l->pages.heap_bytes + (l->home_of ? (uint64_t)l->pages.n_page + 1 : 0);
}
