/* skip.c - see skip.h. */
#include "support/skip.h"

#include "kernels/kernels.h"

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
