/* code_order.h - the orders of kv8 and kv4 in a head's block of CUDA_PAGE positions: the processor's
 * (kernels/kv_layout.h) and the GPU's (cuda_kv). A place is the number of a code's byte, with 4 bits of its
 * half of a byte, the lower half first. Scales and minima of keys have the same order; those of values are
 * [CUDA_PAGE][groups] and [groups][CUDA_PAGE]. */
#ifndef NIB_KERNELS_CUDA_CODE_ORDER_H
#define NIB_KERNELS_CUDA_CODE_ORDER_H

#include <stdbool.h>

#ifdef __CUDACC__
#define CODE_ORDER static __host__ __device__ __forceinline__
#else
#define CODE_ORDER static inline
#endif

/* A head's block: of keys or of values, d_pad channels. */
typedef struct code_block {
    int bits, d_pad;
    bool is_value;
} code_block;
typedef struct code_at {
    int channel, position;
} code_at;

CODE_ORDER int code_host_place(code_block b, code_at x) {
    const int half = b.d_pad / 2;
    if (b.bits == 8)
        return b.is_value ? x.position * b.d_pad + x.channel : x.channel * 64 + x.position;
    return b.is_value ? (x.position * half + x.channel / 32 * 16 + x.channel % 16) * 2 + x.channel % 32 / 16
                      : (x.channel * 32 + x.position % 32) * 2 + x.position / 32;
}

CODE_ORDER code_at code_host_at(code_block b, int place) {
    const int byte = place / 2, high = place % 2, half = b.d_pad / 2;
    if (b.bits == 8)
        return b.is_value ? (code_at){place % b.d_pad, place / b.d_pad} : (code_at){place / 64, place % 64};
    return b.is_value ? (code_at){byte % half / 16 * 32 + byte % half % 16 + high * 16, byte / half}
                      : (code_at){byte / 32, byte % 32 + high * 32};
}

/* With 4 bits, code i of eight is at bit i / 2 * 4 + i % 2 * 16 of a dword. */
CODE_ORDER int code_device_place(code_block b, code_at x) {
    const int i = b.is_value ? (x.position / 32 * b.d_pad + x.channel) * 32 + x.position % 32
                             : x.position * b.d_pad + x.channel;
    return b.bits == 8 ? i : i / 8 * 8 + i % 8 / 2 + i % 2 * 4;
}

CODE_ORDER code_at code_device_at(code_block b, int place) {
    const int i = b.bits == 8 ? place : place / 8 * 8 + place % 4 * 2 + place % 8 / 4;
    return b.is_value ? (code_at){i / 32 % b.d_pad, i / 32 / b.d_pad * 32 + i % 32}
                      : (code_at){i % b.d_pad, i / b.d_pad};
}

#endif
