/* schedule.h - the order of the cells of one pass. A cell is a block, a segment and the rows of it that go
 * through the block together; another order of the same cells is another schedule, and the step loop does not
 * change.
 *
 * A pass is made of segments: rows of one sequence, with its own cache and positions. This schedule walks the
 * blocks, inside a block the segments, inside a segment its rows in groups of n_cell, so that a block is
 * visited once a pass however many sequences and rows there are. The last block, the head, sees only the rows
 * whose logits are wanted; and of all others the last layer is asked for keys and values alone, since nothing
 * else of it is ever read (cache_only). */
#ifndef NIB_RUN_SCHEDULE_H
#define NIB_RUN_SCHEDULE_H

#include "base/num.h"
#include "run/kv.h"

/* Rows of one sequence that are computed in a pass. */
typedef struct segment {
    kv_cache *kv;
    const int32_t *tokens; /* [n_row] */
    int64_t position;      /* of its first row in the sequence */
    int64_t length;        /* of the whole sequence, as far as it is known: rotary frequencies depend on it */
    int64_t row, n_row;    /* rows [row, row + n_row) of the pass */
    int64_t head_row;      /* logits for its rows [head_row, n_row); n_row: none */
} segment;

typedef struct cell {
    int block, segment;
    int64_t row, n_row; /* rows of the segment */
    bool cache_only;    /* of a layer: nothing but their keys and values is wanted */
} cell;

typedef struct schedule {
    int n_block;
    const segment *segments; /* [n_segment] */
    int n_segment;
    int64_t n_cell, n_head; /* rows of one cell; of one of the head's */
    bool whole;             /* every row goes through every op of all layers: somebody looks at it */
    int block, segment;
    int64_t row; /* of the segment: where the next cell begins */
} schedule;

/* first_block: the pass begins there, with what the residual stream holds. */
static inline schedule schedule_begin(int n_block, int first_block, const segment *segments, int n_segment,
                                      int64_t n_cell, int64_t n_head, bool whole) {
    bool head = first_block == n_block - 1 && n_segment > 0;
    return (schedule){.n_block = n_block,
                      .segments = segments,
                      .n_segment = n_segment,
                      .n_cell = n_cell,
                      .n_head = n_head,
                      .whole = whole,
                      .block = first_block,
                      .row = head ? segments[0].head_row : 0};
}

/* Times a block that is not the head is visited by whole cells. */
static inline int schedule_n_cell(const schedule *s) {
    int64_t n = 0;
    for (int i = 0; i < s->n_segment; i++)
        n += num_div_up(s->segments[i].n_row, s->n_cell);
    return (int)n;
}

/* Times the head is visited. */
static inline int schedule_n_head(const schedule *s) {
    int64_t n = 0;
    for (int i = 0; i < s->n_segment; i++)
        n += num_div_up(s->segments[i].n_row - s->segments[i].head_row, s->n_head);
    return (int)n;
}

static inline bool schedule_next(schedule *s, cell *out) {
    while (s->block < s->n_block) {
        bool head = s->block == s->n_block - 1, last_layer = s->block == s->n_block - 2 && s->block > 0;
        for (; s->segment < s->n_segment; s->segment++, s->row = -1) {
            const segment *of = &s->segments[s->segment];
            if (s->row < 0)
                s->row = head ? of->head_row : 0;
            if (s->row >= of->n_row)
                continue;
            const bool cache_only = last_layer && !s->whole && s->row < of->head_row;
            const int64_t end = cache_only ? of->head_row : of->n_row;
            *out = (cell){s->block, s->segment, s->row, NUM_MIN(head ? s->n_head : s->n_cell, end - s->row),
                          cache_only};
            s->row += out->n_row;
            return true;
        }
        s->block++;
        s->segment = 0;
        s->row = -1;
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
