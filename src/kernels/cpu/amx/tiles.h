/* tiles.h - the AMX instructions. They are inline assembly, because gcc 12 declares that _tile_loadconfig
 * reads 8 of the 64 bytes (so the others are optimised away) and that _tile_loadd reads none.
 *
 * There are 8 tiles of up to 16 rows x 64 bytes. A register is a number in the instruction, so these are
 * macros, and REG is a literal 0..7. A thread calls tiles_configure before its first instruction and
 * tiles_release after the last, so that the system saves 8 KiB less when it switches threads. The process
 * needs the system's permission (base/cpu.c asks for it when it looks for the feature).
 *
 * tests/support/amx_emulated.h has the same names in plain C for processors without AMX. */
#ifndef NIB_KERNELS_AMX_TILES_H
#define NIB_KERNELS_AMX_TILES_H

#include <stdint.h>

typedef struct tiles_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* bytes of a row, for each register */
    uint8_t rows[16];
} tiles_config;
_Static_assert(sizeof(tiles_config) == 64, "the processor reads 64 bytes");

static inline void tiles_configure(const tiles_config *c) {
    __asm__ volatile("ldtilecfg %0" ::"m"(*c) : "memory");
}
static inline void tiles_release(void) {
    __asm__ volatile("tilerelease" ::: "memory");
}

#define TILES_ZERO(REG) __asm__ volatile("tilezero %%tmm" #REG ::: "memory")
/* Loads and stores a tile whose rows are `step` bytes apart in memory. */
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
 * magnitudes below 2^-126 count as zero. */
#define TILES_DOT_BF16(SUM, A, B)                                                                            \
    __asm__ volatile("tdpbf16ps %%tmm" #B ", %%tmm" #A ", %%tmm" #SUM ::: "memory")

#endif
