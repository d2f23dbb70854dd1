/* skip.h - skips the running test with a reason, which tools/run-tests.sh shows. Call it in a test itself:
 * cmocka counts a skip in a set-up as a failure. */
#ifndef NIB_TESTS_SKIP_H
#define NIB_TESTS_SKIP_H

void skip_because(const char *reason);
/* Skips where the kernels of that name (kernels/registry.h) cannot run. */
void need_kernels(const char *isa);
/* Skips where no library solves linear programs (plan/lp.h). */
void need_solver(void);

#endif
