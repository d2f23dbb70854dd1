/* experts_host.h - experts that are not on the GPU, computed by the processor for generated rows, while all
 * else of their layers is the GPU's. The rows that the router has seen and its choice go down to the
 * registers of the processor's back end (in_place.c), the outputs of pairs (row, expert) come up, and the GPU
 * adds those of all of a row's experts in the order of its choice. So no bit depends on where an expert is,
 * but on who computes it. Both sides poll counters in host memory (kernels/cuda/hand.cu): a token's launches
 * stay one graph, and the host computes when the graph asks for it. Launches that are queued one by one ask
 * it before they wait for it. Prompt rows of these layers stream the experts. */
#ifndef NIB_EXEC_CUDA_EXPERTS_HOST_H
#define NIB_EXEC_CUDA_EXPERTS_HOST_H

#include "exec/backend.h"
#include "kernels/cuda/cuda_kernels.h"
#include "memory/region.h"

typedef struct cuda cuda;
typedef struct gpu_launch gpu_launch;
typedef struct launch_walk launch_walk;
typedef struct step step;

typedef struct experts_host {
    bool *on;             /* [n_block] */
    int n;                /* number of blocks; 0: none */
    memory_region memory; /* page-locked: the counters, then */
    float *outputs;       /* [rows * n_used, n] of pairs */
    uint32_t *down, *up;  /* the counters (cuda_mail) */
    uint32_t count;       /* of what was handed down */
    bool waits;           /* and has not been computed: this, */
    int block;
    cuda_hand_down asked;
} experts_host;

/* Whether the processor can compute the block's experts apart from its other ops. */
bool experts_host_can(const layout *l, int b);
/* The host's part of backend_kind.row_bytes, besides the registers. */
uint64_t experts_host_bytes(const layout *l, const backend_rows *rows);
nib_status experts_host_open(cuda *c, nib_error *err);
void experts_host_close(cuda *c);
/* Sets the blocks. */
void experts_host_follow(cuda *c, const homes_split *split);
/* Takes the memory. To be called after the processor's back end and the GPU's workspace have taken theirs. */
nib_status experts_host_reserve(cuda *c, const backend_rows *rows, nib_error *err);
/* Whether the processor computes experts for the visit. */
bool experts_host_has(const cuda *c, const visit *v);
/* Adds the launches of a step with experts of such a visit. */
nib_status experts_host_launch(const launch_walk *w, const step *s, nib_error *err);
/* What a launch needs of the host, before or after it was queued: computes what was handed down before its
 * results are waited for. */
nib_status experts_host_before(cuda *c, const gpu_launch *l, nib_error *err);
void experts_host_after(cuda *c, const gpu_launch *l);
/* Computes what a graph's launches hand down. After an error the rest is answered with undefined outputs, so
 * that the graph ends. */
nib_status experts_host_serve(cuda *c, const gpu_launch *list, int n, nib_error *err);

#endif
