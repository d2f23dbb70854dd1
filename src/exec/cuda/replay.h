/* replay.h - launches are collected over the blocks of a pass, and replayed as a CUDA graph when a list of
 * them repeats (replay.c). */
#ifndef NIB_EXEC_CUDA_REPLAY_H
#define NIB_EXEC_CUDA_REPLAY_H

#include "base/status.h"
#include "kernels/cuda/cuda_kernels.h"
#include "model/program.h"

typedef struct cuda cuda;

typedef struct gpu_launch gpu_launch;

/* A recorded launch. */
typedef enum launch_kind {
    LAUNCH_EMBED,
    LAUNCH_LINEAR,
    LAUNCH_WIDE,
    LAUNCH_BATCH,
    LAUNCH_MIXED,
    LAUNCH_SPARSE,
    LAUNCH_STORE,
    LAUNCH_PACK,
    LAUNCH_ATTEND,
    LAUNCH_PROMPT,
    LAUNCH_NORM,
    LAUNCH_EACH,
    LAUNCH_COLUMNS,
    LAUNCH_ROPE,
    LAUNCH_REDUCE,
    LAUNCH_GATHER,
    LAUNCH_RECURRENT,
    LAUNCH_ROUTE,
    LAUNCH_EXPERTS,
    LAUNCH_HAND_DOWN,
    LAUNCH_HAND_UP,
    LAUNCH_GROUPS,
    LAUNCH_FETCH,
    LAUNCH_ADD,
    LAUNCH_SHORTLIST,
    LAUNCH_BEST
} launch_kind;
struct gpu_launch {
    launch_kind kind;
    int block;    /* its block, for names */
    const op *of; /* its first op, for names */
    bool aside;   /* it is in the second stream (residual.c) */
    union {
#define ARGUMENTS(name, arguments) arguments name;
        CUDA_LAUNCHES(ARGUMENTS)
#undef ARGUMENTS
    } u; /* of a product `linear`, of all about attention `attend` */
};

enum { CUDA_MAX_GRAPHS = 16, CUDA_MIN_GRAPH = 4 /* launches */ };

/* A list of launches, and its graph after the list was seen twice. */
typedef struct gpu_graph {
    gpu_launch *list;
    int n;
    cuda_graph graph; /* NULL: none yet */
    uint64_t used;    /* replay.clock at its last use */
} gpu_graph;

/* Everything that the launches of a plain pass of few generated rows depend on. */
typedef struct replay_key {
    int64_t n_row, n_head;
    int32_t n_best;
    bool logits, changes, looks_up;
    const void *page_table, *origin;
    uint64_t choice; /* residual_use.choice */
} replay_key;

typedef struct replay {
    gpu_launch *list; /* the collected launches */
    int n, max;
    bool copied;                /* a block was streamed for this pass, so it is not one list */
    int n_flush;                /* number of lists of this pass that were not empty */
    gpu_graph *last;            /* the graph that the last flush launched; NULL: none */
    replay_key key, before_key; /* of this pass; of the previous pass */
    gpu_graph *before;          /* the graph of the previous pass; NULL: it was not a single graph */
    bool ahead;                 /* this pass is the same graph, launched as soon as the tables are queued */
    bool repeats;               /* a pass of few generated rows: its lists may repeat */
    gpu_graph graphs[CUDA_MAX_GRAPHS];
    uint64_t clock;
    bool refused; /* recording failed */
} replay;

nib_status replay_open(cuda *c, nib_error *err);
void replay_close(cuda *c);
/* Adds a launch with its arguments, which are compared byte by byte: their padding is zeros. */
nib_status replay_add(cuda *c, launch_kind kind, const op *of, const void *arguments, size_t size,
                      nib_error *err);
/* Queues the collected launches. To be called before any other work is queued. */
nib_status replay_flush(cuda *c, nib_error *err);
nib_status replay_flush_once(cuda *c, nib_error *err); /* makes no graph, because the list will not repeat */
void replay_drop(cuda *c);                             /* forgets the collected launches */
/* Forgets all graphs, because weights get other addresses. */
void replay_forget(cuda *c);
/* Begin and end a pass. well: the pass had no error. */
void replay_begin(cuda *c);
void replay_end(cuda *c, bool well);
/* With replay.ahead: launches the previous pass's graph instead of the collected launches. */
nib_status replay_launch_ahead(cuda *c, nib_error *err);

#endif
