/* gpu.h - the rates of the first GPU. */
#ifndef NIB_MEASURE_GPU_H
#define NIB_MEASURE_GPU_H

/* Rates per second, the best of a few passes; 0: unknown. */
typedef struct gpu_rates {
    double link; /* bytes from page-locked memory to the GPU */
    double read; /* bytes that a kernel reads of its memory */
    double macs; /* multiply-adds of a product of many rows with weights of 4 bits */
} gpu_rates;

/* Measures the rates; blocks for some tens of milliseconds. All 0: there is no GPU, or the measurement
 * failed. */
void gpu_rates_measure(gpu_rates *out);

#endif
