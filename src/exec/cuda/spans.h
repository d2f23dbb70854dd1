/* spans.h - the timeline of a pass, while it is recorded. */
#ifndef NIB_EXEC_CUDA_SPANS_H
#define NIB_EXEC_CUDA_SPANS_H

#include "exec/cuda/replay.h"
#include "kernels/cuda/cuda_kernels.h"
#include "memory/device.h"

typedef struct cuda cuda;

/* The timeline of a pass, while it is recorded (spans.c). */
typedef struct spans spans;

/* Begin and end a span around work that is queued in a stream. They have no effect unless a timeline is
 * recorded, and return CUDA's error. of: name, lane, bytes and MACs of the span. */
int spans_open(const cuda *c, const nib_span *of, cuda_stream on);
int spans_close(const cuda *c, cuda_stream on);
/* Copies over the link in the kernels' stream, and records the span of the copy. */
nib_status spans_copy(const cuda *c, const char *what, device_lane lane, void *to, const void *from,
                      uint64_t n_byte, nib_error *err);
/* Records a span of the host from `start` (time_now) to now. */
void spans_of_host(const cuda *c, const char *what, double start);
/* backend_kind.spans_start and spans_stop. */
nib_status spans_start(cuda *c, size_t max, nib_span_scale *scale, nib_error *err);
nib_status spans_stop(cuda *c, nib_span *out, size_t *n, size_t *n_dropped, nib_error *err);
void spans_drop(cuda *c);

/* ---- span_of.c ---- */
/* The name, lane, bytes and MACs of a launch. */
nib_span span_of(const cuda *c, const gpu_launch *l);

#endif
