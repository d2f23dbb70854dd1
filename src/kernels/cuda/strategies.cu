/* strategies.cu - the strategies of a product on a device as rows of one table, and probes that measure the
 * units of the device. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/sliced/launches.h"

/* ---- which products each can compute ---- */

static bool is_few(const pack_format *f, int64_t n_row) {
    return f->layout == PACK_TILE && f->packing == PACK_PARTS && f->scale != PACK_SCALE_ZERO &&
           n_row <= CUDA_MAX_ROWS;
}
static bool can_one(const pack_format *f, int64_t n_row) {
    return is_few(f, n_row) && n_row == 1;
}
static bool can_several(const pack_format *f, int64_t n_row) {
    return is_few(f, n_row) && n_row > 1;
}
/* Kernels for 4 bits with a half for each group. */
static bool can_nibbles(const pack_format *f, int64_t n_row) {
    return can_several(f, n_row) && f->bits == 4 && f->table == PACK_TABLE_NONE && !f->asym &&
           f->scale == PACK_SCALE_F16 && f->group >= 32 && f->group != PACK_GROUP_ROW;
}
static bool can_pair(const pack_format *f, int64_t n_row) {
    return can_nibbles(f, n_row) && n_row <= 16;
}
static bool can_cluster(const pack_format *f, int64_t n_row) {
    return can_nibbles(f, n_row) && n_row > 16;
}
#ifdef NIB_SLICED
static bool can_slice(const pack_format *f, int64_t n_row) {
    return is_few(f, n_row) && f->table == PACK_TABLE_NONE && f->group >= 32;
}
#endif
/* Prompt rows always use `wide`, without a choice. As a strategy it has the row counts above
 * CUDA_MAX_ROWS. */
static bool can_wide(const pack_format *f, int64_t n_row) {
    return has_wide() && n_row > CUDA_MAX_ROWS && is_few(f, 1);
}

static bool can_pieces(const pack_format *f, int64_t n_row) {
    return !has_wide() && n_row > CUDA_MAX_ROWS && is_few(f, 1);
}

/* Many rows on devices without a kernel for them, CUDA_MAX_ROWS at a time. */
static int launch_pieces(const cuda_linear *a, cuda_stream s) {
    int e = 0;
    for (int64_t first = 0; first < a->n_row && !e; first += CUDA_MAX_ROWS) {
        cuda_linear part = *a;
        part.n_row = a->n_row - first < CUDA_MAX_ROWS ? a->n_row - first : (int64_t)CUDA_MAX_ROWS;
        part.x += first * a->ldx;
        for (int i = 0; i < a->n_w; i++)
            part.y[i] += first * a->ldy[i];
        e = linear_launch_as(&part, LINEAR_BY_RULE, s);
    }
    return e;
}

template <linear_kind KIND> static int launch_as(const cuda_linear *a, cuda_stream s) {
    return linear_launch_as(a, KIND, s);
}

const cuda_strategy *device_strategies(int *n) {
    enum { FEW = CUDA_MAX_ROWS, MANY = STRATEGY_ANY_ROWS };
    /* name, can, run, rule_from, rule_rows, suits, scratch, scratch_of; launch; since, before */
    static const cuda_strategy all[] = {
        {{"padding", is_few, nullptr, 1, FEW, nullptr, 0, nullptr}, launch_as<LINEAR_BY_RULE>, 0, 0},
        {{"padding.one", can_one, nullptr, 0, 0, nullptr, 0, nullptr}, launch_as<LINEAR_ONE>, 0, 0},
        {{"padding.kept", can_nibbles, nullptr, 0, 0, nullptr, 0, nullptr}, launch_as<LINEAR_KEPT>, 90, 0},
        {{"padding.pair", can_pair, nullptr, 0, 0, nullptr, 0, nullptr}, launch_as<LINEAR_PAIR>, 90, 0},
        {{"padding.stream", can_cluster, nullptr, 0, 0, nullptr, 0, nullptr},
         launch_as<LINEAR_STREAM>,
         90,
         0},
        {{"padding.cluster", can_cluster, nullptr, 0, 0, nullptr, 0, nullptr},
         launch_as<LINEAR_CLUSTER>,
         90,
         0},
        {{"padding.many", can_several, nullptr, 0, 0, nullptr, 0, nullptr}, launch_as<LINEAR_MANY>, 0, 0},
#ifdef NIB_SLICED /* the library has code for such a device */
        {{"split", can_slice, nullptr, 0, 0, nullptr, 0, sliced_scratch}, split_launch, 0, 90},
        {{"bitwise", can_slice, nullptr, 0, 0, nullptr, 0, sliced_scratch}, bitwise_launch, 0, 90},
#endif
        {{"padding.wide", can_wide, nullptr, 1, MANY, nullptr, 0, nullptr}, wide_launch, 80, 0},
        {{"padding.pieces", can_pieces, nullptr, 1, MANY, nullptr, 0, nullptr}, launch_pieces, 0, 0},
    };
    *n = sizeof all / sizeof *all;
    return all;
}

