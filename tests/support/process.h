/* process.h - what the ledger sees of a test's process, the same in every build. Under a sanitizer what the
 * system calls resident is mostly the sanitizer's own; *counted* memory is the engine's alone: the heap in
 * use, the pages of its regions (base/mem.h) that have been touched, and a fixed figure for code and stacks.
 * Tests are linked so that regions are noted as they come and go (--wrap in the Makefile). */
#ifndef NIB_TESTS_PROCESS_H
#define NIB_TESTS_PROCESS_H

#include <stdint.h>

/* Both are called while no engine is open, and forget the peak. */
void process_counted(void);
void process_measured(void); /* what the system says, as in production; counted in a sanitized build */

#endif
