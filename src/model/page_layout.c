/* page_layout.c - see page_layout.h. The weights are traversed twice: first to count pages, then to fill the
 * arrays. */
#include "model/page_layout.h"

#include "base/mem.h"
#include "base/num.h"
#include "model/layout_parts.h"

#include <string.h>

enum {
    /* Bounds of a page's size. A page is the unit of reading and of residency: small enough that a ring of a
       few pages is a small part of a small model, large enough for the disk's full rate
       (docs/optimisation-log.md). */
    MIN_TARGET = 64 << 10,
    MAX_TARGET = 1 << 20,
    TARGET_SHARE = 256, /* a page is about this fraction of the model, without second slices */
    TARGET_STEPS = 32   /* steps in which sizes are tried, per target */
};

enum { USE_PRODUCT = 1, USE_LOOKUP = 2 };

/* How the program of the weight's own block uses it. */
static int use_of(const block *blk, int w) {
    int use = 0;
    for (int i = 0; i < blk->program.n_op; i++) {
        const op *o = &blk->program.ops[i];
        if (o->w != w)
            continue;
        use |= o->kind == OP_EMBED || o->kind == OP_EMBED_POS ? USE_LOOKUP : USE_PRODUCT;
    }
    return use;
}

void page_layout_own(const layout *lay, int *b, int *w) {
    const weight *at = &layout_block(lay, *b)->weights[*w];
    if (at->shared_block >= 0) {
        *b = at->shared_block;
        *w = at->shared_index;
    }
}

static uint64_t round_page(uint64_t n) {
    return (n + FILE_ALIGN - 1) & ~(uint64_t)(FILE_ALIGN - 1);
}

/* Whole experts of a stack each begin at a multiple of FILE_ALIGN. */
static bool stack_bytes(const weight *w, int64_t n_row, uint64_t *bytes) {
    const int64_t each = w->n_expert > 1 ? w->n / w->n_expert : 0;
    if (each == 0 || n_row % each)
        return pack_bytes(&w->format, n_row, w->k, bytes);
    return pack_bytes(&w->format, each, w->k, bytes) && *bytes < UINT64_MAX - FILE_ALIGN &&
           num_mul_u64(round_page(*bytes), (uint64_t)(n_row / each), bytes);
}

view page_layout_expert(const view *stack, int64_t n_expert, int64_t e) {
    view v = *stack;
    uint64_t bytes;
    v.n = stack->n / n_expert;
    pack_bytes(&v.format, v.n, v.k, &bytes); /* cannot overflow: the whole stack did not */
    v.data = stack->data ? (const uint8_t *)stack->data + (uint64_t)e * round_page(bytes) : NULL;
    return v;
}

static bool bytes_of(const weight *w, int64_t n_row, uint64_t *bytes) {
    if (w->vector)
        *bytes = (uint64_t)w->k * sizeof(float);
    else if (!stack_bytes(w, n_row, bytes))
        return false;
    if (*bytes > UINT64_MAX / 4)
        return false;
    *bytes = (*bytes + 63) & ~UINT64_C(63);
    return true;
}

uint64_t page_layout_bytes(const weight *w, int64_t n_row) {
    uint64_t bytes = 0;
    bytes_of(w, n_row, &bytes);
    return bytes;
}

/* ---- cutting: while l->pages is NULL, the functions below only count ---- */

static bool add_page(page_layout *l, weight_page what) {
    what.bytes = round_page(what.bytes);
    what.image = l->image_bytes;
    if (l->n_page == INT32_MAX || !num_add_u64(l->image_bytes, what.bytes, &l->image_bytes) ||
        l->image_bytes > UINT64_MAX / 4)
        return false;
    if (l->pages)
        l->pages[l->n_page] = what;
    l->n_page++;
    if (!what.table && !what.chosen) {
        l->max_page = NUM_MAX(l->max_page, what.bytes);
        l->n_product_page++;
        l->product_bytes += what.bytes;
    }
    return true;
}

/* The smallest number of panels whose bytes are a multiple of FILE_ALIGN. */
static uint64_t panels_a_page(uint64_t panel) {
    uint64_t n = 1;
    while (n < FILE_ALIGN / 64 && n * panel % FILE_ALIGN)
        n *= 2;
    return n;
}

