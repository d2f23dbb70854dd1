/* archs.h - the checkpoints of a folder of fixtures, one after the other. */
#ifndef NIB_TESTS_ARCHS_H
#define NIB_TESTS_ARCHS_H

/* Calls look for each, name being its last part; fails the test when there is no such folder. */
void archs_each(const char *root, void (*look)(void *user, const char *path, const char *name), void *user);

#endif
