/* pager_need.c - the pages of a model and the bytes that a pager will charge, computed before anything is
 * opened. The pager takes its sizes from the same functions, so both always agree. */
#include "weights/pager_parts.h"

#include "base/mem.h"
#include "base/num.h"

uint64_t pager_row_bytes(const layout *lay) {
    uint64_t max = 0, bytes;
    for (int b = 0; b < layout_n_block(lay); b++) {
        const block *blk = layout_block(lay, b);
        for (int i = 0; i < blk->program.n_op; i++) {
            const op *o = &blk->program.ops[i];
            int owner = b, w = o->w;
            if (o->kind != OP_EMBED && o->kind != OP_EMBED_POS)
                continue;
            page_layout_own(lay, &owner, &w);
            bytes = page_layout_bytes(&layout_block(lay, owner)->weights[w], 1);
            max = NUM_MAX(max, bytes);
        }
    }
    return max;
}

uint64_t pager_state_bytes(const page_layout *l) {
    size_t n_weight = (size_t)l->first_weight[l->n_block], n_use = (size_t)l->first_use[l->n_block];
    return (n_weight + 1) * sizeof(view) + ((size_t)l->n_page + 1) * sizeof(page_state) +
           (n_use + 1 + (size_t)l->n_block + 1) * sizeof(int) + (size_t)l->n_block * sizeof(atomic_bool) +
           experts_table_bytes(l);
}

enum {
    MIN_RAW = 64 << 10,
    MIN_SLOTS = 8,
    FEW_BUFFERS = 6,     /* fewer buffers do not keep the disk busy */
    SLOT_PAGES = 40,     /* a ring has one slot for this many pages of a model */
    HUGE_PAGE = 2 << 20, /* a virtual disk takes far longer to read into small pages */
};

/* Rounds `bytes` down to whole huge pages, if it is several of them; adds one if they hold too few buffers.
 */
static uint64_t whole_huge_pages(uint64_t bytes, uint64_t each) {
    const uint64_t whole = bytes / HUGE_PAGE * HUGE_PAGE;
    if (whole == 0)
        return bytes;
    return whole / each < FEW_BUFFERS ? whole + HUGE_PAGE : whole;
}

/* Upper bound of the buffer for a page's bytes in the model's files; UINT64_MAX: the page must be read piece
 * by piece. For a matrix that is one piece of a tensor, only the first page is examined, because its other
 * pages have about the same size. */
static uint64_t raw_bytes(const page_layout *l, int i) {
    const pager p = {.layout = *l};
    const weight_page *page = &l->pages[i];
    load_reads reads;
    uint64_t bytes;
    if (page->w >= 0 && pager_weight(&p, page->block, page->w)->n_piece == 1 && page->first_row > 0)
        return 0;
    if (!pager_page_reads(&p, i, &reads, &bytes))
        return UINT64_MAX;
    return bytes +
           (page->w >= 0
                ? FILE_ALIGN
                : 0); /* other pages of the matrix may begin at another offset within a FILE_ALIGN unit */
}

ring_shape ring_shape_of(const page_layout *l) {
    const int n_slot = NUM_MAX(NUM_MIN(l->n_page / SLOT_PAGES, (int)RING_SLOTS), (int)MIN_SLOTS);
    const uint64_t max = (uint64_t)n_slot * (l->max_page + NUM_MAX(l->max_page / 4, (uint64_t)MIN_RAW)) /
                         (uint64_t)(n_slot + 1) / FILE_ALIGN * FILE_ALIGN;
    const uint64_t min = NUM_MAX(l->max_page, (uint64_t)FILE_ALIGN); /* also if there is no page */
    ring_shape out = {.each = min, .part = min};
    bool in_turn = false;
    for (int i = 0; i < l->first_use[l->n_block]; i++) {
        const uint64_t raw = raw_bytes(l, l->uses[i]);
        in_turn = in_turn || raw > max;
        if (raw <= max)
            out.each = NUM_MAX(out.each, raw);
    }
    if (in_turn) {
        out.part = load_raw_bytes(l->of, 0);
        out.each = NUM_MAX(out.each, out.part);
    }
    out.bytes = whole_huge_pages((uint64_t)(n_slot + 1) * out.each, out.each);
    out.n_slot = (int)NUM_MIN(out.bytes / out.each - 1, (uint64_t)RING_SLOTS);
    return out;
}

