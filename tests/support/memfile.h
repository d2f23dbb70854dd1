/* memfile.h - a file in memory with a path, for tests that make thousands of them. */
#ifndef NIB_TESTS_MEMFILE_H
#define NIB_TESTS_MEMFILE_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct memfile {
    int fd;
    char path[32];
} memfile;

/* Replaces the content of *m (zeroed before the first call; its descriptor stays open until the process
 * ends). */
static inline const char *memfile_set(memfile *m, const void *data, size_t n_byte) {
    if (!m->path[0]) {
        m->fd = memfd_create("test", MFD_CLOEXEC);
        snprintf(m->path, sizeof m->path, "/proc/self/fd/%d", m->fd);
    }
    if (m->fd < 0 || ftruncate(m->fd, 0) || pwrite(m->fd, data, n_byte, 0) != (ssize_t)n_byte)
        abort();
    return m->path;
}

#endif
