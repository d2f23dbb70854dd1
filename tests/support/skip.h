/* skip.h - leaves the running test out and says why; tools/run-tests.sh shows the reason. To be called in a
 * test itself: cmocka calls a set-up that skips a failure. */
#ifndef NIB_TESTS_SKIP_H
#define NIB_TESTS_SKIP_H

void skip_because(const char *reason);
/* Skips where the kernels of that name (kernels/registry.h) cannot run. */
void need_kernels(const char *isa);

#endif
