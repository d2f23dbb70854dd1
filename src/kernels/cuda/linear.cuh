/* linear.cuh - products of a few rows with G-tile matrices: the rules of all kernels, and their launches.
 *
 * A matrix is read once, in the order of memory. A block takes whole panels (16 outputs), its two teams in
 * turn. The WARPS warps of a team take a panel's chunks (256 of K) in turn. Each warp has a ring in shared
 * memory that is filled several chunks ahead. Codes are multiplied by m16n8k32 with exact integer sums.
 *
 * Sums of floats have one order. Lane t of a row's four lanes has tile t of every chunk and adds its
 * subgroups (32 of K, or 16 in groups of 16) in the order of K. Then the lanes are added, then the warps. All
 * kernels keep this order, so a row has the same bits alone and among others. */
#ifndef NIB_KERNELS_CUDA_LINEAR_CUH
#define NIB_KERNELS_CUDA_LINEAR_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_job.cuh"

/* ---- launching (linear.cu) ---- */

/* Fills the job of all kernels of these files. CUDA_UNSUPPORTED: they cannot compute the product. */
int linear_job_make(const cuda_linear *a, linear_job *j);
/* The number of blocks of a launch, at most one a multiprocessor, and the maximum panels of a block. */
static inline int job_blocks(const linear_job &j) {
    return j.n_unit < device_sm_count() ? j.n_unit : device_sm_count();
}
static inline int job_panels(const linear_job &j, int blocks) {
    return (j.n_unit + blocks - 1) / blocks * (j.gated ? 2 : 1) << j.paired;
}
/* The bytes of a stage for `bytes` of data, and the number of stages of rings with this many bytes together:
 * at least min_stages, and at most max_stages, the number of chunks that a warp reads. */
static inline int stage_bytes_of(int bytes) {
    return (bytes + 127) / 128 * 128;
}
static inline int stages_of(const linear_job &j, int64_t bytes, int64_t min_stages, int64_t max_stages) {
    int64_t n = bytes < 0 ? 0 : bytes / (ALL_WARPS * j.stage_bytes);
    n = n > MAX_STAGES ? (int64_t)MAX_STAGES : n < min_stages ? min_stages : n;
    return (int)(n < max_stages ? n : max_stages);
}
/* The number of chunks that a warp reads of this many panels of a block. */
static inline int64_t warp_chunks(const linear_job &j, int64_t panels) {
    return (panels + TEAMS - 1) / TEAMS * ((j.n_chunk + WARPS - 1) / WARPS);
}
/* Bytes of shared memory of a block; sets the depth of the rings in the job. `others` bytes follow the
 * rings. */
size_t linear_shared_bytes(linear_job *j, size_t others, int blocks);
/* Launches a kernel with that memory, at most one block a multiprocessor. */
typedef void (*linear_kernel)(const linear_job);
int linear_run(linear_kernel kernel, linear_job *j, size_t others, cuda_stream s);

/* ---- one row (linear_one.cu) ---- */

bool one_has(const pack_format *f);
int one_launch(linear_job *j, const pack_format *f, cuda_stream s);

/* ---- one row that the previous launch has left (linear_left.cu) ---- */

/* CUDA_UNSUPPORTED: the matrices or the device are not supported, or nothing was left. */
int left_launch(linear_job *j, const pack_format *f, cuda_stream s);
/* Whether left_launch leaves codes of groups of 64 or 128. */
bool left_leaves_whole(const linear_job *j, const pack_format *f);
/* Whether left_launch adds over ranks. */
bool left_sums(const linear_job &j, const pack_format *f);

/* ---- rows in shared memory (linear_kept.cu) ---- */

/* The number of groups of eight columns in one launch, if there are n_col columns; 0: the matrices or the
 * device are not supported, or the rows do not fit. */
int kept_eights(linear_job *j, const pack_format *f, int n_col);
/* Multiplies several quantized columns, in the order of kept_order. */
int kept_launch(linear_job *j, int eights, cuda_stream s);

/* ---- several columns (linear_many.cu) ---- */

size_t many_scratch_bytes(int64_t k_pad, int n_eight);
/* Quantizes the columns into a->scratch for the kernels of several columns, and points the job there. */
int many_quantize(const cuda_linear *a, linear_job *j, int eights, meta_order order, cuda_stream s);
/* Multiplies up to 16 quantized columns in the order META_SUMS. */
int many_launch(linear_job *j, const pack_format *f, int eights, cuda_stream s);

/* ---- up to 16 columns on pairs of blocks, each of which has half of K (linear_pair.cu) ---- */

int pair_eights(linear_job *j, const pack_format *f, int n_col);
/* Multiplies several quantized columns in the order META_PAIRS. */
int pair_launch(linear_job *j, int eights, cuda_stream s);

/* ---- on clusters (linear_cluster.cu) ---- */

/* The same. */
int cluster_eights(linear_job *j, const pack_format *f, int n_col);
int cluster_launch(linear_job *j, int eights, cuda_stream s);

/* ---- weights and columns both streamed (linear_stream.cu), 17 to 64 columns ---- */

int stream_eights(const linear_job *j, const pack_format *f, int n_col);
/* Multiplies several quantized columns in the order META_RECORDS. */
int stream_launch(linear_job *j, int eights, cuda_stream s);

#endif
