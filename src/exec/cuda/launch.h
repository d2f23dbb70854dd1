/* launch.h - turns a block's steps for some rows into launches (launch.c, launch_attend.c, launch_embed.c),
 * which are added to the list of the replay (replay.h). */
#ifndef NIB_EXEC_CUDA_LAUNCH_H
#define NIB_EXEC_CUDA_LAUNCH_H

#include "exec/cuda/cuda.h"

/* Rows that go through a block together. */
typedef struct row_group {
    int block;
    int64_t row, n_row; /* rows of the pass */
    int64_t run_row;    /* number of the first row in the run */
    int64_t bank;       /* the rows begin here in registers (visit.bank) */
    bool two;           /* activations have 16 bits */
    bool mixed;         /* they have 4 and 8 bits by block of channels */
} row_group;
/* Queues the block's steps for a group. */
nib_status launch_group(cuda *c, const row_group *g, nib_error *err);
/* Queues the head's steps up to its product. *out: the register that the product would read. It has rows of
 * the pass if it is REG_X, otherwise rows of the group. */
nib_status launch_hidden(cuda *c, const row_group *g, reg *out, nib_error *err);
/* Queues the selection of the pass's n_best largest logits for the first n_row rows. */
nib_status launch_best(cuda *c, int64_t n_row, nib_error *err);

/* ---- for launch*.c only ---- */

/* A group that goes through a block. */
struct launch_walk {
    cuda *c;
    const row_group *g;
    const op *ops;
    bool is_head;
};

/* The group's first row in a register, and the distance of two rows, in floats. */
static inline float *launch_at(const launch_walk *w, reg r) {
    const cuda *c = w->c;
    if (r == REG_X)
        return c->mem.reg[r] + w->g->row * c->mem.ld[r];
    return c->mem.reg[r] + (r == REG_LOGITS && w->is_head ? w->g->run_row : w->g->bank) * c->mem.ld[r];
}
static inline int64_t launch_ld(const launch_walk *w, reg r) {
    return w->c->mem.ld[r];
}

/* A vector of the group's block; index < 0: NULL. */
const float *launch_vector(const launch_walk *w, int index);
/* Whether the step uses the kernels of prompts. It depends on the role of the rows and on the step, not on
 * the number of rows. */
bool launch_is_wide(const launch_walk *w, const step *s);
/* The codes that the step's launch leaves for the next product; data NULL: none. */
cuda_codes launch_leaves(const launch_walk *w, const step *s);
/* Whether the attention's keys and values are in host memory. */
static inline bool launch_is_staged(const cuda *c, const op *attention) {
    return c->staged.homes[attention->u.attn.layer] != KV_HOME_DEVICE;
}
/* Whether generated rows of the group attend in several launches. Codes of several rows are one launch's. */
bool launch_attends_in_parts(const launch_walk *w, const op *attention);
nib_status launch_embed(const launch_walk *w, const step *s, nib_error *err);
nib_status launch_attend(const launch_walk *w, const step *s, nib_error *err);
nib_status launch_route(const launch_walk *w, const step *s, nib_error *err);
nib_status launch_experts(const launch_walk *w, const step *s, nib_error *err);
/* The same with the experts that are on the GPU, of a layer of which the others are the processor's. *part:
 * the outputs of their pairs, if the step is a sum, which is not made. */
nib_status launch_experts_here(const launch_walk *w, const step *s, const float **part, nib_error *err);
nib_status launch_groups(const launch_walk *w, const step *s, nib_error *err);
/* The number of rows of the group from r on that belong to one sequence. */
int64_t launch_rows_of_sequence(const launch_walk *w, int64_t r);
nib_status launch_recurrent(const launch_walk *w, const step *s, nib_error *err);
/* Norms and ops element by element. */
/* second: another norm in the same launch; NULL: none. */
nib_status launch_norm(const launch_walk *w, const op *o, const op *second, nib_error *err);
nib_status launch_each(const launch_walk *w, const op *o, nib_error *err);
nib_status launch_elements(const launch_walk *w, const step *s, nib_error *err);
nib_status launch_columns(const launch_walk *w, const op *o, nib_error *err);
nib_status launch_reduce(const launch_walk *w, const step *s, nib_error *err); /* reduce.c */
/* Whether each rank computes some logits in this step, and gets those of the others from launch_gather. */
bool launch_shares_head(const launch_walk *w, const step *s);
/* Narrows the head's product to this rank's outputs. False: it has none. */
bool launch_narrow(const launch_walk *w, cuda_linear *a);
nib_status launch_gather(const launch_walk *w, const step *s, nib_error *err);
nib_status launch_rope(const launch_walk *w, const op *o, nib_error *err);

#endif