int linear_launch(const cuda_linear *a, cuda_stream s) {
    if (a->sum.n_rank > 0 && !linear_sums(a))
        return CUDA_UNSUPPORTED;
    if (a->w[0].format.layout == PACK_ROWS)
        return a->n_row > CUDA_MAX_ROWS ? (int)CUDA_UNSUPPORTED : float_launch(a, s);
    const int e = a->by ? a->by->launch(a, s) : CUDA_UNSUPPORTED;
    return e == CUDA_UNSUPPORTED ? linear_launch_as(a, LINEAR_BY_RULE, s) : e;
}

/* ---- units ---- */

enum {
    UNIT_WARPS = 16 /* warps of a block; there is one block a multiprocessor */,
    UNIT_EACH = 8 /* instructions in a round */
};

/* Independent instructions of one kind on registers. */
enum unit_kind { UNIT_S8, UNIT_S4, UNIT_AND, UNIT_XOR };
template <unit_kind KIND> __device__ __forceinline__ void unit_mma(int d[4], const uint32_t a[4], uint2 b) {
#define NIB_MMA(text)                                                                                        \
    asm volatile("mma.sync.aligned." text " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"           \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y))
#define NIB_MMA_SMALL(text)                                                                                  \
    for (int i = 0; i < 4; i++)                                                                              \
    asm volatile("mma.sync.aligned." text " {%0,%1}, {%2}, {%3}, {%0,%1};"                                   \
                 : "+r"(d[i / 2 * 2]), "+r"(d[i / 2 * 2 + 1])                                                \
                 : "r"(a[i]), "r"(i % 2 ? b.y : b.x))
#if __CUDA_ARCH__ >= 800
    if (KIND == UNIT_S8)
        NIB_MMA("m16n8k32.row.col.s32.u8.s8.s32");
    else if (KIND == UNIT_S4)
        NIB_MMA("m16n8k64.row.col.s32.u4.s4.s32");
    else if (KIND == UNIT_AND)
        NIB_MMA("m16n8k256.row.col.s32.b1.b1.s32.and.popc");
    else
        NIB_MMA("m16n8k256.row.col.s32.b1.b1.s32.xor.popc");
#else
    if (KIND == UNIT_S8)
        NIB_MMA_SMALL("m8n8k16.row.col.s32.u8.s8.s32");
    else if (KIND == UNIT_S4)
        NIB_MMA_SMALL("m8n8k32.row.col.s32.u4.s4.s32");
    else
        NIB_MMA_SMALL("m8n8k128.row.col.s32.b1.b1.s32.xor.popc");
#endif
#undef NIB_MMA
#undef NIB_MMA_SMALL
}

template <unit_kind KIND>
__global__ void __launch_bounds__(32 * UNIT_WARPS) unit_rounds(int rounds, unsigned *sink) {
    uint32_t a[4] = {threadIdx.x, threadIdx.x * 3, threadIdx.x * 5, threadIdx.x * 7};
    const uint2 b = make_uint2(threadIdx.x * 11, threadIdx.x * 13);
    int d[UNIT_EACH][4] = {};
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int i = 0; i < UNIT_EACH; i++)
            unit_mma<KIND>(d[i], a, b);
        a[0] ^= (uint32_t)r;
    }
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4 * UNIT_EACH; i++)
        sum += ((int *)d)[i];
    if (sum == 0x12345677) /* uses the result, so that the compiler keeps the work */
        *sink = 1;
}

template <unit_kind KIND> static int unit_run(int rounds, unsigned *sink, cuda_stream s) {
    unit_rounds<KIND><<<device_sm_count(), 32 * UNIT_WARPS, 0, (cudaStream_t)s>>>(rounds, sink);
    return (int)cudaGetLastError();
}

const cuda_unit *device_units(int *n) {
    static thread_local cuda_unit all[] = {
        {"s8", 8, 8, 75, unit_run<UNIT_S8>, 0},
        {"s4", 4, 4, 75, unit_run<UNIT_S4>, 0},
        {"b1 and", 1, 1, 80, unit_run<UNIT_AND>, 0},
        {"b1 xor", 1, 1, 75, unit_run<UNIT_XOR>, 0},
    };
    for (cuda_unit &u : all) /* an instruction multiplies 16 x 8 x 256 bits of either operand */
        u.products = (int64_t)device_sm_count() * UNIT_WARPS * UNIT_EACH * 16 * 8 * 256 /
                     (u.w_bits == 8   ? 8
                      : u.w_bits == 4 ? 4
                                      : 1);
    *n = sizeof all / sizeof *all;
    return all;
}
