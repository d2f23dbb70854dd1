/* isas.h - the op tables that can run here, smallest instruction set first. */
#ifndef NIB_TESTS_ISAS_H
#define NIB_TESTS_ISAS_H

#include "kernels/kernels.h"
#include "kernels/strategy.h"

#include <stddef.h>
#include <string.h>

#define EACH_ISA(t)                                                                                          \
    for (int isa_ = 0; kernels_isa_at(isa_); isa_++)                                                         \
        for (const kernel_table *t = kernels_table_for(kernels_isa_at(isa_)); t; t = NULL)

/* Without tables that only add strategies for products to the ops of the one before. */
#define EACH_OPS(t)                                                                                          \
    for (int isa_ = 0; kernels_isa_at(isa_); isa_++)                                                         \
        for (const kernel_table *t = isas_own_ops(isa_); t; t = NULL)

/* NULL: every op is the one before's. */
static inline const kernel_table *isas_own_ops(int i) {
    const size_t first = offsetof(kernel_table, act_quantize), end = offsetof(kernel_table, strategies);
    const kernel_table *t = kernels_table_for(kernels_isa_at(i));
    const kernel_table *before = i > 0 ? kernels_table_for(kernels_isa_at(i - 1)) : NULL;
    return before && !memcmp((const char *)t + first, (const char *)before + first, end - first) ? NULL : t;
}

/* The table's strategy of this name; NULL: there is none. isa: the folder that it must belong to; NULL: the
 * largest instruction set that has it. */
static inline const strategy *isas_strategy(const kernel_table *t, const char *isa, const char *name) {
    for (int i = 0; i < t->n_strategy; i++)
        if ((!isa || !strcmp(t->strategy_isa[i], isa)) && !strcmp(t->strategies[i]->name, name))
            return t->strategies[i];
    return NULL;
}

#endif
