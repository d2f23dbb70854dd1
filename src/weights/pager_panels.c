/* pager_panels.c - reads panels of a matrix that is looked up by row (an output head of which only the best
 * rows are computed), from memory or from the model's files. Panels that are close in the file share one
 * read, gaps included. So a few panels cost little, and many cost no more than a sequential read of the
 * matrix. */
#include "weights/pager_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

const weight *pager_looked_up(const layout *lay) {
    const block *head = layout_block(lay, layout_n_block(lay) - 1);
    for (int i = 0; i < head->program.n_op; i++) {
        int b = layout_n_block(lay) - 1, w = head->program.ops[i].w;
        if (head->program.ops[i].kind != OP_SHORTLIST)
            continue;
        page_layout_own(lay, &b, &w);
        return &layout_block(lay, b)->weights[w];
    }
    return NULL;
}

enum {
    DEPTH = MAX_READ_QUEUE,
    READ = 64 << 10, /* bytes of one read, at least a panel's */
    GAP = 16 << 10   /* maximum gap within a read: reading it takes as long as starting another read */
};

/* Sets the bytes of a read, of a panel in the file, and of a packed panel; false: no matrix is looked up. */
static bool sizes(const layout *lay, panel_reader *out) {
    const weight *w = pager_looked_up(lay);
    uint64_t row = 0;
    if (!w || !type_row_bytes(w->type, w->k, &row) ||
        !pack_bytes(&w->format, PACK_PANEL, w->k, &out->packed_each))
        return false;
    out->w = w;
    out->file_each = row * PACK_PANEL;
    out->raw_each = (uint64_t)num_round_up((int64_t)out->file_each, FILE_ALIGN) + FILE_ALIGN;
    out->raw_each = NUM_MAX(out->raw_each, (uint64_t)READ);
    return true;
}

uint64_t panel_reader_bytes(const layout *lay) {
    panel_reader r;
    return sizes(lay, &r) ? r.raw_each * DEPTH + r.packed_each : 0;
}

nib_status panel_reader_open(panel_reader *r, const layout *lay, nib_error *err) {
    if (!sizes(lay, r))
        return NIB_OK;
    r->raw = mem_map(r->raw_each * DEPTH);
    r->packed = mem_map(r->packed_each);
    if (!r->raw || !r->packed)
        return nib_fail_nomem(err, r->raw_each * DEPTH + r->packed_each, "panels of the output head");
    return read_queue_open(DEPTH, 0, r->raw, r->raw_each * DEPTH, &r->queue, err);
}

void panel_reader_close(panel_reader *r) {
    read_queue_close(r->queue);
    if (r->raw)
        mem_unmap(r->raw, r->raw_each * DEPTH);
    if (r->packed)
        mem_unmap(r->packed, r->packed_each);
    memset(r, 0, sizeof *r);
}

static int64_t rows_of(const weight *w, int32_t panel) {
    return NUM_MIN(w->n - (int64_t)panel * PACK_PANEL, (int64_t)PACK_PANEL);
}

