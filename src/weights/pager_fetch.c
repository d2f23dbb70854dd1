/* pager_fetch.c - the functions of an open pager that back ends call: views, fetching of pages, look-up of
 * rows. */
#include "weights/pager_parts.h"

#include <assert.h>

/* Logs the loss of the packed file, which the reader has detected. The log function must be called on the
 * caller's thread. */
static void log_lost(pager *p) {
    if (atomic_exchange(&p->packed_lost, false))
        log_line(p->log, "the packed file cannot be read or is damaged: the model's files are read instead");
}

void pager_expect_expert(pager *p, int b, int e, float share) {
    if (p->experts)
        experts_expect(p->experts, b, e, share);
}

void pager_count_expert(pager *p, int b, int w, int e, int64_t n_row) {
    p->state[page_layout_place(&p->layout, b, w)->first_page + e].n_row += n_row;
}

int64_t pager_expert_rows(const pager *p, int b, int e) {
    const block *of = layout_block(p->layout.of, b);
    int64_t most = 0;
    for (int w = 0; w < of->n_weight; w++)
        if (of->weights[w].n_expert > 1 && of->weights[w].shared_block < 0)
            most = NUM_MAX(most, p->state[page_layout_place(&p->layout, b, w)->first_page + e].n_row);
    return most;
}

void pager_begin(pager *p, const visits *pass) {
    if (p->reader)
        reader_begin(p->reader, pass);
}

void pager_end(pager *p) {
    if (p->reader)
        reader_end(p->reader);
}

const view *pager_views(const pager *p, int b) {
    return p->views + p->layout.first_weight[b];
}

void pager_pin(pager *p, const visit *at, const visits *rest, const view **views) {
    assert(!p->now.pinned);
    log_lost(p);
    p->now = (fetched){.pinned = true,
                       .at = *at,
                       .rest = *rest,
                       .use = -1,
                       .next = p->streamed.first[at->block],
                       .page = -1,
                       .expert = -1};
    *views = pager_views(p, at->block);
}

void pager_unpin(pager *p) {
    assert(p->now.pinned && p->now.use < 0);
    if (p->experts)
        experts_forget(p->experts);
    p->now.pinned = false;
}

bool pager_reads(const pager *p, int b) {
    for (int i = p->streamed.first[b]; i < p->streamed.first[b + 1]; i++)
        if (!atomic_load(&p->copied[p->streamed.pages[i]]))
            return true;
    return false;
}

void pager_set_copied(pager *p, int b, int w, bool copied) {
    const weight_place *at = page_layout_place(&p->layout, b, w);
    for (int i = 0; i < at->n_page; i++)
        atomic_store(&p->copied[at->first_page + i], copied);
}

/* Number of resident pages of the matrix; they are its first ones. */
static int n_resident(const pager *p, const weight_place *at) {
    int n = 0;
    while (n < at->n_page && p->state[at->first_page + n].resident)
        n++;
    return n;
}

/* Whether a matrix is a stack whose experts come and go. */
static bool is_moving(const pager *p, const weight_place *at) {
    return p->experts && at->n_page > 0 && p->layout.pages[at->first_page].chosen;
}

int pager_n_piece(const pager *p, int b, int w) {
    const weight_place *at = page_layout_place(&p->layout, b, w);
    if (is_moving(p, at))
        return at->n_page;
    int n = n_resident(p, at);
    return at->n_page - n + (n > 0);
}

/* Index of the next use of this page by the pinned block. */
static int use_of(const pager *p, int page) {
    const int b = p->now.at.block, first = p->streamed.first[b], end = p->streamed.first[b + 1];
    for (int i = 0; i < end - first; i++) {
        const int use = first + (p->now.next - first + i) % (end - first);
        if (p->streamed.pages[use] == page)
            return use;
    }
    return -1;
}

static page_cursor cursor_of(const pager *p, int use) {
    return (page_cursor){.at = p->now.at, .rest = p->now.rest, .i = use};
}

