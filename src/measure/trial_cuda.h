/* trial_cuda.h - times the strategies of one product on a GPU; trial.h has the results.
 *
 * Weights with random codes rotate through device memory that is several times as large as the cache. A
 * sample is a graph of launches of one strategy, and events time it. Candidates take turns with a graph that
 * reads the same bytes, one launch for each matrix. A launch quantizes the rows, as in a model. */
#ifndef NIB_MEASURE_TRIAL_CUDA_H
#define NIB_MEASURE_TRIAL_CUDA_H

#include "profile/gpu_kernels.h"
#include "measure/trial.h"

typedef struct trial_cuda trial_cuda;

/* Opens a trial and measures the GPU's arithmetic units (0.1 s). gpu is borrowed. cap: maximum bytes of
 * device memory for weights; NIB_AUTO: half of the free memory. NIB_E_NOFIT: below 64 MiB. cancel NULL: none.
 */
nib_status trial_cuda_open(const gpu_kernels *gpu, uint64_t cap, const canceller *cancel, trial_cuda **out,
                           nib_error *err);
void trial_cuda_close(trial_cuda *t); /* NULL is fine */

uint64_t trial_cuda_bytes(const trial_cuda *t); /* of rotating weights */
/* DPR's set H of the device: rates for one multiprocessor. Returns the number of units. */
int trial_cuda_units(const trial_cuda *t, dpr_unit out[DPR_MAX_UNIT]);

/* The functions by which kernel_profile uses a trial_cuda. */
extern const trial_kind trial_cuda_kind;

#endif
