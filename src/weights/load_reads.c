/* load_reads.c - see load_reads.h. */
#include "weights/load_reads.h"

#include "base/num.h"

#include <string.h>

/* Maximum number of unused bytes between two runs that share a read: reading them takes about as long as the
 * fixed cost of a read (docs/optimisation-log.md: 7 microseconds). */
#define GAP ((uint64_t)16 << 10)

static bool joins(const load_read *a, const load_read *b) {
    return a->file == b->file && a->begin <= b->end + GAP && b->begin <= a->end + GAP;
}

/* Joins a run to read i, which may then join with other reads. */
static void extend(load_reads *r, int i, load_read with) {
    for (int j = i; j < r->n;) {
        if (!joins(&r->list[j], &with)) {
            j++;
            continue;
        }
        const load_read *old = &r->list[j];
        with.begin = NUM_MIN(with.begin, old->begin);
        with.end = NUM_MAX(with.end, old->end);
        with.useful += old->useful;
        r->list[j] = r->list[--r->n];
        j = 0;
    }
    r->list[r->n++] = with;
}

static bool add_run(load_reads *r, load_read run) {
    int i = 0;
    while (i < r->n && !joins(&r->list[i], &run))
        i++;
    if (i < r->n)
        extend(r, i, run);
    else if (r->n < MAX_LOAD_READS)
        r->list[r->n++] = run;
    else
        return false;
    return true;
}

bool load_reads_add(load_reads *r, const weight *w, int64_t first, int64_t n_row) {
    int64_t row, left;
    const uint64_t each = loader_row_bytes(w);
    if (w->transposed || w->vector)
        return false;
    for (int64_t i = 0; i < n_row; i += left) {
        const weight_piece *p = loader_piece(w, first + i, &row, &left);
        if (!p || p->tensor->packed) /* computed, in no file */
            return false;
        left = NUM_MIN(left, n_row - i);
        const uint64_t begin = p->tensor->offset + (uint64_t)row * each, bytes = (uint64_t)left * each;
        if (!add_run(r, (load_read){p->tensor->file, begin, begin + bytes, bytes, 0}))
            return false;
    }
    return true;
}

static uint64_t align_down(uint64_t n) {
    return n - n % FILE_ALIGN;
}

static uint64_t align_up(uint64_t n) {
    return align_down(n + FILE_ALIGN - 1);
}

uint64_t load_reads_place(load_reads *r) {
    uint64_t at = 0;
    for (int i = 0; i < r->n; i++) {
        load_read *one = &r->list[i];
        one->at = at;
        at += align_up(one->end) - align_down(one->begin);
    }
    return at;
}

load_extent load_reads_extent(const load_reads *r, int i, const loader *ld) {
    const load_read *one = &r->list[i];
    const uint64_t begin = align_down(one->begin);
    return (load_extent){loader_file(ld, one->file), begin, align_up(one->end) - begin, one->end - begin};
}

/* Address in the buffer of byte `at` of a file. */
static const uint8_t *place_in(const load_reads *r, int which, uint64_t at, const uint8_t *buffer) {
    const load_read *one = r->list;
    while (one->file != which || at < one->begin || at >= one->end)
        one++;
    return buffer + one->at + (at - align_down(one->begin));
}

void load_reads_pack(const load_reads *r, const weight *w, int64_t first, int64_t n_row,
                     const load_target *to, const uint8_t *buffer, const load_buffer *b) {
    const void *rows[LOADER_MAX_ROWS];
    const uint64_t each = loader_row_bytes(w), skipped = loader_skipped_bytes(w);
    int64_t row, left;
    for (int64_t i = 0; i < n_row; i += left) {
        const weight_piece *p = loader_piece(w, first + i, &row, &left);
        left = NUM_MIN(left, n_row - i);
        const uint8_t *at = place_in(r, p->tensor->file, p->tensor->offset + (uint64_t)row * each, buffer);
        for (int64_t j = 0; j < left; j++)
            rows[i + j] = at + (uint64_t)j * each + skipped;
    }
    loader_pack_rows(w, rows, 0, n_row, to, b);
}
