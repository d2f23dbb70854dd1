/* visits.c - see visits.h. */
#include "schedule/visits.h"

bool visits_next(visits *v, visit *out) {
    if (!v->next || !v->next(v, out))
        return false;
    visits behind = *v;
    visit then;
    out->again = v->next(&behind, &then) && then.block == out->block;
    return true;
}

/* Number of rows of a segment in a layer, or in the head. */
static int64_t rows_of(const segment *s, bool head) {
    return head ? s->n_row - s->head_row : s->n_row;
}

int64_t segments_number(segment *segments, int n_segment) {
    int64_t row = 0, head_first = 0;
    for (int i = 0; i < n_segment; i++) {
        segments[i].row = row;
        segments[i].head_first = head_first;
        row += segments[i].n_row;
        head_first += rows_of(&segments[i], true);
    }
    return row;
}

/* The first segment whose rows end beyond the row, by bisection: a pass may have thousands of segments. */
const segment *visits_segment(const segment *segments, int n_segment, bool head, int64_t *row) {
    int low = 0, high = n_segment;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        const segment *s = &segments[middle];
        if ((head ? s->head_first : s->row) + rows_of(s, head) > *row)
            high = middle;
        else
            low = middle + 1;
    }
    if (low == n_segment)
        return NULL;
    *row -= head ? segments[low].head_first - segments[low].head_row : segments[low].row;
    return &segments[low];
}

/* Number of rows from `row` on, at most `max`, that all need logits or all do not. */
static int64_t alike(const visits *v, int64_t row, int64_t max, bool *wanted) {
    const segment *of = visits_segment(v->segments, v->n_segment, false, &row),
                  *end = v->segments + v->n_segment;
    int64_t n = 0;
    *wanted = row >= of->head_row;
    for (; of < end && n < max; of++, row = 0) {
        const bool other = row < of->n_row && (row >= of->head_row) != *wanted;
        if (other)
            break;
        n += (*wanted ? of->n_row : of->head_row) - row;
        if (!*wanted && of->head_row < of->n_row)
            break;
    }
    return NUM_MIN(n, max);
}

/* Whether rows of segment s may be in a visit whose first row is of segment `first`. */
static bool belongs(const visits *v, const segment *first, const segment *s) {
    return s == first || (!v->apart && (!v->by_role || s->generated == first->generated));
}

/* Sets *out to at most n_max of the block's rows from row `first` on; false: none. */
static bool rows_from(const visits *v, int64_t first, int64_t n_max, visit *out) {
    const bool head = v->block == v->n_block - 1, last_layer = v->block == v->n_block - 2 && v->block > 0;
    int64_t row = first, left = 0;
    bool wanted = true;
    const segment *of = visits_segment(v->segments, v->n_segment, head, &row);
    if (!of)
        return false;
    const int64_t max = NUM_MIN(head ? v->n_head : v->n_cell, n_max);
    for (const segment *i = of; i < v->segments + v->n_segment && left < max && belongs(v, of, i); i++)
        left += i == of ? of->n_row - row : rows_of(i, head);
    int64_t n = NUM_MIN(max, left);
    if (last_layer && !v->whole)
        n = alike(v, first, n, &wanted);
    *out = (visit){.block = v->block,
                   .row = first,
                   .n_row = n,
                   .cache_only = !wanted,
                   .generated = v->by_role && of->generated};
    return true;
}

/* The first row of the pass's first prompt; those of generated tokens are before it. */
static int64_t first_prompt(const visits *v) {
    int low = 0, high = v->n_segment;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (v->segments[middle].generated)
            low = middle + 1;
        else
            high = middle;
    }
    return low < v->n_segment ? v->segments[low].row : INT64_MAX;
}

/* Sets *out to prompt rows that are computed while the n rows of two cells are in flight; false: none. */
static bool take_beside(visits *v, int64_t n, visit *out) {
    const int64_t first = NUM_MAX(v->beside, first_prompt(v));
    if (n >= v->n_cell || !rows_from(v, first, v->n_cell - n, out))
        return false;
    out->bank = n;
    v->beside = first + out->n_row;
    return true;
}

/* Makes the whole visit of rows the next step of their two cells. One row is one cell. */
static void take_step(visits *v, visit *out) {
    static const struct {
        bool second, beside;
        visit_part part;
    } steps[] = {{.part = VISIT_BEFORE},
                 {.part = VISIT_BEFORE, .second = true},
                 {.beside = true},
                 {.part = VISIT_ATTENTION},
                 {.part = VISIT_AFTER},
                 {.part = VISIT_ATTENTION, .second = true},
                 {.part = VISIT_AFTER, .second = true}};
    const int64_t n = NUM_MIN(out->n_row, v->n_cut), first = n - n / 2;
    if (steps[v->step].second && first == n)
        v->step++;
    if (steps[v->step].beside) {
        v->step++;
        if (take_beside(v, n, out))
            return;
    }
    const int i = v->step;
    out->part = steps[i].part;
    out->bank = steps[i].second ? first : 0;
    out->row += out->bank;
    out->n_row = steps[i].second ? n - first : first;
    v->step = i + 1 < (int)NUM_COUNT(steps) - (first == n ? 2 : 0) ? i + 1 : 0;
    v->row += v->step == 0 ? n : 0;
}

/* The next rows of the list's block; false: none. */
static bool next_of_block(visits *v, visit *out) {
    if (!rows_from(v, v->row, INT64_MAX, out))
        return false;
    if (v->cut && v->cut[v->block] && out->generated) {
        take_step(v, out);
        return true;
    }
    if (v->beside > v->row && !rows_from(v, v->beside, INT64_MAX, out))
        return false;
    v->row = out->row + out->n_row;
    return true;
}

bool visits_by_block(visits *v, visit *out) {
    for (v->block = NUM_MAX(v->block, v->first); v->block < v->end; v->block++, v->row = v->beside = 0)
        if (!(v->left_out && v->left_out[v->block]) && next_of_block(v, out))
            return true;
    return false;
}

visits visits_of_one_row(int n_block, int first, int end) {
    static const segment one = {.n_row = 1};
    return (visits){.next = visits_by_block,
                    .n_block = n_block,
                    .first = first,
                    .end = end,
                    .segments = &one,
                    .n_segment = 1,
                    .n_cell = 1,
                    .n_head = 1};
}
