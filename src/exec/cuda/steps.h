/* steps.h - what the back end executes of a block's program together. */
#ifndef NIB_EXEC_CUDA_STEPS_H
#define NIB_EXEC_CUDA_STEPS_H

#include "exec/backend.h"

typedef struct cuda cuda;

typedef enum step_kind {
    STEP_EMBED,
    STEP_NORM,
    STEP_LINEAR,
    STEP_ATTEND,
    STEP_EACH,
    STEP_ADD,
    STEP_COLUMNS,
    STEP_ROPE,
    STEP_RECURRENT,
    STEP_REDUCE,
    STEP_ROUTE,
    STEP_EXPERTS,
    STEP_GROUPS
} step_kind;

/* Ops [first, first + n) of a block's program, executed together. */
typedef struct step step;
struct step {
    step_kind kind;
    int first, n;
    bool feeds_cache;
    int n_w;              /* STEP_LINEAR, STEP_EXPERTS: number of products, which are the first ops */
    const op *norm;       /* STEP_LINEAR: the norm of their input, computed with them; NULL: none */
    const op *layer_norm; /* STEP_LINEAR: the LayerNorm of their input, the step before, which they can
                             compute if their kernels multiply halves; NULL: none */
    const op *tail;       /* STEP_LINEAR, STEP_EXPERTS: OP_GATE of two products, OP_ADD or OP_ACT of one;
                             STEP_REDUCE, STEP_ADD: OP_ADD of the sum; STEP_RECURRENT: OP_GATE that
                             follows, of OP_DELTA after the norm of its heads; NULL: none */
    const op *gather;  /* STEP_GROUPS: OP_COPY before the product, whose input it reads itself; NULL: none */
    const op *scatter; /* STEP_GROUPS: OP_COPY after it, whose output it writes itself; NULL: none */
    const op *op;      /* STEP_RECURRENT: the op itself, which OP_GATE may precede */
    const op *rope;    /* STEP_ATTEND: the rotation of q, equal to that of k; NULL: none */
    const op *q_norm,
        *k_norm; /* STEP_ATTEND: the norms of heads before it, which are the first ops; NULL: none */
    reg in, out; /* in: input of STEP_LINEAR; out: the register that a next step may read as codes, which is
                    the tail's if there is one; REG_NONE: none */
    const step *codes_for; /* the next product, if it reads codes of `out` that this step leaves (cuda_codes);
                              NULL: it does not */
    int codes_for_block;
    bool routes;          /* STEP_LINEAR: a router reads the outputs, so rows stay floats */
    const step *rows_for; /* STEP_EXPERTS, STEP_ROUTE: the next one, if it reads codes of the gate's output,
                             or of the router's input; NULL: none */
};

typedef struct steps {
    step *list;
    int n;
} steps;

/* Makes the steps of all blocks. NIB_E_DEVICE names the block, and the op or weight that has no kernel. */
nib_status steps_open(cuda *c, nib_error *err);
/* backend_kind.check_ops: makes the steps of each block, but does not look at the formats of weights, which
 * the layout chooses. */
nib_status steps_check_ops(const model *m, nib_error *err);
void steps_close(cuda *c);
/* Whether the step's weights have outliers, whose products a second launch adds. */
bool steps_has_outliers(const cuda *c, int b, const step *s);

#endif
