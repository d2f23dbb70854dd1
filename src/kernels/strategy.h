/* strategy.h - the kernels for a product with packed weights, and the choice of one.
 *
 * A strategy (ADAngel, sections 4 and 5) is a row of data: the products that it can compute, and the function
 * that computes them. A folder of kernels lists its rows (registry.h). A table has the strategies of its
 * instruction set and of all smaller ones. All strategies that can compute a product give the same bits, so
 * the choice affects only time: the kernel map (kernel_map.h) decides where this machine was measured,
 * otherwise a rule. */
#ifndef NIB_KERNELS_STRATEGY_H
#define NIB_KERNELS_STRATEGY_H

#include "kernels/kernels.h"

struct strategy {
    const char *name; /* "padding.direct", ...: unique within an instruction set */
    /* Whether it can compute products of this format with this number of activation rows. If it can for two
     * numbers of rows, it can for all between them. */
    bool (*can)(const pack_format *f, int64_t n_row);
    /* Computes rows [n0, n1) of the weights (linear_args); n0 is a multiple of 16, n1 too or the end. */
    void (*run)(const linear_args *a, int64_t n0, int64_t n1);
    /* The rule takes it for products of rule_from to rule_rows rows. rule_rows 0: the rule never takes it. */
    int64_t rule_from, rule_rows;
    /* NULL, or the formats for which the rule takes it. */
    bool (*suits)(const pack_format *f, int64_t n_row);
    size_t scratch; /* bytes of linear_args.scratch that run uses; 0: no more than STRATEGY_SCRATCH */
    /* The part of the scratch that a product of n_row rows over k writes; NULL: all. */
    size_t (*scratch_of)(int64_t n_row, int64_t k);
};

enum { STRATEGY_ANY_ROWS = INT32_MAX, STRATEGY_SCRATCH = 64 * 1024 };

/* The rule: the first row of the table that can compute the product and is meant for this number of rows.
 * Never NULL, since the reference can compute everything. */
const strategy *strategy_by_rule(const kernel_table *t, const pack_format *f, int64_t n_row);

/* Adds the products of the outliers of rows [n0, n1) (pack_format.sparse), which strategies do not compute.
 * n0 is a multiple of 16. */
void linear_sparse(const linear_args *a, int64_t n0, int64_t n1);

/* Computes rows [n0, n1) of a product with packed weights (PACK_TILE or PACK_ROWS), by the strategy that its
 * choice names, otherwise by the rule. Then adds the products of their outliers. */
void linear_run(const kernel_table *t, const linear_args *a, int64_t n0, int64_t n1);

#endif
