/* tempdir.h - files of a test, under TMPDIR (the runner gives each test its own and removes it). */
#ifndef NIB_TESTS_TEMPDIR_H
#define NIB_TESTS_TEMPDIR_H

#include <stddef.h>

/* The path of a file of that name in the temporary folder; one of eight buffers in turn. */
const char *temp_path(const char *name);
/* Writes that file and returns its path; fails the test on an error. */
const char *temp_file(const char *name, const void *data, size_t n_byte);

#endif
