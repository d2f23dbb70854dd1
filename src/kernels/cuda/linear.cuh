/* linear.cuh - products of a few rows with G-tile matrices: the rules of all kernels, and their launches.
 *
 * A matrix is read once, in the order of memory. A block takes whole panels (16 outputs), its two teams in
 * turn. The WARPS warps of a team take a panel's chunks (256 of K) in turn. Each warp has a ring in shared
 * memory that is filled several chunks ahead. Codes are multiplied by m16n8k32 with exact integer sums.
 *
 * Sums of floats have one order. Lane t of a row's four lanes has tile t of every chunk and adds its slices
 * (32 of K, or 16 in groups of 16) in the order of K. Then the lanes are added, then the warps. All kernels
 * keep this order, so a row has the same bits alone and among others. */
#ifndef NIB_KERNELS_CUDA_LINEAR_CUH
#define NIB_KERNELS_CUDA_LINEAR_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_job.cuh"

/* ---- launching (linear.cu) ---- */

/* What every kernel of these files is told. CUDA_UNSUPPORTED: not such products. */
int linear_job_make(const cuda_linear *a, linear_job *j);
/* Blocks of a launch, one a multiprocessor at most; panels of the one that has most. */
static inline int job_blocks(const linear_job &j) {
    return j.n_unit < device_sm_count() ? j.n_unit : device_sm_count();
}
static inline int job_panels(const linear_job &j, int blocks) {
    return (j.n_unit + blocks - 1) / blocks * (j.gated ? 2 : 1) << j.paired;
}
/* Bytes of a stage that has so many; stages of rings that have so many bytes together: `least` or more, and
 * no more than `most`, which is what a warp reads. */
static inline int stage_bytes_of(int bytes) {
    return (bytes + 127) / 128 * 128;
}
static inline int stages_of(const linear_job &j, int64_t bytes, int64_t least, int64_t most) {
    int64_t n = bytes < 0 ? 0 : bytes / (ALL_WARPS * j.stage_bytes);
    n = n > MAX_STAGES ? (int64_t)MAX_STAGES : n < least ? least : n;
    return (int)(n < most ? n : most);
}
/* Chunks that a warp reads of so many panels of a block. */
static inline int64_t warp_chunks(const linear_job &j, int64_t panels) {
    return (panels + TEAMS - 1) / TEAMS * ((j.n_chunk + WARPS - 1) / WARPS);
}
/* Shared memory of a block and the rings' depth, which goes into the job; `others` bytes stand behind the
 * rings. */
size_t linear_shared_bytes(linear_job *j, size_t others, int blocks);
/* Launches a kernel with that memory, one block a multiprocessor at most. */
typedef void (*linear_kernel)(const linear_job);
int linear_run(linear_kernel kernel, linear_job *j, size_t others, cuda_stream s);

/* ---- one row (linear_one.cu) ---- */

bool one_has(const pack_format *f);
int one_launch(linear_job *j, const pack_format *f, cuda_stream s);

/* ---- one row that the launch before has left (linear_left.cu) ---- */

/* CUDA_UNSUPPORTED: not such matrices, not this device, or nothing was left. */
int left_launch(linear_job *j, const pack_format *f, cuda_stream s);
/* Whether left_launch leaves codes of groups of 64 or 128. */
bool left_leaves_whole(const linear_job *j, const pack_format *f);

/* ---- rows in shared memory (linear_kept.cu) ---- */

/* Groups of eight columns that one of its launches takes, of n_col in all; 0: not such matrices, not this
 * device, or the rows do not fit. */
int kept_eights(linear_job *j, const pack_format *f, int n_col);
/* Several columns, quantized, in the order of kept_order. */
int kept_launch(linear_job *j, int eights, cuda_stream s);

/* ---- several columns (linear_many.cu) ---- */

size_t many_scratch_bytes(int64_t k_pad, int n_eight);
/* Quantizes the columns into a->scratch for the kernels of several columns, and points the job there. */
int many_quantize(const cuda_linear *a, linear_job *j, int eights, meta_order order, cuda_stream s);
/* Up to 16 columns, quantized, as META_SUMS. */
int many_launch(linear_job *j, const pack_format *f, int eights, cuda_stream s);

/* ---- the same on pairs of blocks that have half of K each (linear_pair.cu), up to 16 columns ---- */

int pair_eights(linear_job *j, const pack_format *f, int n_col);
/* Several columns, quantized, as META_PAIRS. */
int pair_launch(linear_job *j, int eights, cuda_stream s);

/* ---- on clusters (linear_cluster.cu) ---- */

/* The same. */
int cluster_eights(linear_job *j, const pack_format *f, int n_col);
int cluster_launch(linear_job *j, int eights, cuda_stream s);

/* ---- weights and columns both streamed (linear_stream.cu), 17 to 64 columns ---- */

int stream_eights(const linear_job *j, const pack_format *f, int n_col);
/* Several columns, quantized, as META_RECORDS. */
int stream_launch(linear_job *j, int eights, cuda_stream s);

#endif