/* Cuts a matrix into pages of nearly the same size, none (much) larger than the target. */
static bool cut_rows(page_layout *l, int b, int j, bool table) {
    const weight *w = &layout_block(l->of, b)->weights[j];
    weight_place *at = &l->places[l->first_weight[b] + j];
    uint64_t panel = 0, whole = 0;
    if (!pack_bytes(&w->format, PACK_PANEL, w->k, &panel) || !bytes_of(w, w->n, &whole))
        return false;
    uint64_t n_panel = ((uint64_t)w->n + PACK_PANEL - 1) / PACK_PANEL, step = panels_a_page(panel);
    uint64_t n_page = (whole + l->target - 1) / l->target;
    uint64_t each = (NUM_MAX(num_div_up(n_panel, NUM_MAX(n_page, 1)), 1) + step - 1) / step * step;
    if (each > 1 && each * panel > l->target + l->target / 4 && each > step)
        each -= step;
    int64_t rows = (int64_t)NUM_MIN(each * PACK_PANEL, (uint64_t)INT32_MAX & ~UINT64_C(15));
    if (w->n_expert > 1)
        rows = w->n / w->n_expert;
    *at = (weight_place){.first_page = l->n_page, .page_rows = rows};
    for (int64_t r = 0; r < w->n; r += rows, at->n_page++) {
        weight_page some = {.block = b,
                            .w = j,
                            .first_row = r,
                            .n_row = NUM_MIN(rows, w->n - r),
                            .table = table,
                            .second = weight_is_second(w),
                            .chosen = w->n_expert > 1};
        if (!bytes_of(w, some.n_row, &some.bytes) || !add_page(l, some))
            return false;
    }
    return true;
}

/* Small matrices that follow each other share a page: it is closed when the next one does not fit. */
typedef struct open_page {
    uint64_t bytes;
    int b;
    bool second;
} open_page;

static bool close_page(page_layout *l, open_page *g) {
    uint64_t bytes = g->bytes;
    g->bytes = 0;
    const weight_page several = {.block = g->b, .w = -1, .bytes = bytes, .second = g->second};
    return bytes == 0 || add_page(l, several);
}

static bool cut_matrix(page_layout *l, int b, int j, bool table, open_page *g) {
    const weight *w = &layout_block(l->of, b)->weights[j];
    uint64_t bytes;
    if (!bytes_of(w, w->n, &bytes))
        return false;
    if (bytes > l->target || table || w->n_expert > 1)
        return close_page(l, g) && cut_rows(l, b, j, table);
    const bool second = weight_is_second(w);
    if ((g->bytes + bytes > l->target || g->b != b || g->second != second) && !close_page(l, g))
        return false;
    g->b = b;
    g->second = second;
    l->places[l->first_weight[b] + j] =
        (weight_place){.offset = g->bytes, .first_page = l->n_page, .n_page = 1, .page_rows = w->n};
    g->bytes += bytes;
    return true;
}

/* Cuts the matrices of block b's products in the order of their first use. second: second slices, else first
 * ones. head: only matrices that the last block uses, else only the others. */
static bool cut_products(page_layout *l, int b, bool head, bool second) {
    const program *p = &layout_block(l->of, b)->program;
    open_page g = {0, b, false};
    for (int i = 0; i < p->n_op; i++) {
        const op *o = &p->ops[i];
        int owner = b, w = o->w;
        if ((!op_is_product(o) && o->kind != OP_SHORTLIST) || o->adds != second)
            continue;
        page_layout_own(l->of, &owner, &w);
        int at = l->first_weight[owner] + w;
        if (l->places[at].n_page > 0 || l->head_use[at] != head || (!head && owner != b))
            continue;
        if (!cut_matrix(l, owner, w, o->kind == OP_SHORTLIST,
                        &g)) /* a shortlist's matrix has the place that a product's would have */
            return false;
    }
    return close_page(l, &g);
}

