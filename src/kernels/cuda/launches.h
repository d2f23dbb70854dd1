/* launches.h - the functions of cuda_kernels, each defined in its kernel's file; table.cu fills the table.
 * cuda_kernels.h has their contracts. */
#ifndef NIB_KERNELS_CUDA_LAUNCHES_H
#define NIB_KERNELS_CUDA_LAUNCHES_H

#include "kernels/cuda/cuda_kernels.h"

#define LAUNCH(name, arguments) int name##_launch(const arguments *a, cuda_stream s);
CUDA_LAUNCHES(LAUNCH)
#undef LAUNCH

int handed_down(const uint32_t *down, uint32_t count, cuda_stream s); /* hand.cu */
int gtile_launch(const view *w, bool to_gpu, cuda_stream s);
size_t linear_scratch(int64_t n_row, int64_t k, bool two);
/* Products with matrices of floats (linear_float.cu), for any number of rows; scratch is float_scratch()
 * bytes. */
size_t float_scratch(int64_t n_row, int64_t k);
int float_launch(const cuda_linear *a, cuda_stream s);
/* The kernels of `linear`. LINEAR_BY_RULE: the one that suits the rows and the device; the others are
 * strategies. */
enum linear_kind {
    LINEAR_BY_RULE,
    LINEAR_ONE,
    LINEAR_KEPT,
    LINEAR_PAIR,
    LINEAR_STREAM,
    LINEAR_CLUSTER,
    LINEAR_MANY
};
int linear_launch_as(const cuda_linear *a, linear_kind kind, cuda_stream s);
/* Many rows without codes (reduce_many.cu). CUDA_UNSUPPORTED: too few, or their widths are not those of
 * quads. */
int reduce_many_launch(const cuda_reduce *a, cuda_stream s);
/* reduce.cu */
int share_new(void **p, size_t bytes, cuda_handle *handle);
int share_open(void **p, const cuda_handle *handle);
int share_close(void *p);
/* strategies.cu */
const cuda_strategy *device_strategies(int *n);
const cuda_unit *device_units(int *n);
bool linear_leaves_whole(const cuda_linear *a);
bool linear_sums(const cuda_linear *a);
int64_t linear_left_rows(const view *w);
size_t codes_bytes(int64_t k);
bool has_wide(void);
size_t wide_scratch(int64_t n_row, int64_t k);
bool has_batch(void);
size_t mixed_scratch(int64_t n_row, int64_t k);
/* attend_prompt on sm_90a. CUDA_UNSUPPORTED: the device or the width of the heads is not supported. */
int prompt_wgmma_launch(const cuda_attend *a, cuda_stream s);
/* attend and attend_prompt of keys that are the values too (attend_shared.cu). */
int shared_launch(const cuda_attend *a, cuda_stream s);
int shared_prompt_launch(const cuda_attend *a, cuda_stream s);
size_t shared_scratch(int64_t n_row, int64_t n_head, int64_t d_head);
size_t attend_scratch(int64_t n_row, int64_t n_head, int64_t d_head);
/* Bytes of a device that all processes use; 0: unknown. */
size_t device_used(int device);
size_t residual_scratch(int64_t n_row, int64_t k, int64_t k_chunk);
size_t sample_scratch(int64_t n_row);
bool sketch_takes(const view *head);
int sketch_launch(const view *head, const view *sketch, float *step, cuda_stream s);
size_t shortlist_scratch(void);
int read_all_launch(const void *data, size_t bytes, unsigned *sink, cuda_stream s);
int random_matrix_launch(const view *w, float scale, uint64_t seed, cuda_stream s);

#endif
