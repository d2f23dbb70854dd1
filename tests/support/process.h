/* process.h - the memory of a test's process as the ledger sees it, the same in every build. Under a
 * sanitizer most resident memory is the sanitizer's own; *counted* memory is the engine's alone: the heap in
 * use, the pages of its regions (base/mem.h) that have been touched, and a fixed figure for code and stacks.
 * Tests are linked so that mapping and unmapping of regions is recorded (--wrap in the Makefile). */
#ifndef NIB_TESTS_PROCESS_H
#define NIB_TESTS_PROCESS_H

#include <stdint.h>

/* Both are called while no engine is open, and forget the peak. */
void process_counted(void);
void process_measured(void); /* the system's figure, as in production; the counted one in a sanitized build */

/* What a cap must hold besides an engine's own memory: the process's memory without the heap's free memory
 * and the pages of code, which a ledger with a cap returns to the system when it is opened. */
uint64_t process_bytes(void);

#endif
