/* moves.h - KV pages in host memory that passes of prompt rows copy to the GPU. */
#ifndef NIB_EXEC_CUDA_MOVES_H
#define NIB_EXEC_CUDA_MOVES_H

#include "exec/backend.h"
#include "kernels/cuda/cuda_kernels.h"
#include "memory/region.h"

typedef struct cuda cuda;

/* KV pages in host memory that are copied to the GPU in passes of prompt rows. */
typedef struct moves {
    uint64_t stride;      /* bytes of a page of such a layer on the GPU; 0: there are no such layers */
    int64_t max_page;     /* maximum pages of all planned sequences */
    memory_region memory; /* pages of one layer, then `pairs` */
    int32_t *pairs;       /* [n_page, 2] up, [n_page, 2] down (cuda_move), [n_page] pages for attention */
    int64_t n_page, n_up, n_down;
    uint8_t *origin; /* pages on the host are numbered from here */
    int32_t *list;   /* the host's copy of `pairs` */
    size_t max_list;
} moves;

nib_status moves_reserve(cuda *c, int64_t n_page, nib_error *err);
void moves_close(cuda *c);
/* Lists the pass's pages for layers with keys and values in host memory. */
nib_status moves_begin(cuda *c, nib_error *err);
/* Sets the pages of attention to the copies of a layer's pages, which are `host` on the host. */
void moves_attend(const cuda *c, const kv_view *host, cuda_attend *a);
/* The arguments of a copy. up: copies the pages that attention reads to the GPU; otherwise copies the pages
 * that the rows write back to the host. */
cuda_move moves_of(const cuda *c, const kv_view *host, const cuda_attend *a, bool up);

#endif
