/* routes.h - which strategy computes each of a model's products: the kernel map, settled once at open.
 *
 * Matrices of the same shape, format and activations share one route, so that the few there are stay in the
 * first-level cache. Read-only afterwards. */
#ifndef NIB_EXEC_CPU_ROUTES_H
#define NIB_EXEC_CPU_ROUTES_H

#include "kernels/policy.h"
#include "model/layout.h"

typedef struct routes {
    route *list; /* [n], one for each shape and format */
    int n;
    int *first;       /* [n_block]: where a block's weights begin in `of` */
    const route **of; /* [weights of the model]; NULL for what is not packed */
} routes;             /* zeroed: none, and every product goes by the rule */

/* p: the map, not needed afterwards; NULL: none. act_bits: [n_block], 4, 8 or 16 (two slices of 8). */
nib_status routes_open(routes *r, const layout *lay, const policy *p, const kernel_table *t,
                       const uint8_t *act_bits, nib_error *err);
void routes_close(routes *r);

static inline const route *routes_of(const routes *r, int b, int w) {
    return r->of ? r->of[r->first[b] + w] : NULL;
}

#endif
