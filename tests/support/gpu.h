/* gpu.h - the GPU that the CUDA kernels' tests run on: its kernels, one stream, memory for matrices and rows.
 * A failing call fails the test that makes it. */
#ifndef NIB_TESTS_GPU_H
#define NIB_TESTS_GPU_H

#include "kernels/cuda_load.h"
#include "matrix.h"

extern const cuda_kernels *cuda; /* set by gpu_open */
extern cuda_stream stream;

/* For main(): loads the kernels and opens device 0; argv[1] is a pattern for the names of tests. False: there
 * is no GPU; gpu_missing then runs one test that is skipped with the reason. */
bool gpu_open(int argc, char **argv);
int gpu_missing(void);

void cuda_ok(int error, const char *what);
#define OK(call) cuda_ok(call, #call)

void *device_new(size_t bytes); /* drop() */
void *device_copy(const void *data, size_t bytes);
void read_back(void *host, const void *p, size_t bytes);
view matrix_there(const matrix *m); /* a copy on the device, in its order; drop(.data) */
void drop(const void *p);

#endif