bool pager_panel(const pager *p, int b, int w, int32_t panel, view *out) {
    page_layout_own(p->layout.of, &b, &w);
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

/* A read that contains panels list[first, first + n). Its rows are recorded in panel_reader.came. */
typedef struct flight {
    int first, n;
} flight;

typedef struct read_round {
    pager *p;
    const weight *w;
    const int32_t *list;
    int n, next; /* length of the list; index of the next panel to be read */
    pager_panel_fn each;
    void *user;
    flight flights[DEPTH];
    int idle[DEPTH], n_idle;
} read_round;

static int64_t row_of(int32_t panel) {
    return (int64_t)panel * PACK_PANEL;
}

/* Number of panels from list[first] on that share one read. */
static int group(const read_round *t, int first) {
    const panel_reader *r = &t->p->panels;
    int n = 1;
    while (first + n < t->n) {
        const uint64_t whole = (uint64_t)(t->list[first + n] + 1 - t->list[first]) * r->file_each;
        const uint64_t gap = (uint64_t)(t->list[first + n] - t->list[first + n - 1] - 1) * r->file_each;
        if (whole + FILE_ALIGN > r->raw_each || gap > GAP)
            break;
        n++;
    }
    return n;
}

/* Number of rows from the first panel to the end of the last one. */
static int64_t span(const read_round *t, int first, int n) {
    const int32_t last = t->list[first + n - 1];
    return row_of(last) + rows_of(t->w, last) - row_of(t->list[first]);
}

static void hand_on(const read_round *t, int i) {
    const view v = {t->p->panels.packed, t->w->format, rows_of(t->w, t->list[i]), t->w->k};
    t->each(t->user, t->list[i], &v);
}

/* Reads a panel whose rows do not fit one read. */
static nib_status in_turn(const read_round *t, int i, nib_error *err) {
    const int64_t n = rows_of(t->w, t->list[i]);
    const load_target to = {t->p->panels.packed, n, 0};
    NIB_TRY(loader_matrix(t->p->loader, t->w, row_of(t->list[i]), n, &to, &t->p->row_buffer, err));
    hand_on(t, i);
    return NIB_OK;
}

/* Starts the next read; a panel that does not fit one read is read at once. */
static nib_status start(read_round *t, nib_error *err) {
    panel_reader *r = &t->p->panels;
    const int tag = t->idle[t->n_idle - 1], n = group(t, t->next);
    load_extent *e = &r->came[tag].extent;
    const load_job rows = {.w = t->w, .n_row = span(t, t->next, n)};
    t->flights[tag] = (flight){.first = t->next, .n = n};
    r->came[tag].n = 0;
    atomic_fetch_add(&t->p->bytes_streamed, pager_job_bytes(&rows));
    if (!loader_extent(t->p->loader, t->w, row_of(t->list[t->next]), rows.n_row, r->raw_each, e)) {
        read_queue_send(r->queue);         /* keeps the disk busy meanwhile */
        return in_turn(t, t->next++, err); /* on its own: its neighbours may be elsewhere */
    }
    read_request what = {e->f, r->raw + (uint64_t)tag * r->raw_each, e->offset, e->n_byte, e->min};
    if (!file_is_direct(e->f))
        what.n_byte = e->min;
    read_queue_submit(r->queue, tag, &what);
    t->n_idle--;
    t->next += n;
    return NIB_OK;
}

/* Waits for a read and reports its panels; dead: after a failure panels are not reported. */
static nib_status land(read_round *t, bool dead, nib_error *err) {
    panel_reader *r = &t->p->panels;
    int tag;
    const nib_status status = read_queue_wait(r->queue, &tag, err);
    const flight *f = &t->flights[tag];
    panel_rows *came = &r->came[tag];
    t->idle[t->n_idle++] = tag;
    if (status == NIB_OK) {
        came->first = row_of(t->list[f->first]);
        came->n = span(t, f->first, f->n);
    }
    for (int i = f->first; i < f->first + f->n && status == NIB_OK && !dead; i++) {
        const int64_t n = rows_of(t->w, t->list[i]);
        const load_target to = {r->packed, n, 0};
        loader_pack(t->w, row_of(t->list[i]), n, &to, &came->extent, r->raw + (uint64_t)tag * r->raw_each,
                    &t->p->row_buffer);
        hand_on(t, i);
    }
    return status;
}

nib_status pager_read_panels(pager *p, int b, int w, const int32_t *panels, int n, pager_panel_fn each,
                             void *user, nib_error *err) {
    page_layout_own(p->layout.of, &b, &w);
    read_round t = {.p = p, .w = pager_weight(p, b, w), .list = panels, .n = n, .each = each, .user = user};
    nib_status status = n ? loader_check_unchanged(p->loader, err) : NIB_OK;
    for (int i = 0; i < DEPTH; i++)
        t.idle[t.n_idle++] = i;
    while ((status == NIB_OK && t.next < n) || t.n_idle < DEPTH) {
        nib_error why;
        const bool starts = status == NIB_OK && t.next < n && t.n_idle > 0;
        const nib_status one = starts ? start(&t, &why) : land(&t, status != NIB_OK, &why);
        if (one != NIB_OK && status == NIB_OK) {
            status = one;
            if (err)
                *err = why;
        }
    }
    return status;
}

bool panel_reader_row(const pager *p, const weight *w, int64_t r, uint8_t *out) {
    const panel_reader *from = &p->panels;
    for (int tag = 0; tag < DEPTH && w == from->w; tag++) {
        const panel_rows *came = &from->came[tag];
        const load_target to = {out, 1, 0};
        if (r < came->first || r >= came->first + came->n)
            continue;
        loader_pack(w, r, 1, &to, &came->extent, from->raw + (uint64_t)tag * from->raw_each, &p->row_buffer);
        return true;
    }
    return false;
}
