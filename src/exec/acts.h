/* acts.h - the activations of a product: those of the site that its weight reads. */
#ifndef NIB_EXEC_ACTS_H
#define NIB_EXEC_ACTS_H

#include "kernels/kernels.h"
#include "model/model.h"

/* The format of a row for weight w, which is held in format f. bits: as in backend_setup.act_bits; of 16 bits
 * it is the format of each slice. With 8 bits in all blocks a mixed row is a row of 8 bits. */
static inline act_format act_format_of(const weight *w, const pack_format *f, int bits) {
    const bool mixed = bits == NIB_ACT_AX && w->n8 * ACT_BLOCK < w->k;
    return act_format_for(f, bits == 4 || mixed ? 4 : 8, mixed ? w->n8 : 0);
}

#endif
