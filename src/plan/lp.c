/* lp.c - the certificate of a linear program's solution; see lp.h. For the program
 *
 *     min c x   with  r <= A x <= R,  l <= x <= u
 *
 * and duals y of its rows, d = c - A^T y are the reduced costs. For every feasible x
 *
 *     c x = y A x + d x >= sum of y times the bound that it points to + the same for d
 *
 * where a positive dual points to the lower bound and a negative one to the upper bound. So if that sum
 * equals c x for the given x, no other x is better. */
#include "plan/lp.h"

#include "base/num.h"

#include <math.h>

#define TOLERANCE 1e-7

static bool is_within(double v, double low, double high) {
    const double slack = TOLERANCE * (1 + fabs(v));
    return v >= low - slack && v <= high + slack;
}

/* Adds what a dual contributes to the dual objective. False: the bound that it points to does not exist. */
static bool add_bound(double dual, double low, double high, double *sum) {
    const double bound = dual > 0 ? low : high;
    if (fabs(bound) < LP_NO_BOUND) {
        *sum += dual * bound;
        return true;
    }
    return fabs(dual) <= TOLERANCE;
}

nib_status lp_check(const lp_problem *p, const lp_result *r, nib_error *err) {
    double primal = 0, dual = 0;
    for (int c = 0; c < p->n_column; c++) {
        double reduced = p->cost[c];
        for (int i = 0; i < p->n_row; i++)
            reduced -= p->a[i][c] * r->dual[i];
        primal += p->cost[c] * r->x[c];
        if (!is_within(r->x[c], p->low[c], p->high[c]) || !add_bound(reduced, p->low[c], p->high[c], &dual))
            return nib_fail(err, NIB_E_FAILED, "linear program: column %d is not feasible, found %g", c,
                            r->x[c]);
    }
    for (int i = 0; i < p->n_row; i++) {
        double sum = 0;
        for (int c = 0; c < p->n_column; c++)
            sum += p->a[i][c] * r->x[c];
        if (!is_within(sum, p->row_low[i], p->row_high[i]) ||
            !add_bound(r->dual[i], p->row_low[i], p->row_high[i], &dual))
            return nib_fail(err, NIB_E_FAILED, "linear program: row %d is not feasible, found %g", i, sum);
    }
    if (!(fabs(primal - dual) <= TOLERANCE * (1 + fabs(primal))))
        return nib_fail(err, NIB_E_FAILED, "linear program: expected equal objectives, found %.12g and %.12g",
                        primal, dual);
    return NIB_OK;
}

nib_status lp_solve(const lp_problem *p, lp_result *out, nib_error *err) {
    NIB_TRY(lp_clp(p, out, err));
    return out->feasible ? lp_check(p, out, err) : NIB_OK;
}
