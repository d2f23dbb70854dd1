/* choices.h - the strategy of each of a model's products, from the kernel map, chosen once at open.
 *
 * Matrices of the same shape, format and activations share one choice, so that the few choices stay in the
 * first-level cache. Read-only afterwards. */
#ifndef NIB_EXEC_CPU_CHOICES_H
#define NIB_EXEC_CPU_CHOICES_H

#include "kernels/kernel_map.h"
#include "model/layout.h"

typedef struct choices {
    kernel_choice *list; /* [n], one for each shape and format */
    int n;
    int *first;               /* [n_block]: index in `of` of a block's first weight */
    const kernel_choice **of; /* [weights of the model]; NULL for weights that are not packed */
} choices;                    /* zeroed: there are none, and the rule decides for every product */

/* Makes the choices of all weights. p: the kernel map, not needed afterwards; NULL: none. act_bits:
 * [n_block], 4, 8 or 16 (two slices of 8). NIB_E_NOMEM. */
nib_status choices_open(choices *r, const layout *lay, const kernel_map *p, const kernel_table *t,
                        const uint8_t *act_bits, nib_error *err);
void choices_close(choices *r);

static inline const kernel_choice *choices_of(const choices *r, int b, int w) {
    return r->of ? r->of[r->first[b] + w] : NULL;
}

#endif