static uint64_t ring_bytes(const page_layout *l, ring_shape shape, int n_thread) {
    return shape.bytes + 2 * load_buffer_bytes(l->of, 0, 0) + experts_bytes(l, n_thread);
}

pager_need pager_need_of(const page_layout *l, int n_thread) {
    const layout *lay = l->of;
    const ring_shape shape = ring_shape_of(l);
    pager_need n = {.image = l->image_bytes,
                    .vectors = l->vector_bytes,
                    .ring = ring_bytes(l, shape, n_thread),
                    .row = pager_row_bytes(lay) + load_buffer_bytes(lay, 0, 1) + panel_reader_bytes(lay),
                    .tables = pager_state_bytes(l),
                    .sums = (page_layout_n_unit(l) + 1 + (l->n_page > l->n_first_page)) * sizeof(uint64_t),
                    .max_page = l->max_page,
                    .part = shape.part,
                    .n_slot = shape.n_slot,
                    .block_in_ring = true};
    for (int b = 0; b + 1 < l->n_block; b++)
        n.block_in_ring = n.block_in_ring && l->first_use[b + 1] - l->first_use[b] <= shape.n_slot;
    n.staging = load_crew_bytes(lay, n_thread, pager_load_shape(n_thread, true, NIB_AUTO));
    n.stream_staging = load_crew_bytes(lay, n_thread, pager_load_shape(n_thread, true, n.ring + n.row));
    return n;
}

pager_need pager_needs(const layout *lay, int n_thread) {
    return pager_need_of(layout_pages(lay), n_thread);
}

/* Links the pages of each expert of a block. */
static void list_experts(const page_layout *l, int b, pager_page *list) {
    const weight_place *before = NULL;
    for (int i = 0; i < layout_block(l->of, b)->n_weight; i++) {
        const weight *w = &layout_block(l->of, b)->weights[i];
        const weight_place *at = &l->places[l->first_weight[b] + i];
        if (w->n_expert <= 1 || at->n_page == 0)
            continue;
        for (int e = 0; e < at->n_page; e++) {
            list[at->first_page + e].expert = list[at->first_page + e].rank = e;
            list[at->first_page + e].leads = !before;
            if (before)
                list[before->first_page + e].other = at->first_page + e;
        }
        before = at;
    }
}

static nib_status list_pages(const page_layout *l, pager_page **pages, int *n_page, nib_error *err) {
    const weight *head = pager_looked_up(l->of);
    pager_page *list = mem_array((size_t)l->n_page + 1, sizeof *list);
    if (!list)
        return nib_fail_nomem(err, (uint64_t)l->n_page * sizeof *list, "the list of pages");
    for (int i = 0; i < l->n_page; i++) {
        const weight_page *w = &l->pages[i];
        const bool is_head = w->table && w->w >= 0 && &layout_block(l->of, w->block)->weights[w->w] == head;
        list[i] = (pager_page){.block = w->block,
                               .bytes = w->bytes,
                               .table = w->table,
                               .second = w->second,
                               .head = is_head,
                               .chosen = w->chosen};
    }
    for (int b = 0; b < l->n_block; b++)
        list_experts(l, b, list);
    *pages = list;
    *n_page = l->n_page;
    return NIB_OK;
}

nib_status pager_pages(const layout *lay, pager_page **pages, int *n_page, nib_error *err) {
    return list_pages(layout_pages(lay), pages, n_page, err);
}

nib_status pager_list(const pager *p, pager_page **pages, int *n_page, pager_need *need, nib_error *err) {
    *need = pager_need_of(&p->layout, pool_size(p->options.threads));
    NIB_TRY(list_pages(&p->layout, pages, n_page, err));
    for (int i = 0; i < *n_page; i++)
        if (p->state[i].lent) {
            need->image -= (*pages)[i].bytes;
            (*pages)[i].bytes = 0;
        }
    return NIB_OK;
}
