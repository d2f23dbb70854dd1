/* alloc.h - the n-th allocation of the whole process fails, also of the C library and of others that call
 * malloc. With a sanitizer, which has a malloc of its own, it never does. */
#ifndef NIB_TESTS_FAULTS_ALLOC_H
#define NIB_TESTS_FAULTS_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

void malloc_fault_arm(int64_t nth); /* 1: the next; 0 disarms */
int64_t malloc_fault_count(void);   /* calls since then */
void malloc_fault_spare(bool yes);  /* this thread's calls neither fail nor count */

#endif
