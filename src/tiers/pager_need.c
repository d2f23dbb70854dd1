/* pager_need.c - what a planner asks before anything is opened: the pages of a model, and what the pager will
 * charge. The pager itself takes its sizes from here, so the two cannot differ. */
#include "tiers/pager_parts.h"

#include "base/mem.h"
#include "base/num.h"

uint64_t pager_row_bytes(const model *m) {
    uint64_t most = 0, bytes;
    for (int b = 0; b < model_n_block(m); b++) {
        const block *blk = model_block(m, b);
        for (int i = 0; i < blk->program.n_op; i++) {
            const op *o = &blk->program.ops[i];
            int owner = b, w = o->w;
            if (o->kind != OP_EMBED && o->kind != OP_EMBED_POS)
                continue;
            page_layout_own(m, &owner, &w);
            bytes = page_layout_bytes(&model_block(m, owner)->weights[w], 1);
            most = NUM_MAX(most, bytes);
        }
    }
    return most;
}

uint64_t pager_state_bytes(const page_layout *l) {
    size_t n_weight = (size_t)l->first_weight[l->n_block], n_visit = (size_t)l->first_visit[l->n_block];
    return (n_weight + 1) * sizeof(view) + ((size_t)l->n_page + 1) * sizeof(page_state) +
           (n_visit + 1 + (size_t)l->n_block + 1) * sizeof(int);
}

pager_need pager_need_of(const page_layout *l, int n_thread) {
    const model *m = l->m;
    pager_need n = {.image = l->image_bytes,
                    .vectors = l->vector_bytes,
                    .ring = reader_bytes(m, l->page_most),
                    .row = pager_row_bytes(m) + load_buffer_bytes(m, 0, 1),
                    .tables = l->heap_bytes + pager_state_bytes(l),
                    .sums = (page_layout_n_unit(l) + 1) * sizeof(uint64_t),
                    .page_most = l->page_most,
                    .part = reader_part(l->page_most),
                    .block_in_ring = true};
    for (int b = 0; b + 1 < l->n_block; b++)
        n.block_in_ring = n.block_in_ring && l->first_visit[b + 1] - l->first_visit[b] <= READER_SLOTS;
    n.staging = load_crew_bytes(m, n_thread, pager_load_shape(n_thread, true, NIB_AUTO));
    n.stream_staging = load_crew_bytes(m, n_thread, pager_load_shape(n_thread, true, n.ring + n.row));
    return n;
}

nib_status pager_needs(const model *m, int n_thread, pager_need *out, nib_error *err) {
    page_layout l;
    NIB_TRY(page_layout_open(&l, m, NULL, NULL, err));
    *out = pager_need_of(&l, n_thread);
    page_layout_close(&l);
    return NIB_OK;
}

nib_status pager_pages(const model *m, pager_page **pages, int *n_page, nib_error *err) {
    page_layout l;
    NIB_TRY(page_layout_open(&l, m, NULL, NULL, err));
    pager_page *list = mem_array((size_t)l.n_page + 1, sizeof *list);
    for (int i = 0; list && i < l.n_page; i++)
        list[i] = (pager_page){l.pages[i].block, l.pages[i].bytes, l.pages[i].table, l.pages[i].second};
    *pages = list;
    *n_page = l.n_page;
    nib_status status =
        list ? NIB_OK : nib_fail_nomem(err, (uint64_t)l.n_page * sizeof *list, "the list of pages");
    page_layout_close(&l);
    return status;
}
