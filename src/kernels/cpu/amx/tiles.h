/* tiles.h - the AMX instructions, and nothing else. Own assembly, because gcc 12's _tile_loadconfig says that
 * it reads 8 bytes of the 64 (so the rest is optimised away) and its _tile_loadd says that it reads none.
 *
 * There are 8 tiles of up to 16 rows x 64 bytes. Registers are numbers in the instructions, so these are
 * macros: REG is a literal 0..7. A thread calls tiles_configure before the first and tiles_release after the
 * last, so that the system has 8 KiB less to save when it switches threads. The process needs the system's
 * permission (base/cpu.c asks for it when it looks for the feature).
 *
 * tests/support/amx_emulated.h has the same names in plain C for processors without AMX. */
#ifndef NIB_KERNELS_AMX_TILES_H
#define NIB_KERNELS_AMX_TILES_H

#include <stdint.h>

typedef struct tiles_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row, for each register */
    uint8_t rows[16];
} tiles_config;
_Static_assert(sizeof(tiles_config) == 64, "as the processor reads it");

static inline void tiles_configure(const tiles_config *c) {
    __asm__ volatile("ldtilecfg %0" ::"m"(*c) : "memory");
}
static inline void tiles_release(void) {
    __asm__ volatile("tilerelease" ::: "memory");
}

#define TILES_ZERO(REG) __asm__ volatile("tilezero %%tmm" #REG ::: "memory")
/* Rows `step` bytes apart. */
#define TILES_LOAD(REG, from, step)                                                                          \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #REG ::"r"((const void *)(from)), "r"((int64_t)(step))     \
                     : "memory")
#define TILES_STORE(REG, to, step)                                                                           \
    __asm__ volatile("tilestored %%tmm" #REG ", (%0,%1,1)" ::"r"((void *)(to)), "r"((int64_t)(step))         \
                     : "memory")
/* SUM[m][n] += the dot product of row m of A and column n of B, four bytes at a time: B's row q holds quad q
 * of all columns. A is signed; B is signed, or unsigned. */
#define TILES_DOT_SIGNED(SUM, A, B)                                                                          \
    __asm__ volatile("tdpbssd %%tmm" #B ", %%tmm" #A ", %%tmm" #SUM ::: "memory")
#define TILES_DOT_UNSIGNED(SUM, A, B)                                                                        \
    __asm__ volatile("tdpbsud %%tmm" #B ", %%tmm" #A ", %%tmm" #SUM ::: "memory")
/* SUM[m][n] += e + o: e and o are chains of fused multiply-adds from zero over the even and the odd bf16 of
 * row m of A and column n of B, whose row q holds pair q of all columns. Floats, rounded to nearest even;
 * what is below 2^-126 counts as zero. */
#define TILES_DOT_BF16(SUM, A, B)                                                                            \
    __asm__ volatile("tdpbf16ps %%tmm" #B ", %%tmm" #A ", %%tmm" #SUM ::: "memory")

#endif
