/* worker.h - shared by the files of the interpreter: one thread's view of the job, and its barriers.
 *
 * Barriers: every thread executes the same ops and keeps the same notes. For each resource (a register, the
 * quantized activations, the KV cache) the notes say how it was split among threads when it was last written
 * and read since the last barrier. An op that uses a resource with the same split uses only data of its own
 * thread. Any other split needs a barrier first. All threads decide the same, because the notes do not depend
 * on the thread. */
#ifndef NIB_EXEC_CPU_WORKER_H
#define NIB_EXEC_CPU_WORKER_H

#include "exec/acts.h"
#include "exec/cpu/interpreter.h"
#include "kernels/route.h"

#include <stdalign.h>
#include <stdatomic.h>

/* How a resource is split among the threads: by rows, by columns (SPLIT_COLUMNS + width), or in some other
 * way, which never counts as the same for two ops. */
enum { SPLIT_NONE, SPLIT_ROWS, SPLIT_OTHER, SPLIT_COLUMNS };
enum { RES_ACT8 = REG_MAX, RES_KV, RES_PARTS, RES_COUNT };

typedef struct notes {
    int64_t written[RES_COUNT], read[RES_COUNT];
} notes;

/* The register that the quantized activations were made from, and their format; of == REG_NONE: none. own:
 * every thread has quantized the single row for itself. */
typedef struct act_state {
    reg of;
    act_format format;
    bool own;
} act_state;

/* The panels of fused products that threads have not taken yet. */
typedef struct share {
    alignas(64) atomic_int_least64_t next;
} share;

/* The first error of a thread's reads. */
typedef struct job_failure {
    atomic_bool taken;
    nib_error why; /* complete when all threads have finished */
} job_failure;

typedef struct job {
    const executor *e;
    const exec_cell *cell;
    int first_op, end_op;
    bool fuse;            /* execute the programs' rewrites (op.fuse) */
    int act_bits;         /* bits of the activations of the cell's products */
    act_state acts;       /* state when the job begins */
    act_state acts_after; /* state when the job has ended; the same for every thread */
    /* Rows of the matrix, from part_row on, of the job's only product; NULL: whole matrices. */
    const view *part;
    int64_t part_row;
    /* Experts of the job's stacks (OP_EXPERTS), which the pager has given or a visit of VISIT_EXPERTS
     * computes; NULL: all. If the pager gives them in any order, their outputs are kept apart until all have
     * been computed. */
    const int32_t *taken;
    int n_taken;
    bool paged;       /* their views are the pager's */
    bool apart, ends; /* ends: no expert comes after these */
    /* Rows [kv_first, kv_end) of the cell, which the job's only op attends for, and the segments' views of
     * keys and values that came from the disk; NULL: all rows, with the tables' own. */
    const kv_view *kv;
    int64_t kv_first, kv_end;
    int64_t ahead;        /* of the products (linear_args.ahead) */
    share *shares;        /* one for each op of the program; NULL: products are split evenly, once */
    atomic_bool *dropped; /* the cell was cancelled or has failed, so its results will not be used */
    job_failure *failure;
} job;

/* Whether the rest of the cell's work is to be skipped. Barriers are never skipped, because threads learn of
 * a cancellation at different times. */
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
    trace_cell *trace; /* cell of the current op; NULL: times are not measured */
    double since;      /* the thread's processor time up to which work is charged */
} worker;

typedef struct access {
    int resource;
    int64_t split;
    bool write;
} access;

/* Call it before an op uses these resources. Waits at a barrier if another thread may still use one of
 * them. */
void worker_enter(worker *w, const access *list, int n);
void worker_barrier(worker *w); /* waits for all threads */
void worker_charge(worker *w);  /* adds the thread's work since the last call to the traced op */

