/* flow.h - the plan of a block of work: many prompts, more tokens a second than any one of them could have.
 * Which schedule, how many sequences together, and which share of the weights, of the keys and values and of
 * the residual stream is on each tier (FlexGen: Sheng et al. 2023, sections 4.2, 4.3 and A.3).
 *
 * For given numbers of rows the time of a block is linear in the shares, so a linear program finds the best
 * shares (lp.h); the numbers of rows are enumerated. The rows of one table (flow_terms.c) are the terms:
 * which lane is busy for how long with what. The program, its report and the simulator read the same table.
 *
 * Three rules say how terms become time. FLOW_PAPER is the text: in each phase the busiest lane. FLOW_AUTHORS
 * is what their program computes: part of the lanes one after the other, and the memory of all ops at the
 * same time. FLOW_REFILL is ours: in each sweep over the layers every running sequence gives a row, and a new
 * prompt enters for each that ends, so weights come once for both kinds of rows, both kinds of work overlap,
 * and memory holds half of the answers' positions (the paper's diagonal schedule, A.2).
 *
 * Three lanes are not in the paper. RAM: every byte that leaves or enters it shares its rate. HBM: the device
 * reads a layer's weights once for each of its batches. Turns: the keys and values of whole layers are in
 * RAM, so the device waits in these for the processor or the link, and they for the device in the others;
 * without this lane what processor and device do is added up. Without these rates the terms are the paper's.
 *
 * Pure. Units: bytes, seconds, two operations for a multiplication with an addition. */
#ifndef NIB_PLAN_FLOW_H
#define NIB_PLAN_FLOW_H

#include "plan/lp.h"

typedef enum flow_rule { FLOW_PAPER, FLOW_AUTHORS, FLOW_REFILL, FLOW_N_RULE } flow_rule;

/* The shares: of weights (w), keys and values (c), residual stream (h) on the device, in RAM, on disk; and
 * the seconds of a layer in both phases. */
typedef enum flow_column {
    FLOW_WG,
    FLOW_WC,
    FLOW_WN,
    FLOW_CG,
    FLOW_CC,
    FLOW_CN,
    FLOW_HG,
    FLOW_HC,
    FLOW_HN,
    FLOW_T_PROMPT,
    FLOW_T_TOKEN,
    FLOW_N_COLUMN,
    FLOW_N_SHARE = FLOW_T_PROMPT,
    FLOW_ONE = FLOW_N_COLUMN /* a constant term */
} flow_column;

typedef enum flow_lane {
    FLOW_UP,    /* RAM to device */
    FLOW_DOWN,  /* device to RAM */
    FLOW_READ,  /* disk to RAM */
    FLOW_WRITE, /* RAM to disk */
    FLOW_COMPUTE,
    FLOW_RAM,
    FLOW_HBM,
    FLOW_TURNS, /* layers one after the other, in some of which the device waits for keys and values */
    FLOW_N_LANE
} flow_lane;

/* A model of equal layers, in the formats of a candidate. */
typedef struct flow_shape {
    int n_layer;
    double weights;    /* bytes of a layer's weights */
    double row_ops;    /* operations of a layer's products for a row */
    double attend_ops; /* operations of a layer's attention for a row and a position */
    double kv;         /* bytes of a layer's keys and values for a position */
    double kv_kept; /* the part of keys and values on the disk that is on the device too: incomplete pages */
    double stream;  /* bytes of a row of the residual stream */
    double width, inner, n_head; /* of a row, of its feed-forward product: they decide the working memory */
} flow_shape;

/* Bytes or operations a second. A rate of 0: its terms are left out. */
typedef struct flow_rates {
    double up, down_kv, down_stream;
    double read, read_weights;                  /* disk; of weights while tokens are computed */
    double write_kv, write_stream, write_token; /* of prompts, of prompts' streams, of tokens */
    double product_prompt, product_token;
    double attend_prompt, attend_token; /* the second in bytes of keys and values */
    double host_attend;                 /* bytes of keys and values that the processor attends */
    double host_fit[3]; /* how its rate falls with small batches and rows, as the authors fitted it; 0: not */
    double pack;     /* bytes of weights from disk that the computing threads bring into the packed order */
    double ram, hbm; /* hbm: of weights, for rows of answers */
    double hbm_kv;   /* of keys and values to which the device attends */
    double prompt_passes; /* a second, of a layer: what the prompts of a pass take beside their rows */
    double launches;      /* a second: times that the device begins what it does for a batch in a layer */
    double turns; /* layers a second: what a layer's attention on the processor takes beside its bytes */
} flow_rates;

typedef struct flow_caps {
    double device, ram, disk;
} flow_caps;

typedef struct flow_case {
    const flow_shape *shape;
    const flow_rates *rates;
    flow_caps caps;
    flow_rule rule;
    bool host_attends;      /* attention over keys and values in RAM is the processor's */
    double n_prompt, n_gen; /* tokens of a prompt, and of its answer */
    int batch, n_batch;     /* sequences of a batch of the device; batches of a block */
    const double *fixed;    /* [FLOW_N_SHARE]: shares that are given; negative: free. NULL: all are free */
} flow_case;

typedef struct flow_answer {
    bool feasible;
    int batch, n_batch;
    double share[FLOW_N_SHARE];
    double prompt_s, token_s;    /* of the whole block: its prompts; its tokens but the first. Together the
                                    time from a prompt's beginning to its answer's end */
    double tok_s;                /* tokens of answers a second */
    double lane[2][FLOW_N_LANE]; /* seconds of a layer, for prompts and for a token; those of refill
                                    are of a sweep, and in the second */
    flow_lane binds[2];          /* the busiest */
    double more[3]; /* tokens a second that one more GiB of the device, of RAM and of disk would give */
} flow_answer;

/* The best shares for the case's numbers of rows. Among equal ones: least disk traffic, then least link
 * traffic, then most on the device, so that the answer does not depend on the solver's version. Errors are
 * those of lp_solve. */
nib_status flow_solve(const flow_case *c, flow_answer *out, nib_error *err);

/* The numbers of rows to try. */
typedef struct flow_space {
    const int *batches; /* [n]: ascending */
    int n;
    int max_n_batch;
} flow_space;

/* Calls `each` for every pair of batch and n_batch that is feasible. *n_solved (may be NULL): programs that
 * were solved. */
typedef void (*flow_each)(void *user, const flow_case *c, const flow_answer *a);
nib_status flow_enumerate(const flow_case *c, const flow_space *space, flow_each each, void *user,
                          int *n_solved, nib_error *err);

const char *flow_lane_name(flow_lane l);

/* ---- flow_terms.c ---- */
/* The program of a case: minimize the seconds of a token. Rows [0, *n_time) are times; then the capacities of
 * device, RAM and disk, of which first_capacity[tier] begins, [4]; then sums of shares. */
void flow_program(const flow_case *c, lp_problem *out, int first_capacity[4]);
/* Seconds of each lane for these shares. */
void flow_lanes(const flow_case *c, const double *share, double lane[2][FLOW_N_LANE]);
/* With refill: seconds of n_request requests of which n_enter sweeps begin and n_enter sweeps end, with half
 * of the rows of answers in the mean: those that begin have all prompts, those that end none. */
double flow_job_seconds(const flow_case *c, const double *share, double n_request, double n_enter);
/* Sets a linear function of the shares to the lane's seconds in both phases. */
void flow_lane_cost(const flow_case *c, flow_lane l, double *cost);

#endif