/* Sets the views of the whole matrices in a page; data: the page, or NULL when it is released. */
static void patch(pager *p, int page, const uint8_t *data) {
    const page_layout *l = &p->layout;
    const int b = p->now.at.block;
    for (int i = 0; i < layout_block(p->layout.of, b)->n_weight; i++) {
        const weight_place *at = page_layout_place(l, b, i);
        if (at->n_page == 1 && at->first_page == page)
            p->views[l->first_weight[b] + i].data = data ? data + at->offset : NULL;
    }
}

static nib_status fetch_expert(pager *p, int b, int w, int32_t e, pager_piece *out, nib_error *err) {
    const expert_use use = {e, 1};
    int n;
    NIB_TRY(experts_ask(p->experts, b, &use, 1, 1, true, err));
    NIB_TRY(experts_take(p->experts, b, &p->now.expert, 1, &n, err));
    out->v = pager_expert(p, b, w, e);
    out->first_row = e * out->v.n;
    return NIB_OK;
}

nib_status pager_ask_experts(pager *p, const expert_use *uses, int n_use, int64_t n_row, bool in_order,
                             nib_error *err) {
    assert(p->now.pinned);
    return experts_ask(p->experts, p->now.at.block, uses, n_use, n_row, in_order, err);
}

nib_status pager_take_experts(pager *p, int32_t *taken, int max, int *n, nib_error *err) {
    return experts_take(p->experts, p->now.at.block, taken, max, n, err);
}

void pager_end_experts(pager *p, const int32_t *taken, int n) {
    experts_end(p->experts, p->now.at.block, taken, n);
}

view pager_expert(const pager *p, int b, int w, int32_t e) {
    return experts_view(p->experts, b, w, e);
}

nib_status pager_fetch(pager *p, int b, int w, int piece, pager_piece *out, nib_error *err) {
    const weight_place *at = page_layout_place(&p->layout, b, w);
    if (is_moving(p, at))
        return fetch_expert(p, b, w, piece, out, err);
    const view *whole = &p->views[p->layout.first_weight[b] + w];
    const int kept = n_resident(p, at);
    assert(p->now.pinned && p->now.at.block == b && p->now.use < 0 && at->n_page > 0);
    if (kept > 0 && piece == 0) {
        const int64_t n = kept == at->n_page ? whole->n : kept * at->page_rows;
        *out = (pager_piece){{p->state[at->first_page].resident + at->offset, whole->format, n, whole->k}, 0};
        return NIB_OK;
    }
    const int i = piece - (kept > 0) + kept, page = at->first_page + i;
    const int use = use_of(p, page);
    uint8_t *data;
    assert(i < at->n_page && use >= 0);
    const page_cursor cursor = cursor_of(p, use);
    NIB_TRY(reader_pin(p->reader, &cursor, &data, &p->wait_s, err));
    p->now.use = use;
    p->now.next = use + 1;
    const int64_t first = i * at->page_rows;
    const int64_t n = i == at->n_page - 1 ? whole->n - first : at->page_rows;
    *out = (pager_piece){{data + at->offset, whole->format, n, whole->k}, first};
    if (at->n_page == 1) {
        p->now.page = page;
        patch(p, page, data);
    }
    return NIB_OK;
}

/* An expert's place may get another one at once, so its copy is waited for. */
static nib_status end_expert(pager *p, device *on, nib_error *err) {
    device_mark copied;
    nib_status status = on ? on->kind->mark(on, DEVICE_LOAD_WEIGHTS, &copied, err) : NIB_OK;
    if (on && status == NIB_OK)
        status = on->kind->wait(on, copied, err);
    pager_end_experts(p, &p->now.expert, 1);
    p->now.expert = -1;
    return status;
}

nib_status pager_release_to(pager *p, device *on, nib_error *err) {
    nib_status status = p->now.expert >= 0 ? end_expert(p, on, err) : NIB_OK;
    if (p->now.page >= 0)
        patch(p, p->now.page, NULL);
    p->now.page = -1;
    if (p->now.use >= 0) {
        const page_cursor cursor = cursor_of(p, p->now.use);
        status = reader_unpin(p->reader, &cursor, on, err);
    }
    p->now.use = -1;
    return status;
}

void pager_release(pager *p) {
    pager_release_to(p, NULL, NULL);
}

