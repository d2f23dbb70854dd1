/* linear_job.cuh - the job of the kernels for products of a few rows (linear.cuh). */
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

/* The matrix, with what the launcher computes once. */
struct linear_job {
    /* As job_matrices, in panels. Not as a base: that changes the machine code of linear_one.cu. */
    const uint8_t *w[3];
    int first[3];
    int n[3];
    const float *bias[3];
    float *y[3];
    int64_t ldy[3];
    int max_panels; /* maximum panels of a block */
    int n_unit; /* units of work. A unit is a panel, or one of each matrix if gated; twice that if paired */
    int paired; /* a block takes 2^paired neighbouring panels: 1 if it leaves codes in groups of 32, otherwise
                   0 */
    bool gated, adds;
    int act;
    int k, k_pad; /* to 256 */
    int n_chunk, last_tiles, chunk_bytes, last_bytes, stage_bytes, depth;
    int64_t panel_bytes, tail_at;
    int scale_kind, asym, zero, group, act_group /* 0: the whole row */, subgroup, scale_start, scale_step,
        top;
    bool pieces; /* chunks of 8 bits are copied in two pieces: CHUNK_PIECE bytes, then the others */
    bool tail;   /* the row has its own factor after its chunks */
    uint4 table; /* the shared table (tables.cuh) */
    /* one row, quantized by every block */
    const float *x, *norm;
    float eps;
    const uint8_t *coded; /* or by the launch before */
    codes_row left;       /* or quantized from what that launch left of wider groups; floats NULL: nothing */
    codes_row leaves;     /* codes of the outputs to leave; codes NULL: none */
    codes_rows leaves_rows; /* leaves_rows: for several rows */
    /* several columns, already quantized */
    const uint4 *codes;
    const float4 *meta;
    const float *factor; /* [column]: factor of the norm; lift: [column] */
    const float *lift;
    const float *squares; /* or the sums of squares that the previous launch has left, [column][k / 32] */
    int n_col, two;
    int group_shift; /* log2 of the subgroups of a group */
    /* linear_left.cu */
    int leaves_group;
    int whole;      /* warps of a wider group whose codes are left, 2 or 4; 0: none are left */
    bool by_rule;   /* no other strategy was requested */
    bool early;     /* the next launch may start at once, although no codes are left */
    cuda_ranks sum; /* n_rank 0: nothing is added over ranks */
};

/* The order of the scales of quantized columns. SUMS: with the sums of codes. PLAIN: alone, all columns of
 * each subgroup. PAIRS: alone, for each tile and pair of columns those of both subgroups, so that one load
 * reads four scales of a lane. FOUR: PAIRS for at most four columns; codes also have memory for four only.
 * RECORDS: like PAIRS, but each chunk's codes and scales are together. */
enum meta_order { META_SUMS, META_PLAIN, META_PAIRS, META_FOUR, META_RECORDS };
__host__ __device__ __forceinline__ meta_order kept_order(int n_col) {
    return n_col <= 4 ? META_FOUR : n_col <= 16 ? META_PAIRS : META_PLAIN;
}

#endif
