/* load_runs.c - see load_runs.h. */
#include "weights/load_runs.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

/* Maximum number of unused bytes between two runs that share a read (load_reads.c). */
#define GAP ((uint64_t)16 << 10)

static int64_t n_rows(const weight *w) {
    return w->vector ? w->k : w->n;
}

bool load_runs_has(const weight *w) {
    int64_t row = 0;
    if (w->shared_block >= 0 || w->transposed ||
        (w->vector && (w->n_piece != 1 || loader_check_vector(w, NULL) != NIB_OK)))
        return false;
    for (int i = 0; i < w->n_piece; i++) {
        if ((!w->vector && row % PACK_PANEL) || w->pieces[i].tensor->packed)
            return false;
        row += w->pieces[i].n_row;
    }
    return row == n_rows(w);
}

/* Lists the runs of all weights; with out NULL only counts them. */
static int list(const layout *lay, load_run *out) {
    int n = 0;
    for (int b = 0; b < layout_n_block(lay); b++)
        for (int i = 0; i < layout_block(lay, b)->n_weight; i++) {
            const weight *w = &layout_block(lay, b)->weights[i];
            int64_t row = 0;
            for (int j = 0; load_runs_has(w) && j < w->n_piece; row += w->pieces[j++].n_row, n++) {
                const weight_piece *p = &w->pieces[j];
                const uint64_t before = loader_row_bytes(w) * (uint64_t)p->first_row;
                if (out)
                    out[n] = (load_run){w, b, i, p->tensor->file, p->tensor->offset + before, row, p->n_row};
            }
        }
    return n;
}

static int by_place(const void *a, const void *b) {
    const load_run *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->block != y->block ? x->block - y->block : x->index - y->index;
}

uint64_t load_runs_bytes(const layout *lay) {
    return (uint64_t)list(lay, NULL) * sizeof(load_run);
}

nib_status load_runs_open(load_runs *r, const layout *lay, nib_error *err) {
    r->n = list(lay, NULL);
    r->all = mem_array((size_t)r->n, sizeof *r->all);
    if (!r->all)
        return nib_fail_nomem(err, (uint64_t)r->n * sizeof *r->all, "the order of the weights");
    list(lay, r->all);
    qsort(r->all, (size_t)r->n, sizeof *r->all, by_place);
    return NIB_OK;
}

void load_runs_close(load_runs *r) {
    mem_free(r->all);
    memset(r, 0, sizeof *r);
}

/* Consecutive rows from a spot on with one destination. */
typedef struct part {
    const load_run *run;
    int64_t row, n; /* rows of the weight */
    load_target to;
    bool wanted;
} part;

static bool part_at(const load_runs *r, load_place_fn place, void *user, load_spot *at, part *out) {
    while (at->run < r->n && at->row == r->all[at->run].n_row)
        *at = (load_spot){at->run + 1, 0};
    if (at->run == r->n)
        return false;
    const load_run *run = &r->all[at->run];
    int64_t n = 0;
    *out = (part){.run = run, .row = run->first + at->row};
    out->wanted = place(user, run, out->row, &out->to, &n);
    out->n = NUM_MIN(n, run->n_row - at->row);
    return true;
}

static uint64_t part_begin(const part *p) {
    return p->run->begin + (uint64_t)(p->row - p->run->first) * loader_row_bytes(p->run->w);
}

/* Number of its rows that end before `limit` in the file. */
static int64_t rows_before(const part *p, uint64_t limit) {
    const uint64_t begin = part_begin(p), each = loader_row_bytes(p->run->w);
    const int64_t n = begin < limit ? (int64_t)((limit - begin) / each) : 0;
    if (n >= p->n)
        return p->n;
    return p->run->w->vector ? 0 : n / PACK_PANEL * PACK_PANEL;
}

bool load_runs_next(const load_runs *r, const loader *ld, load_place_fn place, void *user, uint64_t max,
                    load_spot *at, load_span *out) {
    uint64_t begin = 0, end = 0;
    const load_run *first = NULL;
    part p;
    memset(out, 0, sizeof *out);
    while (part_at(r, place, user, at, &p)) {
        const uint64_t here = part_begin(&p);
        if (!p.wanted && !first) {
            at->row += p.n;
            continue;
        }
        if (!p.wanted || (first && (p.run->file != first->file || here < end || here > end + GAP)))
            break;
        if (!first) {
            first = p.run;
            begin = here - here % FILE_ALIGN;
            out->at = *at;
        }
        const int64_t n = rows_before(&p, begin + max);
        const uint64_t bytes = (uint64_t)n * loader_row_bytes(p.run->w);
        at->row += n;
        out->useful += bytes;
        end = n ? here + bytes : end;
        if (n < p.n)
            break;
    }
    if (!first)
        return false;
    out->end = *at;
    const uint64_t whole = (end - begin + FILE_ALIGN - 1) / FILE_ALIGN * FILE_ALIGN;
    out->from = (load_extent){loader_file(ld, first->file), begin, whole, end - begin};
    return true;
}

static bool before(load_spot a, load_spot b) {
    return a.run != b.run ? a.run < b.run : a.row < b.row;
}

void load_runs_pack(const load_runs *r, load_place_fn place, void *user, const load_span *span,
                    const uint8_t *raw, const load_buffer *b) {
    load_spot at = span->at;
    part p;
    while (before(at, span->end) && part_at(r, place, user, &at, &p) && before(at, span->end)) {
        if (at.run == span->end.run)
            p.n = NUM_MIN(p.n, span->end.row - at.row);
        if (!p.run->w->vector)
            p.n = NUM_MIN(p.n, (int64_t)LOADER_MAX_ROWS);
        loader_pack(p.run->w, p.run->w->vector ? 0 : p.row, p.n, &p.to, &span->from, raw, b);
        at.row += p.n;
    }
}