static bool cut_tables(page_layout *l, bool second) {
    for (int b = 0; b < l->n_block; b++) {
        const block *blk = layout_block(l->of, b);
        for (int i = 0; i < blk->n_weight; i++) {
            const weight *w = &blk->weights[i];
            if (!w->vector && w->shared_block < 0 && weight_is_second(w) == second &&
                l->places[l->first_weight[b] + i].n_page == 0 && !cut_rows(l, b, i, true))
                return false;
        }
    }
    return true;
}

static void cut_vectors(page_layout *l) {
    for (int b = 0; b < l->n_block; b++) {
        const block *blk = layout_block(l->of, b);
        for (int i = 0; i < blk->n_weight; i++) {
            if (!blk->weights[i].vector || blk->weights[i].shared_block >= 0)
                continue;
            l->places[l->first_weight[b] + i].offset = l->vector_bytes;
            l->vector_bytes += page_layout_bytes(&blk->weights[i], 1);
        }
    }
    l->image_bytes = l->vector_bytes = round_page(l->vector_bytes);
}

static bool cut_slices(page_layout *l, bool second) {
    bool ok = true;
    for (int b = 0; b < l->n_block && ok; b++)
        ok = cut_products(l, b, false, second);
    return ok && cut_products(l, l->n_block - 1, true, second) && cut_tables(l, second);
}

static bool cut(page_layout *l) {
    l->vector_bytes = l->image_bytes = l->max_page = l->product_bytes = 0;
    l->n_page = l->n_product_page = 0;
    memset(l->places, 0, (size_t)l->first_weight[l->n_block] * sizeof *l->places);
    cut_vectors(l);
    if (!cut_slices(l, false))
        return false;
    l->n_first_page = l->n_page;
    l->first_bytes = l->image_bytes;
    return cut_slices(l, true);
}

/* Lists the pages that each block uses; only counts while l->uses is NULL. */
static int list_uses(page_layout *l) {
    int n = 0;
    for (int b = 0; b < l->n_block; b++) {
        const program *p = &layout_block(l->of, b)->program;
        int before = -1;
        l->first_use[b] = n;
        for (int i = 0; i < p->n_op; i++) {
            if (!op_is_product(&p->ops[i]) || p->ops[i].kind == OP_EXPERTS)
                continue;
            const weight_place *at = page_layout_place(l, b, p->ops[i].w);
            for (int j = at->first_page; j < at->first_page + at->n_page; j++) {
                if (j != before && l->uses) {
                    l->uses[n] = j;
                    l->pages[j].table = false;
                    l->max_page = NUM_MAX(l->max_page, l->pages[j].bytes);
                }
                n += j != before;
                before = j;
            }
        }
    }
    l->first_use[l->n_block] = n;
    return n;
}

/* ---- the arrays ---- */

static void note_head(page_layout *l) {
    int last = l->n_block - 1;
    const block *head = layout_block(l->of, last);
    for (int i = 0; i < head->n_weight; i++) {
        int b = last, w = i;
        page_layout_own(l->of, &b, &w);
        if (!head->weights[i].vector && (use_of(head, i) & USE_PRODUCT))
            l->head_use[l->first_weight[b] + w] = true;
    }
}

/* Chooses the target near `share` with which pages fill the ring's slots best, because slots are as large as
 * the largest page. If a matrix cannot be cut that small, the other pages may be as large as its pages. */
static bool fill_slots(page_layout *l, uint64_t share) {
    const uint64_t step = round_page(share / TARGET_STEPS);
    uint64_t max = share + share / 4, chosen = share;
    double best = 0;
    for (uint64_t t = NUM_MAX(share - share / 4, (uint64_t)MIN_TARGET); t <= max; t += step) {
        l->target = t / FILE_ALIGN * FILE_ALIGN;
        if (!cut(l))
            return false;
        max = NUM_MAX(max, NUM_MIN(l->max_page, (uint64_t)MAX_TARGET));
        const double fill = (double)l->product_bytes / ((double)l->max_page * l->n_product_page);
        if (fill > best + 0.01) { /* of equally good targets the smaller one is kept */
            best = fill;
            chosen = l->target;
        }
    }
    l->target = chosen;
    return true;
}

