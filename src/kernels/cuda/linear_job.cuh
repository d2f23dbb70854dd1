/* linear_job.cuh - what the kernels of products of a few rows are told (linear.cuh): a job. */
#ifndef NIB_KERNELS_CUDA_LINEAR_JOB_CUH
#define NIB_KERNELS_CUDA_LINEAR_JOB_CUH

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/matrices.cuh"

enum {
    WARPS = 8 /* of a team */,
    TEAMS = 2,
    ALL_WARPS = TEAMS * WARPS,
    THREADS = 32 * ALL_WARPS,
    MAX_STAGES = 8,
    CHUNK_PIECE = 2 * TILE_K * PACK_PANEL
};

/* What the launcher works out once. */
struct linear_job {
    /* As job_matrices, in panels. Not as a base: that changes the machine code of linear_one.cu. */
    const uint8_t *w[3];
    int first[3];
    int n[3];
    const float *bias[3];
    float *y[3];
    int64_t ldy[3];
    int most;   /* panels of the block that has most */
    int n_unit; /* of work: a panel, or one of each matrix when gated; twice that when paired */
    int paired; /* a block takes 2^paired neighbouring panels, since it leaves codes: 1 in groups of 32; else
                   0 */
    bool gated, adds;
    int act;
    int k, k_pad; /* to 256 */
    int n_chunk, last_tiles, chunk_bytes, last_bytes, stage_bytes, depth;
    int64_t panel_bytes, tail_at;
    int scale_kind, asym, zero, group, act_group /* 0: the whole row */, slice, scale_start, scale_step, top;
    bool pieces; /* chunks of 8 bits are asked for in two pieces, of CHUNK_PIECE bytes and of the others */
    bool tail;   /* the row has a factor of its own behind its chunks */
    uint4 table; /* of all rows (tables.cuh) */
    /* one row, quantized by every block */
    const float *x, *norm;
    float eps;
    const uint8_t *coded;   /* or by the launch before */
    codes_row left;         /* or from what that left of wider groups; no floats: nothing */
    codes_row leaves;       /* of the outputs; no codes: none */
    codes_rows leaves_rows; /* the same of several rows */
    /* several columns, quantized before */
    const uint4 *codes;
    const float4 *meta;
    const float *factor; /* [column]: of the norm; lift: [column] */
    const float *lift;
    const float *squares; /* or the sums of squares that the launch before has left, [column][k / 32] */
    int n_col, two;
    int group_shift; /* slices of a group, log 2 */
    /* linear_left.cu */
    int leaves_group;
    int whole;    /* warps of a wider group whose codes are left, 2 or 4; 0: of none */
    bool by_rule; /* no other strategy was asked for */
    bool early;   /* the next launch may start at once though no codes are left */
};

/* How quantized columns' scales lie: with sums of codes; alone, of each slice all columns; alone, of each
 * tile and pair of columns those of both slices, so that a lane has its four by one load. FOUR: there are at
 * most four columns, and codes too have no room for more. RECORDS: as pairs, but each chunk's codes and
 * scales lie together. */
enum meta_order { META_SUMS, META_PLAIN, META_PAIRS, META_FOUR, META_RECORDS };
__host__ __device__ __forceinline__ meta_order kept_order(int n_col) {
    return n_col <= 4 ? META_FOUR : n_col <= 16 ? META_PAIRS : META_PLAIN;
}

#endif
