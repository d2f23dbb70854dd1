/* cuda.h - the back end on a GPU. Shared by the files of exec/cuda/.
 *
 * The step loop acquires the weights of a visit in the GPU's memory (weights/device_store.h), or on the host
 * if the processor computes the block (in_place.c), its attention (attend_host.c) or experts
 * (experts_host.c). Rows of embeddings are looked up on the GPU if it has the table, otherwise on the host. A
 * block's program becomes a list of steps (steps.c), each one or two launches of kernels/cuda/: a norm is
 * computed with the products that follow it, a gate or a residual addition with the products before it. All
 * work is queued in one stream, and the host waits only for what it reads: results, and rows of experts that
 * the processor computes. The launches of a token are collected over the blocks and replayed as one CUDA
 * graph (replay.c).
 *
 * Generated rows go through a block up to CUDA_MAX_ROWS at a time. If the device has kernels for many rows
 * (cuda_kernels.has_wide), prompt rows use these, however few rows there are. Their last bits differ, so a
 * row's bits depend on its role and not on the number of other rows. There are also two kinds of products for
 * generated rows: `linear`, the fastest for few sequences, and `batch` for many. One of them is chosen for
 * all passes when the back end is opened. Blocks with activations of 4 and 8 bits have a third kind for all
 * rows, `mixed`. */
#ifndef NIB_EXEC_CUDA_CUDA_H
#define NIB_EXEC_CUDA_CUDA_H

#include "exec/backend.h"
#include "exec/cuda/angles.h"
#include "exec/cuda/attend_host.h"
#include "exec/cuda/choices.h"
#include "exec/cuda/estimates.h"
#include "exec/cuda/experts_host.h"
#include "exec/cuda/in_place.h"
#include "exec/cuda/workspace.h"
#include "exec/cuda/reduce.h"
#include "exec/cuda/replay.h"
#include "exec/cuda/residual.h"
#include "exec/cuda/share.h"
#include "exec/cuda/spans.h"
#include "exec/cuda/staged.h"
#include "exec/cuda/steps.h"
#include "model/page_layout.h"
#include "weights/device_store.h"

#include <string.h>

/* The pass and the visit that are being computed. */
typedef struct cuda_now {
    backend_pass pass;
    backend_run run;
    uint8_t *origin;           /* KV pages are numbered from here, in units of DEVICE_CUDA_ALIGN bytes */
    bool has_prompts;          /* the pass has prompt rows */
    bool several[2];           /* a sequence has several rows in the pass: prompt rows; generated ones */
    bool reuses;               /* a sequence's rows overwrite what its earlier rows read (kv_table_rows) */
    bool stored;               /* the visit stores keys and values that attention must wait for */
    bool wide;                 /* the visit's rows use the kernels for prompts */
    const step *coded;         /* the product for which the last launch left codes; NULL: none */
    int64_t coded_row;         /* number in the pass of the first row with codes */
    int64_t n_coded;           /* number of rows with codes */
    bool coded_whole;          /* the codes are those of wider groups (cuda_kernels.leaves_whole) */
    const step *summed;        /* the sum over ranks that the last product has computed itself; NULL: none */
    const void *rows_coded_at; /* codes of the rows of experts */
    const step *rows_coded;    /* the products of experts for which the last ones left codes; NULL: none */
} cuda_now;

struct cuda {
    backend base;
    backend_setup setup;
    const cuda_kernels *k;
    uint64_t driver; /* bytes of VRAM that the driver takes, charged */
    cuda_stream stream;
    bool batched;       /* products of generated rows use `batch`, not `linear` */
    steps *blocks;      /* [n_block] */
    step *all;          /* the steps of all blocks */
    uint32_t registers; /* those that the steps use, a bit each */

    kernel_choice
        *choice;   /* [all weights]: the kernel map's choices for packed matrices; NULL: there is no map */
    uint64_t seen; /* device_store_changes when the last pass began */
    estimates estimates;
    in_place in_place;
    attend_host attend_host;
    experts_host experts_host;
    staged staged;
    reduce reduce;

    gpu_workspace mem;
    angles angles;

    replay replay;
    fetches fetches;
    spans *spans; /* NULL: no timeline is recorded, and graphs are replayed */

    cuda_now now;
    nib_error failed; /* the error of queued work: the GPU computes no more passes */
};

static inline cuda *cuda_of(backend *b) {
    return (cuda *)(void *)b;
}
static inline const model *cuda_model(const cuda *c) {
    return layout_model(c->setup.layout);
}
/* Weight w of a loaded block for kernels; w < 0: data is NULL. Its padding is zero, since launches are
 * compared byte by byte. */
static inline void cuda_weight(const cuda *c, int b, int w, view *out) {
    memset(out, 0, sizeof *out);
    if (w >= 0)
        memcpy(out, &device_store_views(c->base.store, b)[w], sizeof *out);
}
/* Number of a block's weight among all weights of the model. */
static inline int cuda_number(const cuda *c, int b, int w) {
    return layout_pages(c->setup.layout)->first_weight[b] + w;
}

#endif
