/* pager.c - opens a pager: charges its memory, loads the resident pages, and starts the reader thread.
 * DESIGN. Weights are cut into pages in the same way for every budget. The caller that opens the pager gives
 * the tier of each page (plan/homes.h). A page in RAM has a place in one mapping, and pinning it is a
 * look-up. Other pages pass through a ring of slots, which the reader thread fills in the order of the pass's
 * visits (visits.h), the same order that the step loop follows. A block may have consecutive visits. Then its
 * pages stay in the ring until the last visit; if the block is larger than the ring, as many of its first
 * pages stay as leave a window of slots for the others. After the last visit the reader continues with the
 * predicted next pass: one row through the same blocks. If the next pass differs, the pages that agree with
 * it stay and the others are dropped. Vectors are always resident; tables are read by row. page_ring.h
 * decides where each page is and what each slot does, and has the state diagram. pager_reader.c reads pages;
 * pager_ring.c gives them to the threads that acquire them. INVARIANTS, in addition to those of page_ring.h
 *  1. A page's bytes are in exactly one of: its place in the mapping, another pager's, its slot, the disk.
 *  2. Places and views of resident weights never change after pager_load, except those of experts
 *     (pager_experts.c).
 *  3. The mapping, the ring, its
 * staging and these tables are charged to the ledger before they are allocated. fetch, release and read_row
 * allocate nothing. Mapping and ring are memory of a device (device.h).
 *  4. One visit and at most one page are pinned at a time.
 *  5. The ring's state changes under the reader's lock only. Reads in flight and packing continue without
 * it. */
#include "weights/pager_parts.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

static nib_status map_resident(pager *p, uint64_t bytes, nib_error *err) {
    NIB_TRY(memory_region_open(&p->resident, device_host(), p->ledger, NIB_OWNER_WEIGHTS, bytes, false,
                               "the weights", err));
    p->map = p->resident.at;
    p->map_bytes = bytes;
    return NIB_OK;
}

static nib_status open_row_buffer(pager *p, nib_error *err) {
    p->row_packed_bytes = pager_row_bytes(p->layout.of);
    NIB_TRY(load_buffer_init(&p->row_buffer, p->layout.of, 0, 1, NULL, err));
    p->row_packed = p->row_packed_bytes ? mem_map(p->row_packed_bytes) : NULL;
    NIB_TRY(panel_reader_open(&p->panels, p->layout.of, err));
    return p->row_packed || !p->row_packed_bytes
               ? NIB_OK
               : nib_fail_nomem(err, p->row_packed_bytes, "a row of the embedding");
}

nib_status pager_source(pager *p, uint64_t free_bytes, nib_error *err) {
    const pager_options *o = &p->options;
    const int n_thread = pool_size(o->threads);
    const pager_need need = pager_need_of(&p->layout, n_thread);
    NIB_TRY(loader_open(layout_model(p->layout.of), true, &p->loader, err));
    pager_packed_find(p, o, true);
    if (!p->packed)
        NIB_TRY(pager_packed_write_pages(p, o, pager_load_shape(n_thread, true, need.ring + need.row), err));
    if (free_bytes < p->packed_tables)
        pager_packed_drop(p, false);
    return NIB_OK;
}

/* Loads the resident part of a streamed model. Staging for loading adds nothing to the peak: it is released
 * before the ring is allocated. */
static nib_status load_some(pager *p, nib_error *err) {
    const pager_options *o = &p->options;
    const int n_thread = pool_size(o->threads);
    const pager_need need = pager_need_of(&p->layout, n_thread);
    NIB_TRY(pager_load_resident(p, o, pager_load_shape(n_thread, true, need.ring + need.row), err));
    const int n_streamed = p->streamed.first[p->layout.n_block];
    NIB_TRY(ledger_charge(p->ledger, PLACE_RAM, NIB_OWNER_STAGING, need.row, err));
    p->staging = need.row;
    NIB_TRY(open_row_buffer(p, err));
    if (n_streamed)
        log_line(o->log, "%d of %d pages of the weights are streamed from disk", n_streamed,
                 p->layout.n_page);
    if (experts_stream(p))
        NIB_TRY(experts_open(p, &p->experts, err));
    p->pass_bytes = pager_pass_bytes(p);
    return n_streamed ? reader_open(p, &p->reader, err) : NIB_OK; /* tables are read by row, without a ring */
}

static nib_status load_whole(pager *p, nib_error *err) {
    const pager_options *o = &p->options;
    const int n_thread = pool_size(o->threads);
    const bool direct = !loader_is_cached(layout_model(p->layout.of));
    load_shape shape = pager_load_shape(n_thread, true, NIB_AUTO);
    NIB_TRY(loader_open(layout_model(p->layout.of), direct, &p->loader, err));
    pager_packed_find(p, o, false);
    if (!p->packed)
        shape = pager_load_shape(n_thread, direct, NIB_AUTO);
    NIB_TRY(pager_load_resident(p, o, shape, err));
    if (!p->packed)
        NIB_TRY(pager_packed_write_map(p, o, err));
    pager_packed_shut(p);
    return NIB_OK;
}

