/* cuda_ranks.h - sums over the GPUs of one host, as launches take them: who adds, and where each stores what
 * it adds.
 *
 * Each rank is a GPU of this host, and launches the same sums in the same order. A sum is the rows of all
 * ranks, added in their order, so it has the same bits on all of them. Sums have numbers: a launch has the
 * next ones after `first` of the pass, one for each part of at most max_pair pairs of floats, which is what a
 * rank's memory holds. A pass begins when all ranks have ended the one before. A launch that waits for 4
 * seconds, or whose pass has failed on another rank, ends without a result; *failed is then at least the
 * pass. */
#ifndef NIB_KERNELS_CUDA_CUDA_RANKS_H
#define NIB_KERNELS_CUDA_CUDA_RANKS_H

#include <stdint.h>

enum { CUDA_MAX_RANK = 8, CUDA_REDUCE_SHIFT = 20 /* a number is that of the pass, then that in the pass */ };

typedef struct cuda_ranks {
    int rank, n_rank; /* n_rank 0: nothing is added */
    void
        *places[CUDA_MAX_RANK]; /* of each rank, cuda_ranks_bytes, zeroed once: `share_new` or `share_open` */
    int64_t max_pair;           /* a multiple of 32 */
    const int64_t *pass;        /* number of the pass, in device memory, not written while the graph runs */
    int64_t first;
    int64_t *failed; /* host memory that all ranks share, as a device pointer of `map` */
} cuda_ranks;

/* Tiles of many rows that a rank's memory holds beside the lines of pairs. */
enum { CUDA_TILE_QUADS = 1024 /* of 4 floats */ };
static inline int64_t cuda_ranks_tiles(int64_t max_pair) {
    return (max_pair + CUDA_TILE_QUADS / 4 - 1) / (CUDA_TILE_QUADS / 4);
}
static inline int64_t cuda_ranks_bytes(int n_rank, int64_t max_pair) {
    const int64_t tiles = cuda_ranks_tiles(max_pair);
    return 2 * n_rank * max_pair * 16 + (2 * tiles + n_rank) * CUDA_TILE_QUADS * 16 +
           (n_rank + 1) * tiles * 8;
}
/* Rows of logits, of which each rank has computed some columns: all get all. */
typedef struct cuda_gather {
    float *x; /* [n_row, ld], 8-byte aligned rows */
    int64_t ld, n_row;
    int64_t first[CUDA_MAX_RANK + 1]; /* rank r has columns [first[r], first[r + 1]), from an even one on */
    cuda_ranks of;                    /* of sums of rows of cuda_gather_width() */
} cuda_gather;
/* The most columns of a rank, made even. */
static inline int64_t cuda_gather_width(const cuda_gather *a) {
    int64_t most = 0;
    for (int r = 0; r < a->of.n_rank; r++)
        most = a->first[r + 1] - a->first[r] > most ? a->first[r + 1] - a->first[r] : most;
    return (most + 1) / 2 * 2;
}
/* The number of parts of n_row rows of n, and the pairs of each but the last, which may have fewer. */
static inline int64_t cuda_ranks_parts(int64_t n_row, int64_t n, int64_t max_pair) {
    return (n_row * (n / 2) + max_pair - 1) / max_pair;
}
static inline int64_t cuda_ranks_part(int64_t n_row, int64_t n, int64_t max_pair) {
    const int64_t parts = cuda_ranks_parts(n_row, n, max_pair), each = (n_row * (n / 2) + parts - 1) / parts;
    return parts == 1 ? each : (each + 31) / 32 * 32;
}

/* Device memory that another process of the host can open. */
typedef struct cuda_handle {
    char bytes[64];
} cuda_handle;

#endif
