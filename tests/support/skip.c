/* skip.c - see skip.h. */
#include "support/skip.h"

#include "kernels/kernels.h"
#include "plan/lp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

void skip_because(const char *reason) {
    print_message("skipped: %s\n", reason);
    skip();
}

void need_kernels(const char *isa) {
    char reason[80];
    snprintf(reason, sizeof reason, "this processor cannot run the %s kernels", isa);
    if (!kernels_table_for(isa))
        skip_because(reason);
}

void need_solver(void) {
    const lp_problem p = {.n_column = 1, .cost = {1}, .high = {1}};
    lp_result r;
    nib_error why;
    if (lp_solve(&p, &r, &why))
        skip_because(why.message);
}
