/* lp.h - small linear programs: minimize cost . x, with bounds of every row of a x and of every x.
 *
 * COIN-OR Clp solves them. It is loaded when the first program is solved (libClp.so.1), so that nothing else
 * needs it. Its answer is never trusted: lp_check verifies that x is feasible, that the duals are, and that
 * the gap between both objectives is zero within the tolerance, which together prove the optimum.
 *
 * Scale rows and columns so that coefficients and results are around 1: the tolerances are absolute. Thread
 * rule: any number of threads. */
#ifndef NIB_PLAN_LP_H
#define NIB_PLAN_LP_H

#include "base/status.h"

#include <stdbool.h>

enum { LP_MAX_COLUMN = 16, LP_MAX_ROW = 40 };
#define LP_NO_BOUND 1e300 /* and more: none; negative: of a lower bound */

typedef struct lp_problem {
    int n_column, n_row;
    double cost[LP_MAX_COLUMN];
    double low[LP_MAX_COLUMN], high[LP_MAX_COLUMN];   /* bounds of x */
    double row_low[LP_MAX_ROW], row_high[LP_MAX_ROW]; /* bounds of a x */
    double a[LP_MAX_ROW][LP_MAX_COLUMN];
} lp_problem;

typedef struct lp_result {
    bool feasible; /* false: no x is feasible, and nothing else is set */
    double objective;
    double x[LP_MAX_COLUMN];
    double dual[LP_MAX_ROW]; /* change of the objective for each unit of the row's binding bound */
} lp_result;

/* NIB_E_USAGE: the solver is not installed. NIB_E_FAILED: it has no proved answer. That there is no feasible
 * x is not proved. */
nib_status lp_solve(const lp_problem *p, lp_result *out, nib_error *err);
/* NIB_E_FAILED: the result is not proved to be optimal. */
nib_status lp_check(const lp_problem *p, const lp_result *r, nib_error *err);

/* ---- lp_clp.c ---- */
/* Solves without a check. */
nib_status lp_clp(const lp_problem *p, lp_result *out, nib_error *err);

#endif
