/* gpu_attend.h - the inputs of a launch of attention on the GPU, for tests of its kernels. */
#ifndef NIB_TESTS_GPU_ATTEND_H
#define NIB_TESTS_GPU_ATTEND_H

#include "support/gpu.h"

typedef struct attend_case {
    int64_t n_head, n_kv, d, n_rot, window;
    rope_style style;
    float softcap;
    int code_bits;
    float alibi; /* its largest bias; 0: there is none */
    float sink;  /* head h's is this times gpu_sink_size(h); 0: there are none */
} attend_case;

/* From far below all scores to far above them. */
static inline float gpu_sink_size(int64_t head) {
    static const float sizes[] = {1, -40, 0, 40, -1};
    return sizes[head % 5];
}

/* Rows of one sequence at positions 0.., or each of a sequence of its own. Caches are full of NaNs, so that
 * reading an unwritten value is noticed. */
typedef struct gpu_attention {
    cuda_attend a;      /* of all rows; q, k and v of a row are contiguous */
    int64_t nq, nk, ld; /* floats of a row: queries, keys, all */
    int64_t n_position;
    float *table; /* [n_position, n_rot] cosines and sines, on the host */
} gpu_attention;

gpu_attention gpu_attention_open(const attend_case *c, int64_t n_row, bool apart, int n_page);
void gpu_attention_close(gpu_attention *g);
/* The launch of rows [r, r + n). */
cuda_attend gpu_attention_rows(const gpu_attention *g, int64_t r, int64_t n);
/* Stores rows [r, r + n) of one sequence and computes attention, as a prompt or as a few rows. */
void gpu_attention_run(const gpu_attention *g, int64_t r, int64_t n, bool as_prompt);

#endif
