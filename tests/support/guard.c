/* guard.c - see guard.h. */
#include "guard.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

guarded guard_open(size_t n_byte) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (n_byte + page - 1) / page * page;
    guarded g = {.n_map = used + 2 * page};
    g.map = mmap(NULL, g.n_map, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect((char *)g.map + page, used, PROT_READ | PROT_WRITE))
        abort();
    g.data = (char *)g.map + page + used - n_byte;
    memset(g.data, GUARD_FILL, n_byte);
    return g;
}

void guard_read_only(guarded *g) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (mprotect((char *)g->map + page, g->n_map - 2 * page, PROT_READ))
        abort();
}

void guard_close(guarded *g) {
    munmap(g->map, g->n_map);
}
