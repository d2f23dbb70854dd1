/* lp_clp.c - linear programs by COIN-OR Clp, through its C interface; see lp.h. */
#include "plan/lp.h"

#include <dlfcn.h>
#include <pthread.h>

typedef struct clp_model clp_model;
typedef void load_fn(clp_model *m, int n_column, int n_row, const int *start, const int *index,
                     const double *value, const double *low, const double *high, const double *cost,
                     const double *row_low, const double *row_high);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
    clp_model *(*open)(void);
    void (*close)(clp_model *m);
    load_fn *load;
    void (*quiet)(clp_model *m, int level);
    int (*dual)(clp_model *m, int values);
    int (*primal)(clp_model *m, int values);
    int (*status)(clp_model *m);
    double *(*columns)(clp_model *m);
    double *(*rows)(clp_model *m);
    bool found;
} clp;

static void find(void) {
    void *library = dlopen("libClp.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    *(void **)&clp.open = dlsym(library, "Clp_newModel");
    *(void **)&clp.close = dlsym(library, "Clp_deleteModel");
    *(void **)&clp.load = dlsym(library, "Clp_loadProblem");
    *(void **)&clp.quiet = dlsym(library, "Clp_setLogLevel");
    *(void **)&clp.dual = dlsym(library, "Clp_dual");
    *(void **)&clp.primal = dlsym(library, "Clp_primal");
    *(void **)&clp.status = dlsym(library, "Clp_status");
    *(void **)&clp.columns = dlsym(library, "Clp_primalColumnSolution");
    *(void **)&clp.rows = dlsym(library, "Clp_dualRowSolution");
    clp.found = clp.open && clp.close && clp.load && clp.quiet && clp.dual && clp.primal && clp.status &&
                clp.columns && clp.rows;
}

enum { OPTIMAL = 0, INFEASIBLE = 1 };

static nib_status solve(clp_model *m, const lp_problem *p, lp_result *out, nib_error *err) {
    int start[LP_MAX_COLUMN + 1], index[LP_MAX_ROW * LP_MAX_COLUMN], n = 0;
    double value[LP_MAX_ROW * LP_MAX_COLUMN];
    for (int c = 0; c < p->n_column; c++) {
        start[c] = n;
        for (int r = 0; r < p->n_row; r++)
            if (p->a[r][c] != 0) {
                index[n] = r;
                value[n++] = p->a[r][c];
            }
    }
    start[p->n_column] = n;
    clp.quiet(m, 0);
    clp.load(m, p->n_column, p->n_row, start, index, value, p->low, p->high, p->cost, p->row_low,
             p->row_high);
    clp.dual(m, 0);
    if (clp.status(m) != OPTIMAL && clp.status(m) != INFEASIBLE)
        clp.primal(m, 0);
    out->feasible = clp.status(m) == OPTIMAL;
    out->objective = 0;
    if (clp.status(m) != OPTIMAL && clp.status(m) != INFEASIBLE)
        return nib_fail(err, NIB_E_FAILED, "linear program: the solver stopped with status %d",
                        clp.status(m));
    for (int c = 0; c < p->n_column && out->feasible; c++) {
        out->x[c] = clp.columns(m)[c];
        out->objective += p->cost[c] * out->x[c];
    }
    for (int r = 0; r < p->n_row && out->feasible; r++)
        out->dual[r] = clp.rows(m)[r];
    return NIB_OK;
}

nib_status lp_clp(const lp_problem *p, lp_result *out, nib_error *err) {
    pthread_once(&once, find);
    if (!clp.found)
        return nib_fail(err, NIB_E_USAGE,
                        "a plan for a workload needs COIN-OR Clp (libClp.so.1), which is not there: install "
                        "coinor-libclp1 (Debian)");
    clp_model *m = clp.open();
    if (!m)
        return nib_fail_nomem(err, sizeof *p, "a linear program");
    const nib_status status = solve(m, p, out, err);
    clp.close(m);
    return status;
}
