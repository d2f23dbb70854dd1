/* visits.h - the order of one pass: which block is visited next, by which rows of the batch.
 *
 * The order exists once, as an iterator. The step loop (exec/step.h) executes it, the pager prefetches along
 * it (visit_pages.h gives the pages), and the cost model (plan/cost.c) counts it. Another order is another
 * `visit_next_fn`; its readers do not change.
 *
 * A batch consists of segments: consecutive rows of one sequence. The usual order, visits_by_block, visits
 * one block after the other, and in a block the rows of all segments in cells of n_cell rows. So all rows use
 * a weight before the next one is read, and products have as many rows as possible. The last block, the head,
 * gets only the rows whose logits are needed. For all other rows the last layer computes only keys and
 * values, since nothing else of it is read (cache_only). Where the role of a row decides its kernels
 * (by_role), the rows of a cell have one role; a pass has rows of both, so that a weight is read once.
 *
 * A block may be cut at its attention (cut), because another processor computes that for generated rows. Two
 * cells are then in flight, so that one is attended to while the other one's parts are computed:
 *
 *     before A, before B, prompt rows, attention A, after A, attention B, after B
 *
 * Registers that live across the cut have rows of both cells (visit.bank). The pass's prompt rows, which are
 * behind those of generated tokens, go through the block meanwhile, so that both processors have work: those
 * of two cells and the prompt rows beside them are at most n_cell.
 *
 * An order visits each row's blocks from `first` up, the rows of a sequence in a block in the order of their
 * positions, and the head last.
 *
 * A list is a value: a copy continues from the same place. It borrows its segments. */
#ifndef NIB_SCHEDULE_VISITS_H
#define NIB_SCHEDULE_VISITS_H

#include "base/num.h"
#include "state/kv_table.h"

/* Rows of one sequence that are computed in a pass. */
typedef struct segment {
    kv_table *kv;
    const int32_t *tokens; /* [n_row] */
    int64_t position;      /* of its first row in the sequence */
    int64_t length;        /* known length of the whole sequence; rotary frequencies may depend on it */
    int64_t n_row;
    bool generated;          /* its rows are generated or proposed tokens, not prompt rows (backend.by_role,
                                kv_table_reach) */
    int64_t head_row;        /* logits for its rows [head_row, n_row); n_row: none */
    int64_t row, head_first; /* set by segments_number: its first row in the pass, rows [row, row + n_row),
                               and the first one among the pass's rows with logits */
} segment;

/* Numbers the rows of a pass's segments, one segment after the other. Returns the number of rows. */
int64_t segments_number(segment *segments, int n_segment);

/* The ops of a block that a visit runs. */
typedef enum visit_part {
    VISIT_WHOLE,
    VISIT_BEFORE,    /* those before attention */
    VISIT_ATTENTION, /* it stores and attends */
    VISIT_AFTER,
    VISIT_EXPERTS /* of no list: what a back end asks of another one (exec/cut.h) */
} visit_part;

/* A block, and the rows that go through it together: a cell of the pass. */
typedef struct visit {
    int block;
    visit_part part;
    int64_t bank;       /* the cell's rows begin here in all registers but the stream's and the logits' */
    int64_t row, n_row; /* rows of the pass; for the head: indices among the rows whose logits are needed */
    bool cache_only;    /* of a layer: only the keys and values of these rows are needed */
    bool generated;     /* with visits.by_role: the role of its rows */
    bool again;         /* the next visit is of the same block */
} visit;

typedef struct visits visits;
/* Returns the next visit, without setting `again`; false: none. Changes only the list's own position. */
typedef bool (*visit_next_fn)(visits *v, visit *out);

struct visits {
    visit_next_fn next;      /* the order; NULL: there are no visits */
    int n_block;             /* of the model; its last one is the head */
    int first, end;          /* blocks [first, end) are visited: all, or a stage of a pipeline */
    const bool *left_out;    /* [n_block]: blocks that are skipped; NULL: none */
    const segment *segments; /* [n_segment], their rows one after the other */
    int n_segment;
    int64_t n_cell, n_head; /* maximum rows of a visit of a layer; of the head */
    const bool *cut;        /* [n_block]: blocks that are cut at attention for generated rows; NULL: none */
    int64_t n_cut;          /* maximum rows of their two cells together */
    bool whole;             /* every row goes through every op of all layers (no cache_only visits) */
    bool apart;             /* each visit has rows of one segment only */
    bool by_role;           /* each visit has rows of one role only (segment.generated) */
    bool held;              /* consecutive visits fetch a block's weights once, because a device keeps them */
    int block; /* state of the order: block and row at which the next visit begins, and the step of two cells
                  through a cut block; initially 0 */
    int64_t row, beside; /* beside: the next prompt row, of those computed beside two cells */
    int step;
};

/* The next visit; false: the list is at its end. */
bool visits_next(visits *v, visit *out);

/* The usual order, block by block. */
bool visits_by_block(visits *v, visit *out);

/* A list that visits each block of [first, end) once with one row, as in decoding a token. It borrows
 * nothing. */
visits visits_of_one_row(int n_block, int first, int end);

/* The segment that contains row *row, an index as in visits of a layer or of the head. *row becomes the row's
 * index in the segment. NULL: the row is beyond the last segment. */
const segment *visits_segment(const segment *segments, int n_segment, bool head, int64_t *row);

#endif
