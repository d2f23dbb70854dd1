/* pager_panels.c - panels of a matrix that is looked up by row (a head whose best rows alone are computed):
 * from memory, or from the model's files, all that are asked for in flight at once: neighbours as one read.
 */
#include "tiers/pager_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

/* The matrix that a shortlist looks up; NULL: the model has none. */
static const weight *looked_up(const model *m) {
    const block *head = model_block(m, model_n_block(m) - 1);
    for (int i = 0; i < head->program.n_op; i++) {
        int b = model_n_block(m) - 1, w = head->program.ops[i].w;
        if (head->program.ops[i].kind != OP_SHORTLIST)
            continue;
        page_layout_own(m, &b, &w);
        return &model_block(m, b)->weights[w];
    }
    return NULL;
}

/* What one read and one packed panel take; false: nothing is looked up. */
static bool sizes(const model *m, uint64_t *raw, uint64_t *panel) {
    const weight *w = looked_up(m);
    uint64_t row = 0;
    if (!w || !type_row_bytes(w->type, w->k, &row) || !pack_bytes(&w->format, PACK_PANEL, w->k, panel))
        return false;
    *raw = (uint64_t)num_round_up((int64_t)(row * PACK_PANEL), FILE_ALIGN) + FILE_ALIGN;
    return true;
}

uint64_t panel_reader_bytes(const model *m) {
    uint64_t raw, panel;
    return sizes(m, &raw, &panel) ? (raw + panel) * PAGER_PANELS : 0;
}

nib_status panel_reader_open(panel_reader *r, const model *m, nib_error *err) {
    if (!sizes(m, &r->raw_each, &r->packed_each))
        return NIB_OK;
    const uint64_t n_raw = r->raw_each * PAGER_PANELS, n_packed = r->packed_each * PAGER_PANELS;
    r->raw = mem_map(n_raw);
    r->packed = mem_map(n_packed);
    if (!r->raw || !r->packed)
        return nib_fail_nomem(err, n_raw + n_packed, "panels of the output head");
    return read_queue_open(PAGER_PANELS, 0, r->raw, n_raw, &r->queue, err);
}

void panel_reader_close(panel_reader *r) {
    read_queue_close(r->queue);
    if (r->raw)
        mem_unmap(r->raw, r->raw_each * PAGER_PANELS);
    if (r->packed)
        mem_unmap(r->packed, r->packed_each * PAGER_PANELS);
    memset(r, 0, sizeof *r);
}

static int64_t rows_of(const weight *w, int32_t panel) {
    return NUM_MIN(w->n - (int64_t)panel * PACK_PANEL, (int64_t)PACK_PANEL);
}

bool pager_panel(const pager *p, int b, int w, int32_t panel, view *out) {
    page_layout_own(p->m, &b, &w);
    const weight *whole = pager_weight(p, b, w);
    const weight_place *at = page_layout_place(&p->layout, b, w);
    const int64_t row = (int64_t)panel * PACK_PANEL, page = row / at->page_rows;
    const uint8_t *data = p->state[at->first_page + page].resident;
    uint64_t each = 0;
    if (!data)
        return false;
    pack_bytes(&whole->format, PACK_PANEL, whole->k, &each);
    data += at->offset + (uint64_t)(row - page * at->page_rows) / PACK_PANEL * each;
    *out = (view){data, whole->format, rows_of(whole, panel), whole->k};
    return true;
}

/* Where panels [i, i + n) of the list, which are neighbours in the matrix, are packed. */
static load_target place(const pager *p, const weight *w, const int32_t *panels, int i, int n) {
    return (load_target){p->panels.packed + (uint64_t)i * p->panels.packed_each,
                         NUM_MIN(w->n - (int64_t)panels[i] * PACK_PANEL, (int64_t)n * PACK_PANEL), 0};
}

/* How many panels from i on are neighbours. */
static int run_length(const int32_t *panels, int i, int n) {
    int length = 1;
    while (i + length < n && panels[i + length] == panels[i] + length)
        length++;
    return length;
}

/* Rows that no single read brings, packed at once. */
static nib_status in_turn(pager *p, const weight *w, const int32_t *panels, int i, int n, nib_error *err) {
    const load_target to = place(p, w, panels, i, n);
    return loader_matrix(p->loader, w, (int64_t)panels[i] * PACK_PANEL, to.dst_n, &to, &p->row_buffer, err);
}

/* All that were submitted; the first error, after everything has ended. */
static nib_status collect(pager *p, const weight *w, const int32_t *panels, int n_panel,
                          const load_extent *extents, int n_flying, nib_error *err) {
    nib_status status = NIB_OK;
    for (int tag; n_flying > 0; n_flying--) {
        nib_error why;
        const nib_status one = read_queue_wait(p->panels.queue, &tag, &why);
        if (one != NIB_OK && status == NIB_OK) {
            status = one;
            *err = why;
        }
        if (one != NIB_OK)
            continue;
        const load_target to = place(p, w, panels, tag, run_length(panels, tag, n_panel));
        loader_pack(w, (int64_t)panels[tag] * PACK_PANEL, to.dst_n, &to, &extents[tag],
                    p->panels.raw + (uint64_t)tag * p->panels.raw_each, &p->row_buffer);
    }
    return status;
}

nib_status pager_read_panels(pager *p, int b, int w, const int32_t *panels, int n, view *out,
                             nib_error *err) {
    load_extent extents[PAGER_PANELS];
    int n_flying = 0;
    nib_status status = NIB_OK;
    page_layout_own(p->m, &b, &w);
    const weight *whole = pager_weight(p, b, w);
    NIB_TRY(loader_check_unchanged(p->loader, err));
    for (int i = 0, length; i < n; i += length) {
        length = run_length(panels, i, n);
        const load_target to = place(p, whole, panels, i, length);
        const load_job job = {.w = whole, .n_row = to.dst_n};
        atomic_fetch_add(&p->bytes_streamed, pager_job_bytes(&job));
        for (int k = i; k < i + length; k++)
            out[k] =
                (view){place(p, whole, panels, k, 1).dst, whole->format, rows_of(whole, panels[k]), whole->k};
        if (loader_extent(p->loader, whole, (int64_t)panels[i] * PACK_PANEL, to.dst_n,
                          p->panels.raw_each * (uint64_t)length, &extents[i])) {
            read_request what = {extents[i].f, p->panels.raw + (uint64_t)i * p->panels.raw_each,
                                 extents[i].offset, extents[i].n_byte, extents[i].least};
            if (!file_is_direct(extents[i].f))
                what.n_byte = extents[i].least;
            read_queue_submit(p->panels.queue, i, &what);
            n_flying++;
        } else if (status == NIB_OK) {
            status = in_turn(p, whole, panels, i, length, err);
        }
    }
    nib_error why;
    const nib_status flown = collect(p, whole, panels, n, extents, n_flying, &why);
    if (status == NIB_OK && flown != NIB_OK && err)
        *err = why;
    return status == NIB_OK ? flown : status;
}
