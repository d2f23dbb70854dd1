/* schedule.h - the order of the cells of one pass. A cell is a block and the rows that go through it
 * together; another order of the same cells is another schedule, and the step loop does not change.
 *
 * This one walks the blocks, and inside a block its rows in groups of n_cell, so that a block is visited once
 * a pass however many rows there are. The last block, the head, sees only the rows whose logits are wanted.
 */
#ifndef NIB_RUN_SCHEDULE_H
#define NIB_RUN_SCHEDULE_H

#include "base/num.h"

typedef struct cell {
    int block;
    int64_t row, n_row;
} cell;

typedef struct schedule {
    int n_block;
    int64_t n_row, n_cell;          /* rows of the pass; rows of one cell */
    int64_t first_head_row, n_head; /* rows the head is for: [first_head_row, n_row); of one cell */
    int block;
    int64_t row;
} schedule;

static inline schedule schedule_rows(int n_block, int64_t n_row, int64_t n_cell, int64_t first_head_row,
                                     int64_t n_head) {
    return (schedule){n_block, n_row, n_cell, first_head_row, n_head, 0, 0};
}

/* Times the head is visited. */
static inline int schedule_n_head(const schedule *s) {
    return (int)num_div_up(s->n_row - s->first_head_row, s->n_head);
}

static inline bool schedule_next(schedule *s, cell *out) {
    bool head = s->block == s->n_block - 1;
    if (s->row >= s->n_row) {
        s->block++;
        head = s->block == s->n_block - 1;
        s->row = head ? s->first_head_row : 0;
    }
    if (s->block >= s->n_block || s->row >= s->n_row)
        return false;
    *out = (cell){s->block, s->row, NUM_MIN(head ? s->n_head : s->n_cell, s->n_row - s->row)};
    s->row += out->n_row;
    return true;
}

#endif
