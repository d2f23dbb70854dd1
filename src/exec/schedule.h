/* schedule.h - the order of the cells of one pass. A cell is a block and the rows of the batch that go
 * through it together; another order of the same cells is another schedule, and the step loop does not
 * change.
 *
 * A batch is made of segments: rows of one sequence, one after the other, with its own cache and positions.
 * A sequence that decodes is a segment of one row, a prompt one of many. This schedule walks the blocks, and
 * inside a block the rows of all segments in groups of n_cell, so a block is visited once a pass and its
 * products see as many rows as there are. The last block, the head, sees only the rows whose logits are
 * wanted; and of all others the last layer is asked for keys and values alone, since nothing else of it is
 * ever read (cache_only). */
#ifndef NIB_EXEC_SCHEDULE_H
#define NIB_EXEC_SCHEDULE_H

#include "base/num.h"
#include "tiers/kv_table.h"

/* Rows of one sequence that are computed in a pass. */
typedef struct segment {
    kv_table *kv;
    const int32_t *tokens; /* [n_row] */
    int64_t position;      /* of its first row in the sequence */
    int64_t length;        /* of the whole sequence, as far as it is known: rotary frequencies depend on it */
    int64_t row, n_row;    /* rows [row, row + n_row) of the pass */
    int64_t head_row;      /* logits for its rows [head_row, n_row); n_row: none */
} segment;

typedef struct cell {
    int block;
    int64_t row, n_row; /* rows of the pass; of the head: counted among those whose logits are wanted */
    bool cache_only;    /* of a layer: nothing but their keys and values is wanted */
} cell;

typedef struct schedule {
    int n_block;
    const segment *segments; /* [n_segment], their rows one after the other */
    int n_segment;
    int64_t n_cell, n_head; /* rows of one cell; of one of the head's */
    bool whole;             /* every row goes through every op of all layers */
    bool apart;             /* no cell has rows of two segments */
    int block;
    int64_t row; /* where the next cell begins */
} schedule;

/* first_block: the pass begins there, with what the residual stream holds. */
static inline schedule schedule_begin(int n_block, int first_block, const segment *segments, int n_segment,
                                      int64_t n_cell, int64_t n_head, bool whole, bool apart) {
    return (schedule){.n_block = n_block,
                      .segments = segments,
                      .n_segment = n_segment,
                      .n_cell = n_cell,
                      .n_head = n_head,
                      .whole = whole,
                      .apart = apart,
                      .block = first_block};
}

/* Rows of a segment in a layer, or in the head. */
static inline int64_t schedule_rows(const segment *s, bool head) {
    return head ? s->n_row - s->head_row : s->n_row;
}

/* Times a block is visited by whole cells. */
static inline int schedule_visits(const schedule *s, bool head) {
    const int64_t most = head ? s->n_head : s->n_cell;
    int64_t n = 0, rows = 0;
    for (int i = 0; i < s->n_segment; i++) {
        n += num_div_up(schedule_rows(&s->segments[i], head), most);
        rows += schedule_rows(&s->segments[i], head);
    }
    return (int)(s->apart ? n : num_div_up(rows, most));
}
static inline int schedule_n_cell(const schedule *s) {
    return schedule_visits(s, false);
}
static inline int schedule_n_head(const schedule *s) {
    return schedule_visits(s, true);
}

/* The segment of a row, counted as cells of this kind count them; *row becomes the row of the segment. NULL:
 * there are no more. */
static inline const segment *schedule_find(const segment *segments, int n_segment, bool head, int64_t *row) {
    for (int i = 0; i < n_segment; i++) {
        const int64_t n = schedule_rows(&segments[i], head);
        if (*row < n) {
            *row += head ? segments[i].head_row : 0;
            return &segments[i];
        }
        *row -= n;
    }
    return NULL;
}

/* Rows from this one on, at most `most`, that are alike: with logits, or without. */
static inline int64_t schedule_alike(const schedule *s, int64_t row, int64_t most, bool *wanted) {
    const segment *of = schedule_find(s->segments, s->n_segment, false, &row),
                  *end = s->segments + s->n_segment;
    int64_t n = 0;
    *wanted = row >= of->head_row;
    for (; of < end && n < most; of++, row = 0) {
        const bool other = row < of->n_row && (row >= of->head_row) != *wanted;
        if (other)
            break;
        n += (*wanted ? of->n_row : of->head_row) - row;
        if (!*wanted && of->head_row < of->n_row)
            break;
    }
    return NUM_MIN(n, most);
}

static inline bool schedule_next(schedule *s, cell *out) {
    for (; s->block < s->n_block; s->block++, s->row = 0) {
        const bool head = s->block == s->n_block - 1, last_layer = s->block == s->n_block - 2 && s->block > 0;
        int64_t row = s->row, n = head ? s->n_head : s->n_cell, left = 0;
        bool wanted = true;
        const segment *of = schedule_find(s->segments, s->n_segment, head, &row);
        if (!of)
            continue;
        for (const segment *i = of; i < s->segments + s->n_segment && (i == of || !s->apart); i++)
            left += i == of ? of->n_row - row : schedule_rows(i, head);
        n = NUM_MIN(n, left);
        if (last_layer && !s->whole)
            n = schedule_alike(s, s->row, n, &wanted);
        *out = (cell){s->block, s->row, n, !wanted};
        s->row += n;
        return true;
    }
    return false;
}

/* Whether the next cell is of this block too. */
static inline bool schedule_stays(const schedule *s, int b) {
    schedule copy = *s;
    cell next;
    return schedule_next(&copy, &next) && next.block == b;
}

#endif