nib_status pager_load(pager *p, const uint8_t *home_of, nib_error *err) {
    const page_layout *l = &p->layout;
    uint64_t bytes = l->vector_bytes;
    for (int i = 0; i < l->n_page; i++)
        bytes += home_of[i] == PLACE_RAM && !p->state[i].lent ? l->pages[i].bytes : 0;
    NIB_TRY(map_resident(p, bytes, err));
    pager_place(p, home_of);
    const nib_status status = p->loader ? load_some(p, err) : load_whole(p, err);
    p->options = (pager_options){0};
    return status;
}

/* ---- opening and closing ---- */

static nib_status make_tables(pager *p, const layout *lay, nib_error *err) {
    const uint64_t bytes = pager_state_bytes(layout_pages(lay));
    NIB_TRY(ledger_charge(p->ledger, PLACE_RAM, NIB_OWNER_TABLES, bytes, err));
    p->tables = bytes;
    p->layout = *layout_pages(lay);
    const page_layout *l = &p->layout;
    p->state = mem_calloc((size_t)l->n_page + 1, sizeof *p->state);
    p->views = mem_calloc((size_t)l->first_weight[l->n_block] + 1, sizeof *p->views);
    p->streamed.pages = mem_calloc((size_t)l->first_use[l->n_block] + 1, sizeof *p->streamed.pages);
    p->streamed.first = mem_calloc((size_t)l->n_block + 1, sizeof *p->streamed.first);
    p->streamed.copied = p->copied = mem_calloc((size_t)l->n_page + 1, sizeof *p->copied);
    if (!p->state || !p->views || !p->streamed.pages || !p->streamed.first || !p->copied)
        return nib_fail_nomem(err, p->tables, "the pager's tables");
    return NIB_OK;
}

nib_status pager_open(const layout *lay, ledger *l, const pager_options *options, pager **out,
                      nib_error *err) {
    pager *p = mem_calloc(1, sizeof *p);
    if (!p)
        return nib_fail_nomem(err, sizeof *p, "the pager");
    p->ledger = l;
    p->log = options->log;
    p->now = (fetched){.use = -1, .page = -1, .expert = -1};
    p->options = *options;
    const nib_status status = make_tables(p, lay, err);
    if (status != NIB_OK) {
        pager_close(p);
        return status;
    }
    if (options->lender && !options->packed)
        pager_borrow(p, options->lender);
    *out = p;
    return NIB_OK;
}

void pager_close(pager *p) {
    if (!p)
        return;
    reader_close(p->reader);
    experts_close(p->experts);
    pager_packed_close(p);
    loader_close(p->loader);
    panel_reader_close(&p->panels);
    load_buffer_deinit(&p->row_buffer);
    if (p->row_packed)
        mem_unmap(p->row_packed, p->row_packed_bytes);
    memory_region_close(&p->resident);
    ledger_release(p->ledger, PLACE_RAM, NIB_OWNER_STAGING, p->staging);
    ledger_release(p->ledger, PLACE_RAM, NIB_OWNER_TABLES, p->tables);
    mem_free(p->state);
    mem_free(p->views);
    mem_free(p->streamed.pages);
    mem_free(p->streamed.first);
    mem_free(p->copied);
    mem_free(p);
}

/* Whether page i is resident and passes the filter. */
static bool is_of(const pager *p, int i, const page_filter *of) {
    return p->layout.pages[i].block == of->block && pager_own(p, i) && (!of->pages || of->pages[i] == of->in);
}

bool pager_resident(const pager *p, page_filter of, int *i, void **at, uint64_t *bytes) {
    while (*i < p->layout.n_page && !is_of(p, *i, &of))
        ++*i;
    if (*i == p->layout.n_page)
        return false;
    uint8_t *first = p->state[*i].resident;
    for (*bytes = 0; *i < p->layout.n_page && is_of(p, *i, &of) && p->state[*i].resident == first + *bytes;
         ++*i)
        *bytes += p->layout.pages[*i].bytes;
    *at = first;
    return true;
}

uint64_t pager_drop(pager *p, page_filter of) {
    uint64_t bytes, sum = 0;
    void *at;
    for (int i = 0; pager_resident(p, of, &i, &at, &bytes); sum += bytes)
        mem_discard(at, (size_t)bytes);
    memory_region_untouch(&p->resident, sum);
    return sum;
}

void *pager_restored(pager *p, int b, int w) {
    const uint8_t *at = pager_views(p, b)[w].data;
    return at ? p->map + (at - p->map) : NULL;
}

void pager_restore(pager *p, page_filter of) {
    uint64_t bytes, sum = 0;
    void *at;
    for (int i = 0; pager_resident(p, of, &i, &at, &bytes);)
        sum += bytes;
    memory_region_touch(&p->resident, p->resident.touched + sum);
}