static inline float *worker_at(const worker *w, reg r, int64_t row, int64_t width) {
    const exec_cell *c = w->j->cell;
    row += r == REG_X ? c->row : c->bank;
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
/* Whether OP_EMBED's row can be read to its output; otherwise to a row of its own. */
static inline bool embed_is_direct(const op *o) {
    return !o->adds && o->k == 0;
}
/* A token beyond a table has its first row (tables of per-layer embeddings may have fewer rows). */
static inline int64_t embed_index(int32_t token, const view *table) {
    return token < table->n ? token : 0;
}
/* Finishes OP_EMBED for a table row that was read. */
void embed_row(const kernel_table *k, const op *o, const float *row, float *out);
void run_embed_pos(worker *w, const op *o);
void run_norm(worker *w, const op *o);
void run_rope(worker *w, const op *o);
void run_elements(worker *w, const op *o);
void run_whole_rows(worker *w, const op *o); /* an op on whole rows (kernels/row_op.h) */
/* Computes columns [c0, c1) of one row of an element-wise op, without a barrier. */
void elements_row(const worker *w, const op *o, int64_t r, int64_t c0, int64_t c1);

/* ---- product.c ---- */
/* The format of one slice of a row for matrix `matrix` of the cell's block, which is held in format f.
 * 16-bit activations have a second slice of 8 bits for the residual of the first. */
static inline act_format product_format(const worker *w, int matrix, const pack_format *f) {
    return act_format_of(&layout_block(w->j->e->layout, w->j->cell->block)->weights[matrix], f,
                         w->j->act_bits);
}
/* Quantizes row r of the cell, k floats, for matrix `matrix` of the cell's block and the others with the same
 * input. r is ignored if to.own. */
void product_quantize_row(worker *w, const float *x, int64_t k, int64_t r, act_state to, int matrix);
/* Computes columns [n0, n1) of the product of v with the cell's rows, which must be quantized (w->acts). v is
 * the rows of op o's matrix from first_row on. The result goes to o's output from column first_row on. by:
 * NULL: the rule decides. */
void product_columns(worker *w, const op *o, const view *v, const kernel_choice *by, int64_t first_row,
                     int64_t n0, int64_t n1);
/* Writes estimates (kernel_table.estimate) of columns [n0, n1) of o's product, outliers included, to y
 * [n_row, ldy], which begins at column n0. codes: all rows, by estimate_row. */
void product_estimates(worker *w, const op *o, int64_t n0, int64_t n1, const uint8_t *codes, float *y,
                       int64_t ldy, float *error);
/* Computes the same columns exactly. */
void product_logits(worker *w, const op *o, int64_t n0, int64_t n1, float *y, int64_t ldy);
/* Computes one panel of it (at most PACK_PANEL columns) for row r alone. */
void product_panel(worker *w, const op *o, int64_t panel, int64_t r, float *y);
/* Runs one product, or the fused products that begin with it (op.fuse). Returns the number of ops that it
 * ran. */
int run_linear(worker *w, const op *o);
/* Quantizes the cell's rows of o's input. */
void product_quantize(worker *w, const op *o, act_format f);
/* Columns [n0, n1) of a matrix in memory; n0 begins a panel. */
view product_view(const view *whole, int64_t n0, int64_t n1);
/* Computes a product of any rows, which need not be the cell's: residual slices and outliers included. */
void product_of_rows(worker *w, const act_rows *rows, linear_args *a);
/* Gives the next of op o's n_panel panels, with so many bytes of weights, to this thread; false: there are no
 * more. *begin and *end are 0 at the first call. */
bool product_take(const worker *w, const op *o, int64_t n_panel, uint64_t bytes, int64_t *begin,
                  int64_t *end);

/* ---- experts.c ---- */
void run_experts(worker *w, const op *o);
void run_spread(worker *w, const op *o);
/* Lists the experts that rows of the cell have chosen for op o, ascending, and how many rows; returns their
 * number. To be called when the op before it has ended. */
int experts_chosen(const job *j, const op *o, expert_use *uses);

/* ---- residual.c ---- */
/* Chooses the channels of row r of the cell that get residuals, and stores them beside the row's codes. Only
 * if the executor has residuals. */
void residual_choose(worker *w, const float *x, int64_t k, int64_t r, bool own, int matrix);
/* Starts reading the residuals for columns [n0, n1) of op o's product, which is computed in the meantime.
 * Nothing to do if residuals are in memory. */
void residual_request(worker *w, const op *o, int64_t n0, int64_t n1);
/* Adds the residuals' contribution to these columns; y is the first of them. residual_request must have been
 * called for the same columns. */
void residual_columns(worker *w, const op *o, int64_t n0, int64_t n1, float *y);

/* ---- head.c ---- */
/* Runs op i of the cell's program, an OP_SHORTLIST, on all threads. The calling thread reads the panels that
 * are on disk. */
nib_status run_shortlist(job *j, int i, nib_error *err);

/* ---- best.c ---- */
/* Runs the head's product in a cell with exec_cell.best. The rows must be quantized. */
void run_best(worker *w, const op *o);

/* ---- recurrent.c ---- */
void run_recurrent(worker *w, const op *o);

/* ---- reduce.c ---- */
void run_reduce(worker *w, const op *o);

/* ---- attend.c ---- */
void run_attention(worker *w, const op *o);
void run_select(worker *w, const op *o);

#endif