static bool choose_target(page_layout *l) {
    uint64_t all = 0, bytes;
    for (int b = 0; b < l->n_block; b++)
        for (int i = 0; i < layout_block(l->of, b)->n_weight; i++) {
            const weight *w = &layout_block(l->of, b)->weights[i];
            if (w->shared_block < 0 && !weight_is_second(w) &&
                (!bytes_of(w, w->n, &bytes) || !num_add_u64(all, bytes, &all)))
                return false;
        }
    const uint64_t share = NUM_MAX(all / TARGET_SHARE, (uint64_t)MIN_TARGET);
    return fill_slots(l, NUM_MIN(share, (uint64_t)MAX_TARGET) / FILE_ALIGN * FILE_ALIGN);
}

static nib_status make(page_layout *l, nib_error *err) {
    size_t nb = (size_t)l->n_block + 1, n_weight = 0;
    for (int b = 0; b < l->n_block; b++)
        n_weight += (size_t)layout_block(l->of, b)->n_weight;
    l->first_weight = mem_calloc(nb, sizeof(int));
    l->first_use = mem_calloc(nb, sizeof(int));
    l->places = mem_calloc(n_weight + 1, sizeof *l->places);
    l->head_use = mem_calloc(n_weight + 1, sizeof *l->head_use);
    l->heap_bytes = 2 * nb * sizeof(int) + (n_weight + 1) * (sizeof *l->places + sizeof *l->head_use);
    if (!l->first_weight || !l->first_use || !l->places || !l->head_use)
        return nib_fail_nomem(err, l->heap_bytes, "the list of pages");
    for (int b = 0; b < l->n_block; b++)
        l->first_weight[b + 1] = l->first_weight[b] + layout_block(l->of, b)->n_weight;
    note_head(l);
    if (!choose_target(l) || !cut(l))
        return nib_fail(err, NIB_E_MODEL, "the weights' size overflows");
    size_t n_page = (size_t)l->n_page + 1, n_use = (size_t)list_uses(l) + 1;
    l->heap_bytes += n_page * sizeof *l->pages + n_use * sizeof *l->uses;
    l->pages = mem_calloc(n_page, sizeof *l->pages);
    l->uses = mem_calloc(n_use, sizeof *l->uses);
    if (!l->pages || !l->uses)
        return nib_fail_nomem(err, l->heap_bytes, "the list of pages");
    cut(l);
    list_uses(l);
    return NIB_OK;
}

nib_status page_layout_open(page_layout *l, const layout *lay, nib_error *err) {
    memset(l, 0, sizeof *l);
    l->of = lay;
    l->n_block = layout_n_block(lay);
    nib_status status = make(l, err);
    if (status != NIB_OK)
        page_layout_close(l);
    return status;
}

static void *copied(const void *from, size_t n_byte) {
    void *to = mem_alloc(n_byte);
    if (to)
        memcpy(to, from, n_byte);
    return to;
}

nib_status page_layout_copy(page_layout *l, const page_layout *from, const layout *lay, nib_error *err) {
    const size_t nb = (size_t)from->n_block + 1, n_weight = (size_t)from->first_weight[from->n_block] + 1,
                 n_page = (size_t)from->n_page + 1, n_use = (size_t)from->first_use[from->n_block] + 1;
    *l = *from;
    l->of = lay;
    l->first_weight = copied(from->first_weight, nb * sizeof *l->first_weight);
    l->first_use = copied(from->first_use, nb * sizeof *l->first_use);
    l->places = copied(from->places, n_weight * sizeof *l->places);
    l->head_use = copied(from->head_use, n_weight * sizeof *l->head_use);
    l->pages = copied(from->pages, n_page * sizeof *l->pages);
    l->uses = copied(from->uses, n_use * sizeof *l->uses);
    if (l->first_weight && l->first_use && l->places && l->head_use && l->pages && l->uses)
        return NIB_OK;
    page_layout_close(l);
    return nib_fail_nomem(err, from->heap_bytes, "the list of pages");
}

void page_layout_close(page_layout *l) {
    mem_free(l->first_weight);
    mem_free(l->first_use);
    mem_free(l->places);
    mem_free(l->head_use);
    mem_free(l->pages);
    mem_free(l->uses);
    memset(l, 0, sizeof *l);
}
