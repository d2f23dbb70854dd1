/* worker.h - shared by the files of the interpreter: one thread's view of the job, and its barriers.
 *
 * Barriers. Every thread executes the same ops and keeps the same notes: for each resource (a register, the
 * quantized activations, the KV cache), how it was split among threads when it was last written and read
 * since the last barrier. An op that uses a resource with the same split uses only data of its own thread;
 * any other split needs a barrier first. All threads decide the same, since the notes do not depend on the
 * thread. */
#ifndef NIB_EXEC_CPU_WORKER_H
#define NIB_EXEC_CPU_WORKER_H

#include "exec/cpu/interpreter.h"

#include <stdalign.h>
#include <stdatomic.h>

/* How a resource is split among the threads: by rows, by columns (SPLIT_COLUMNS + width), or in some other
 * way that is never the same for two ops. */
enum { SPLIT_NONE, SPLIT_ROWS, SPLIT_OTHER, SPLIT_COLUMNS };
enum { RES_ACT8 = REG_COUNT, RES_KV, RES_PARTS, RES_COUNT };

typedef struct notes {
    int64_t written[RES_COUNT], read[RES_COUNT];
} notes;

/* Which register the integer activations hold, and how; `of` REG_NONE: none. own: every thread has made the
 * one row for itself. */
typedef struct act_state {
    reg of;
    act_format format;
    bool own;
} act_state;

/* How far the panels of a region are given out. */
typedef struct share {
    alignas(64) atomic_int_least64_t next;
} share;

/* What a thread could not read; the first one counts. */
typedef struct job_failure {
    atomic_bool taken;
    nib_error why; /* whole when all threads have finished */
} job_failure;

typedef struct job {
    const executor *e;
    const exec_cell *cell;
    int first_op, end_op;
    bool fuse;            /* rewrites are followed */
    int act_bits;         /* of the cell's products */
    act_state acts;       /* when the job begins */
    act_state acts_after; /* and when it has ended: every thread comes to the same */
    const view *part;     /* rows part_row... of the one product of this job; NULL: whole matrices */
    int64_t part_row;
    share *shares;        /* one for each op of the program; NULL: regions are split once and for all */
    atomic_bool *dropped; /* the cell was cancelled, or failed: nothing of it will be used */
    job_failure *failure;
} job;

/* Work that is left of a dropped cell is skipped; barriers never are, since threads learn of it one after the
 * other. */
static inline bool job_is_dropped(const job *j) {
    if (atomic_load_explicit(j->dropped, memory_order_relaxed))
        return true;
    const bool now = cancel_asked(j->cell->cancel);
    if (now)
        atomic_store_explicit(j->dropped, true, memory_order_relaxed);
    return now;
}

typedef struct worker {
    const job *j;
    int thread, n_thread;
    notes seen;
    act_state acts;
    void *scratch;
    trace_cell *trace; /* of the op that is being executed; NULL: nobody asked */
    double since;      /* of the thread's own time: what it has worked since then is not charged yet */
} worker;

typedef struct access {
    int resource;
    int64_t split;
    bool write;
} access;

/* Before an op touches these: waits for the other threads when one of them may still be at it. */
void worker_enter(worker *w, const access *list, int n);
void worker_charge(worker *w); /* the thread's work since the last call goes to the op being traced */

static inline float *worker_at(const worker *w, reg r, int64_t row, int64_t width) {
    const exec_cell *c = w->j->cell;
    if (r == REG_X)
        row += c->row;
    if (r == REG_LOGITS && c->logits)
        return c->logits + row * width;
    return w->j->e->ws->reg[r] + row * width;
}

static inline worker worker_of(const job *j, int thread, int n_thread) {
    const workspace *ws = j->e->ws;
    return (worker){.j = j,
                    .thread = thread,
                    .n_thread = n_thread,
                    .acts = j->acts,
                    .scratch = ws->scratch + (size_t)thread * ws->scratch_each};
}

static inline const float *worker_vector(const worker *w, int index) {
    return index < 0 ? NULL : w->j->cell->views[index].data;
}

static inline void worker_rows(const worker *w, int64_t *r0, int64_t *r1) {
    pool_split(w->j->cell->n_row, 1, w->thread, w->n_thread, r0, r1);
}

/* ---- rows.c ---- */
void run_embed(worker *w, const op *o);
/* What OP_EMBED makes of a row that was read: to `out` itself, or, where it adds, to elsewhere. */
void embed_row(const kernel_table *k, const op *o, const float *row, float *out);
void run_embed_pos(worker *w, const op *o);
void run_norm(worker *w, const op *o);
void run_rope(worker *w, const op *o);
void run_elements(worker *w, const op *o);
/* Columns [c0, c1) of one row, without a look at who else is at it. */
void elements_row(const worker *w, const op *o, int64_t r, int64_t c0, int64_t c1);

/* ---- product.c ---- */
/* Rows have one slice of 4 or 8 bits; with 16 bits a second one for what the first left over. */
static inline act_format product_format(const worker *w, const pack_format *f) {
    return act_format_for(f, w->j->act_bits == 4 ? 4 : 8);
}
/* Row r of the cell, k floats, becomes integers, for matrix `matrix` of the cell's block and others that read
 * it; r is ignored when `own`. */
void product_quantize_row(worker *w, const float *x, int64_t k, int64_t r, act_state to, int matrix);
/* Columns [n0, n1) of v, rows first_row... of op o's matrix, times the cell's rows, whose integers w->acts
 * says are there; to o's output from column first_row on. by NULL: by the rule. */
void product_columns(worker *w, const op *o, const view *v, const kernel_choice *by, int64_t first_row,
                     int64_t n0, int64_t n1);
/* Estimates (kernel_table.estimate) of columns [n0, n1) of o's product, outliers included: y [n_row, ldy]
 * from column n0 on. w->acts says that all rows' integers are there. */
void product_estimates(worker *w, const op *o, int64_t n0, int64_t n1, float *y, int64_t ldy, float *error);
/* The same columns computed. */
void product_logits(worker *w, const op *o, int64_t n0, int64_t n1, float *y, int64_t ldy);
/* The columns of one panel of it for row r alone, at most PACK_PANEL. */
void product_panel(worker *w, const op *o, int64_t panel, int64_t r, float *y);
/* One product, or the region that begins with it (op.fuse); returns how many ops that was. */
int run_linear(worker *w, const op *o);

/* ---- residual.c ---- */
/* The channels of row r of the cell that products get back, beside its integers; only where the executor has
 * residuals. */
void residual_choose(worker *w, const float *x, int64_t k, int64_t r, bool own, int matrix);
/* Before columns [n0, n1) of op o's product are computed: what has to be read for them is read meanwhile. */
void residual_ask(worker *w, const op *o, int64_t n0, int64_t n1);
/* What they add to those columns, y being the first of them; residual_ask was called for the same. */
void residual_columns(worker *w, const op *o, int64_t n0, int64_t n1, float *y);

/* ---- head.c ---- */
/* Op i of the cell's program, which is OP_SHORTLIST, by all threads, and by this one what has to be read. */
nib_status run_shortlist(job *j, int i, nib_error *err);

/* ---- best.c ---- */
/* The head's product in a cell that wants the best alone, when its rows' integers are there. */
void run_best(worker *w, const op *o);

/* ---- attend.c ---- */
void run_attention(worker *w, const op *o);

#endif
