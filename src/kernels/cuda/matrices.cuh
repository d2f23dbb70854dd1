/* matrices.cuh - shared by the jobs of products with up to three matrices: the addresses of matrices and
 * outputs, and the layout of a packed matrix. */
#ifndef NIB_KERNELS_CUDA_MATRICES_CUH
#define NIB_KERNELS_CUDA_MATRICES_CUH

#include "kernels/cuda/cuda_kernels.h"

#include <cuda_runtime.h>

/* Matrices are cut into units of equally many outputs, which are numbered one after the other. */
struct job_matrices {
    const uint8_t *w[3];
    int first[3]; /* units before this matrix; beyond all of them if there is no such matrix */
    int n[3];     /* its rows */
    const float *bias[3];
    float *y[3];
    int64_t ldy[3];
};

/* The matrix of a unit. Not for gated products. */
template <class Job> __device__ __forceinline__ int matrix_of(const Job &j, int unit) {
    return (unit >= j.first[1]) + (unit >= j.first[2]);
}

/* Whether the matrices of a product are as cuda_kernels.h requires. */
static inline bool matrices_are(const cuda_linear *a) {
    return a->n_w >= 1 && a->n_w <= 3 && (!a->gated || a->n_w == 2) &&
           (!a->acts || (a->n_w == 1 && !a->adds));
}
/* Sets the job's units of `each` outputs. Returns their number, of one matrix if gated. */
template <class Job> static int units_set(const cuda_linear *a, int each, Job *j) {
    int n_unit = 0;
    j->first[1] = j->first[2] = INT32_MAX;
    for (int i = 0; i < a->n_w; i++) {
        j->first[i] = n_unit;
        if (!a->gated || i == 0)
            n_unit += (int)((a->w[i].n + each - 1) / each);
    }
    return n_unit;
}
/* Also sets the outputs. */
template <class Job> static int outputs_set(const cuda_linear *a, int each, Job *j) {
    for (int i = 0; i < a->n_w; i++) {
        j->n[i] = (int)a->w[i].n;
        j->bias[i] = a->bias[i];
        j->y[i] = a->y[i];
        j->ldy[i] = a->ldy[i];
    }
    return units_set(a, each, j);
}
/* Also sets the matrices. */
template <class Job> static int matrices_set(const cuda_linear *a, int each, Job *j) {
    for (int i = 0; i < a->n_w; i++)
        j->w[i] = (const uint8_t *)a->w[i].data;
    return outputs_set(a, each, j);
}

/* The form of the groups' scales in a chunk. SCALE_NONE: the whole row has one scale. */
enum scale_kind {
    SCALE_NONE,
    SCALE_HALF,
    SCALE_HALF_MIN,
    SCALE_SUPER,
    SCALE_SUPER_MIN,
    SCALE_BYTE,
    SCALE_E8M0
};
static inline scale_kind scale_kind_of(const pack_format *f) {
    if (f->group == PACK_GROUP_ROW)
        return SCALE_NONE;
    switch (f->scale) {
    case PACK_SCALE_F16: return f->asym ? SCALE_HALF_MIN : SCALE_HALF;
    case PACK_SCALE_SUPER: return f->asym ? SCALE_SUPER_MIN : SCALE_SUPER;
    case PACK_SCALE_E8M0: return SCALE_E8M0;
    default: return SCALE_BYTE;
    }
}
/* Sets the job's members that describe the layout of G-tiles. */
template <class Job> static void tiles_set(const view *w, Job *j) {
    const pack_format *f = &w->format;
    const int64_t tiles = tile_count(w->k);
    j->n_chunk = (int)((tiles + TILE_CHUNK - 1) / TILE_CHUNK);
    j->last_tiles = (int)(tiles - (int64_t)(j->n_chunk - 1) * TILE_CHUNK);
    j->chunk_bytes = (int)tile_chunk_bytes(f, TILE_CHUNK);
    j->last_bytes = (int)tile_chunk_bytes(f, j->last_tiles);
    j->panel_bytes = tile_panel_bytes(f, w->k);
    j->tail_at = tile_tail_at(f, w->k);
    j->tail = j->panel_bytes > j->tail_at;
    j->scale_kind = scale_kind_of(f);
    j->asym = f->asym;
    j->zero = tile_zero(f);
    j->scale_start = (int)tile_scale_start(f);
    j->scale_step = (int)tile_scale_step(f);
}

#endif
