/* pack_isa.h - faster packing and encoding with an instruction set.
 *
 * src/numbers/cpu/NAME/ has one and defines `const pack_isa packers_NAME` once. The build lists the folders
 * that it finds (build/gen/registry.c defines pack_isas) and compiles each with the flags of that name. Every
 * row gives the same bytes, so the packed file of one machine serves another. A row is plain data: no code
 * that was compiled for a processor runs before that processor is detected. */
#ifndef NIB_NUMBERS_PACK_ISA_H
#define NIB_NUMBERS_PACK_ISA_H

#include "numbers/encode_kernels.h"
#include "numbers/pack.h"
#include "numbers/pack_scale.h"

#include <stddef.h>

enum { PACK_CHUNK = 256 };

/* Packs one chunk of a panel with all its 16 rows, in the parts packing. Input: n_block blocks of the type
 * (up to 256 elements) that begin `at` bytes into each row. Output: the whole tiles that a block begins in,
 * and the scales; padding between scales stays as it is. Reads nothing beyond the blocks. */
typedef void (*pack_chunk_fn)(const uint8_t *const rows[PACK_PANEL], size_t at, int n_block, uint8_t *tiles,
                              uint8_t *scales);

typedef struct pack_range {
    float low, high;
    bool bad; /* a value is not finite */
} pack_range;

/* The loops of rounding values to uniform formats. */
typedef struct pack_rounder {
    void (*f16_values)(const void *raw, float *out, int64_t n);
    void (*f16_write)(const float *x, void *raw, int64_t n);
    /* Adds n values to the range *r, which begins as {INFINITY, -INFINITY, false}. */
    void (*ends)(const float *x, int n, pack_range *r);
    /* pack_scale_search and pack_scale_search_line of pack_scale.h */
    uint16_t (*search)(const pack_values *v, int zero, float peak, uint16_t plain);
    void (*search_line)(const pack_values *v, int max, float low, float high, uint16_t *scale, uint16_t *min);
    /* The nearest code to (x - min) / step, in 0...max; step 0 or NaN gives the zero point. */
    void (*codes)(const float *x, int n, float min, float step, int zero, int max, uint8_t *codes);
} pack_rounder;

typedef struct pack_isa {
    const char *name;      /* as NIBBLE_ISA spells it */
    int rank;              /* fewest features first; ref is 0 */
    const char *needs[4];  /* features of cpu.h that all must be allowed; NULL-terminated */
    const char *beyond[4]; /* values of NIBBLE_ISA that exclude this folder; NULL-terminated */
    /* Packs one tile from codes (one a byte, 16 rows that are PACK_CHUNK bytes apart). NULL: inherited from
     * the folder of lower rank. */
    void (*tile)(const pack_format *f, const uint8_t *codes, uint8_t *tile);
    const pack_rounder *round;       /* NULL: inherited */
    const encode_kernels *encode;    /* NULL: inherited */
    pack_chunk_fn chunk[TYPE_COUNT]; /* by file type, in the format that pack_choose gives; NULL: inherited */
} pack_isa;

/* The i-th folder that this processor can run, by ascending rank; functions that it lacks are inherited from
 * lower ranks. NULL after the last. */
const pack_isa *pack_isa_at(int i);
/* The folder of the highest rank that the processor and NIBBLE_ISA allow. Chosen once; never NULL. */
const pack_isa *pack_isa_best(void);
/* pack_panel_from with a given folder. */
void pack_panel_by(const pack_isa *isa, const pack_format *f, const pack_from *from, int64_t k, int64_t first,
                   int n_row, const void *const *rows, void *dst, void *scratch);

extern const pack_rounder pack_rounder_plain; /* in plain C; the others must give equal results */
extern const pack_isa *const pack_isas[];     /* in any order, NULL after the last */

#endif
