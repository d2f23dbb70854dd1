/* archs.h - walks the checkpoints of a folder of fixtures. */
#ifndef NIB_TESTS_ARCHS_H
#define NIB_TESTS_ARCHS_H

/* Calls look for each checkpoint; name is the last part of its path. Fails the test if the folder is missing.
 */
void archs_each(const char *root, void (*look)(void *user, const char *path, const char *name), void *user);

#endif
