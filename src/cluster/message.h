/* message.h - what goes around the ring of ranks (link.h). Ranks run the same program, so structs are sent
 * as they are; a rank checks counts and lengths before it uses them.
 *
 *   RATES   the rates of each rank's machine, which it fills in; it comes back for the cut
 *   SETUP   the engine's options and the stages of all ranks; each opens its own
 *   SYNC    goes around when all have opened, and comes back with what all can do, or with an error
 *   PASS    the calls of sequences since the last one (state/kv_calls.h), and a pass or a part of it: its
 *           segments, their tokens, and the residual stream of its rows, which each rank replaces by its own
 *   LOGITS, BEST, HIDDEN   results of some rows, from the last rank to the first
 *   DONE    the pass has ended; with its status
 *
 * Ranks that share every layer (NIB_SPLIT_TENSOR) pass SETUP, SYNC and PASS on as they are, without a stream,
 * and the first one has the results; DONE goes around, and each rank sends it on when it is done too.
 *
 * The ranks take them in order, so results come in the order of the passes.
 *
 * A rank that fails puts its error into the message. The ranks after it repeat the calls, so that all stay
 * alike, and compute nothing. */
#ifndef NIB_CLUSTER_MESSAGE_H
#define NIB_CLUSTER_MESSAGE_H

#include "cluster/link.h"

#include "exec/step.h"

typedef enum message_kind {
    MESSAGE_SETUP = 1,
    MESSAGE_SYNC,
    MESSAGE_PASS,
    MESSAGE_LOGITS,
    MESSAGE_BEST,
    MESSAGE_HIDDEN,
    MESSAGE_DONE,
    MESSAGE_RATES
} message_kind;

#define MESSAGE_MAGIC UINT64_C(0x3530306b6e72626e)

typedef struct message_header {
    uint64_t magic;
    int32_t kind;
    int32_t rank; /* of `error` */
    nib_error error;
    int32_t n_segment, n_best;
    int32_t wants;                 /* PASS: the kind of results; 0: none */
    int32_t segment;               /* results: the segment of the rows */
    int64_t pass;                  /* PASS and its results: pass.number */
    int64_t row, n_row;            /* results: rows [row, row + n_row) of the segment; PASS: n_row of all */
    int64_t width;                 /* HIDDEN: of a row; SETUP: of the rows that ranks add */
    int64_t n_pass, max_generated; /* SYNC: rows of a pass; generated rows; the least of all ranks */
    int64_t n_cell, n_head;   /* SYNC: rows of a cell, of a visit of the head, the least; PASS: those that
                                 all ranks take */
    int32_t by_role, streams; /* SYNC: streams: a rank reads weights for each pass; PASS: likewise */
    uint64_t n_call, n_byte;  /* bytes of calls, and of the whole body */
} message_header;

typedef struct message_segment {
    int32_t table, generated;
    int64_t position, length, n_row, head_row;
} message_segment;

/* A message as it was received. */
typedef struct message {
    message_header head;
    uint8_t *body; /* [head.n_byte], allocated */
    size_t cap;
} message;

/* The parts of a pass's body. */
typedef struct message_pass {
    const void *calls;
    const message_segment *segments; /* [n_segment] */
    const int32_t *tokens;           /* [n_row] */
    const float *stream;             /* [n_row, width of the stream]; NULL: none */
} message_pass;

/* ended: as in link_receive. */
nib_status message_receive(const rank_link *from, message *to, bool *ended, nib_error *err);
void message_clear(message *m);
/* Sends the header, whose magic and n_byte are set, and the parts. */
nib_status message_send(const rank_link *to, message_header head, const link_part *parts, int n_part,
                        nib_error *err);
/* Finds the parts. NIB_E_FAILED: their lengths do not agree with the body's. */
nib_status message_read_pass(const message *m, size_t stream_width, message_pass *out, nib_error *err);
/* Bytes of a part with padding: parts begin at multiples of 8. */
size_t message_padded(size_t n_byte);

#endif
