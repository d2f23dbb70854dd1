/* made.h - reports results of operations to fault_made (support/faults.h). */
#ifndef NIB_TESTS_MADE_H
#define NIB_TESTS_MADE_H

#include "formats/container.h"

/* Every tensor's row and the keys of all metadata. */
void made_container(const container *c);
/* The contents of a file that must exist. */
void made_file(const char *path);

#endif
