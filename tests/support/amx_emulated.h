/* amx_emulated.h - AMX tiles in plain C. Included before the kernel's source, it replaces
 * kernels/cpu/amx/tiles.h (it has the same names and include guard), so that the kernel's logic is tested on
 * processors without AMX. amx_emulated is then that kernel, emulated_sliced the one with float weights.
 * Shapes that the instructions would refuse are counted in amx_emulated_faults. */
#ifndef NIB_KERNELS_AMX_TILES_H
#define NIB_KERNELS_AMX_TILES_H

#include "kernels/strategy.h"

typedef struct tiles_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tiles_config;

void tiles_configure(const tiles_config *c);
void tiles_release(void);
void emulated_zero(int i);
void emulated_load(int i, const void *from, int64_t step);
void emulated_store(int i, void *to, int64_t step);
void emulated_dot(int sum, int a, int b, bool is_signed);
void emulated_dot_bf16(int sum, int a, int b);

#define TILES_ZERO(REG)               emulated_zero(REG)
#define TILES_LOAD(REG, from, step)   emulated_load(REG, from, step)
#define TILES_STORE(REG, to, step)    emulated_store(REG, to, step)
#define TILES_DOT_SIGNED(SUM, A, B)   emulated_dot(SUM, A, B, true)
#define TILES_DOT_UNSIGNED(SUM, A, B) emulated_dot(SUM, A, B, false)
#define TILES_DOT_BF16(SUM, A, B)     emulated_dot_bf16(SUM, A, B)

extern const strategy amx_emulated;
/* The same of amx_linear_sliced, amx_sliced_suits and amx_sliced_scratch. */
void emulated_sliced(const linear_args *a, int64_t n0, int64_t n1);
bool emulated_sliced_suits(type_id type, int64_t n_row);
size_t emulated_sliced_scratch(void);
extern int amx_emulated_faults; /* since the start; 0 if all shapes were right */

#endif
