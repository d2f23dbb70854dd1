/* wgmma.cuh - the matrix instruction of sm_90a: 64 rows of weights in registers times N rows of halves in
 * shared memory, both along K, added to floats. */
#ifndef NIB_KERNELS_CUDA_WGMMA_CUH
#define NIB_KERNELS_CUDA_WGMMA_CUH

#include <stdint.h>

/* d = a . b, plus d if `keep`. ACROSS: b is stored [K][N rows]. */
template <int N, int ACROSS = 0> struct wgmma;
/* clang-format off */
/* A lane's sums d[0], d[1], ...: F(first), then X(each later one). */
#define WGMMA_SUMS_8(F, X)                                                                                   \
    F(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define WGMMA_SUMS_16(F, X)                                                                                  \
    WGMMA_SUMS_8(F, X)                                                                                       \
    X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define WGMMA_SUMS_32(F, X)                                                                                  \
    WGMMA_SUMS_16(F, X)                                                                                      \
    X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define WGMMA_SUMS_64(F, X)                                                                                  \
    WGMMA_SUMS_32(F, X)                                                                                      \
    X(32) X(33) X(34) X(35) X(36) X(37) X(38) X(39) X(40) X(41) X(42) X(43) X(44) X(45) X(46) X(47)          \
    X(48) X(49) X(50) X(51) X(52) X(53) X(54) X(55) X(56) X(57) X(58) X(59) X(60) X(61) X(62) X(63)
#define WGMMA_SUMS_128(F, X)                                                                                 \
    WGMMA_SUMS_64(F, X)                                                                                      \
    X(64) X(65) X(66) X(67) X(68) X(69) X(70) X(71) X(72) X(73) X(74) X(75) X(76) X(77) X(78) X(79)          \
    X(80) X(81) X(82) X(83) X(84) X(85) X(86) X(87) X(88) X(89) X(90) X(91) X(92) X(93) X(94) X(95)          \
    X(96) X(97) X(98) X(99) X(100) X(101) X(102) X(103) X(104) X(105) X(106) X(107) X(108) X(109) X(110)     \
    X(111) X(112) X(113) X(114) X(115) X(116) X(117) X(118) X(119) X(120) X(121) X(122) X(123) X(124)        \
    X(125) X(126) X(127)
#define WGMMA_FIRST_NAME(i) "%" #i
#define WGMMA_NAME(i) ", %" #i
#define WGMMA_FIRST_SUM(i) "+f"(d[i])
#define WGMMA_SUM(i) , "+f"(d[i])

/* N: rows; SUMS: a lane's sums. The others are the numbers of the operands after the sums: a, b, keep,
 * across. */
#define WGMMA(N, SUMS, A0, A1, A2, A3, B, KEEP, LIES)                                                        \
    template <int ACROSS> struct wgmma<N, ACROSS> {                                                          \
        static __device__ __forceinline__ void add(float (&d)[SUMS], const uint32_t a[4], uint64_t b,        \
                                                   int keep = 1) {                                           \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #KEEP ", 0;\n"                                 \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" WGMMA_SUMS_##SUMS(       \
                             WGMMA_FIRST_NAME, WGMMA_NAME) "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, "   \
                         "%" #B ", p, 1, 1, %" #LIES ";\n}"                                                  \
                         : WGMMA_SUMS_##SUMS(WGMMA_FIRST_SUM, WGMMA_SUM)                                     \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(ACROSS));      \
        }                                                                                                    \
    };
WGMMA(16, 8, 8, 9, 10, 11, 12, 13, 14)
WGMMA(32, 16, 16, 17, 18, 19, 20, 21, 22)
WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38)
WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70)
WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134)
#undef WGMMA
/* clang-format on */

/* Call it before the first instruction, and after writing registers that an instruction reads. */
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_end_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
/* Keeps reads of a sum's registers after the preceding wait. */
template <int N> __device__ __forceinline__ void wgmma_read(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
/* The descriptor of an operand in lines of 128 bytes (64 of K, or of N with ACROSS) whose 16-byte pieces are
 * swizzled: piece i of line r is at i xor r % 8. `at` is a multiple of 1,024, plus an even number of pieces
 * within a line. next: bytes to the next 64 of N, with ACROSS. */
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t at, uint32_t next = 16) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(next >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* Sets the number of registers of the group's threads from here on. Registers that one group gives back, the
 * others may take. */
template <int N> __device__ __forceinline__ void registers_keep() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N> __device__ __forceinline__ void registers_take() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

#endif