bool pager_ring_memory(const pager *p, void **at, uint64_t *bytes) {
    if (p->reader)
        reader_memory(p->reader, at, bytes);
    return p->reader != NULL;
}

/* Reads and packs a row into p->row_packed. */
static nib_status read_row(pager *p, const weight *w, int64_t r, nib_error *err) {
    const load_target to = {p->row_packed, 1, 0};
    const load_job job = {.w = w, .n_row = 1};
    NIB_TRY(loader_check_unchanged(p->loader, err));
    NIB_TRY(loader_matrix(p->loader, w, r, 1, &to, &p->row_buffer, err));
    atomic_fetch_add(&p->bytes_streamed, pager_job_bytes(&job));
    return NIB_OK;
}

/* A view of the resident page that contains row *r; data is NULL if it is not resident. *r becomes the row's
 * index in the view. */
static view resident_row(const pager *p, int b, int w, int64_t *r) {
    const weight *whole = pager_weight(p, b, w);
    const weight_place *at = page_layout_place(&p->layout, b, w);
    const int page = at->first_page + (int)(*r / at->page_rows);
    const uint8_t *data = p->state[page].resident;
    const int64_t first = (page - at->first_page) * at->page_rows;
    *r -= first;
    return (view){data ? data + at->offset : NULL, whole->format,
                  page == at->first_page + at->n_page - 1 ? whole->n - first : at->page_rows, whole->k};
}

bool pager_read_resident_row(const pager *p, int b, int w, int64_t r, float *out) {
    page_layout_own(p->layout.of, &b, &w);
    const view v = resident_row(p, b, w, &r);
    if (!v.data)
        return false;
    pack_read_row(&v, r, out);
    return true;
}

nib_status pager_read_row(pager *p, int b, int w, int64_t r, float *out, nib_error *err) {
    if (pager_read_resident_row(p, b, w, r, out))
        return NIB_OK;
    page_layout_own(p->layout.of, &b, &w);
    const weight *whole = pager_weight(p, b, w);
    if (!panel_reader_row(p, whole, r, p->row_packed))
        NIB_TRY(read_row(p, whole, r, err));
    pack_read_row(&(view){p->row_packed, whole->format, 1, whole->k}, 0, out);
    return NIB_OK;
}

bool pager_streams(const pager *p) {
    return p->reader || p->experts;
}

nib_status pager_check_files(const pager *p, nib_error *err) {
    if (p->experts) /* their places change meanwhile */
        return loader_check_unchanged(p->loader, err);
    for (int i = 0; i < p->layout.n_page; i++)
        if (!p->state[i].resident)
            return loader_check_unchanged(p->loader, err);
    return NIB_OK;
}

pager_bytes pager_where(const pager *p, int b, int w, const bool *copied) {
    const weight *own = pager_weight(p, b, w);
    const weight_place *at = page_layout_place(&p->layout, b, w);
    pager_bytes out = {0};
    if (own->shared_block >= 0)
        return out;
    if (own->vector)
        out.kept = page_layout_bytes(own, 1);
    for (int i = 0; i < at->n_page; i++) {
        const int64_t n = i == at->n_page - 1 ? own->n - i * at->page_rows : at->page_rows;
        *(copied && copied[at->first_page + i]    ? &out.copied
          : p->state[at->first_page + i].resident ? &out.kept
                                                  : &out.on_disk) += page_layout_bytes(own, n);
    }
    return out;
}

void pager_get_stats(const pager *p, pager_stats *out) {
    *out = (pager_stats){.bytes_loaded = p->bytes_loaded,
                         .bytes_streamed = atomic_load(&p->bytes_streamed),
                         .pass_bytes = p->pass_bytes,
                         .wait_s = p->wait_s,
                         .read_s = (p->reader ? reader_busy(p->reader) : 0) +
                                   (p->experts ? experts_busy(p->experts) : 0),
                         .n_expert_use = p->experts ? experts_counts(p->experts)->n_used : 0,
                         .n_expert_hit = p->experts ? experts_counts(p->experts)->n_hit : 0,
                         .packed = p->packed != NULL};
}
