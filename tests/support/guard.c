/* guard.c - see guard.h. A test opens and closes hundreds of thousands of guards. Memory of a few closed ones
 * is reused, because mapping and first touching pages costs more than most products. */
#include "guard.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_KEPT = 32, MAX_KEPT_BYTES = 1 << 20 };

static _Thread_local struct {
    void *map; /* all but the first and the last page can be written */
    size_t n_map;
} kept[MAX_KEPT];
static _Thread_local unsigned next_kept;

static size_t page_bytes(void) {
    static size_t bytes;
    return bytes ? bytes : (bytes = (size_t)sysconf(_SC_PAGESIZE));
}

static void allow(const guarded *g, int protection) {
    if (mprotect((char *)g->map + page_bytes(), g->n_map - 2 * page_bytes(), protection))
        abort();
}

static void *take_kept(size_t n_map) {
    for (int i = 0; i < MAX_KEPT; i++)
        if (kept[i].map && kept[i].n_map == n_map) {
            void *map = kept[i].map;
            kept[i].map = NULL;
            return map;
        }
    return NULL;
}

guarded guard_open(size_t n_byte) {
    const size_t page = page_bytes(), used = (n_byte + page - 1) / page * page;
    guarded g = {.n_map = used + 2 * page};
    g.map = take_kept(g.n_map);
    if (!g.map) {
        g.map = mmap(NULL, g.n_map, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (g.map == MAP_FAILED)
            abort();
        allow(&g, PROT_READ | PROT_WRITE);
    }
    memset((char *)g.map + page, GUARD_FILL, used);
    g.data = (char *)g.map + page + used - n_byte;
    return g;
}

void guard_read_only(guarded *g) {
    allow(g, PROT_READ);
    g->read_only = true;
}

void guard_close(guarded *g) {
    if (g->n_map > MAX_KEPT_BYTES) {
        munmap(g->map, g->n_map);
        return;
    }
    if (g->read_only)
        allow(g, PROT_READ | PROT_WRITE);
    const unsigned i = next_kept++ % MAX_KEPT;
    if (kept[i].map)
        munmap(kept[i].map, kept[i].n_map);
    kept[i].map = g->map;
    kept[i].n_map = g->n_map;
}
