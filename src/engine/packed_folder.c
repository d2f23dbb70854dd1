/* packed_folder.c - see packed_folder.h. */
#include "engine/packed_folder.h"

#include "base/file.h"
#include "base/mem.h"

char *engine_disk_folder(const engine_core *e, const char *name) {
    const char *scratch = e->requested.scratch;
    char *cache = scratch ? NULL : path_cache_dir();
    const char *base = scratch ? scratch : cache;
    char *folder = base ? path_join(base, name) : NULL;
    mem_free(cache);
    return folder;
}

bool engine_has_disk(const engine_core *e) {
    return e->requested.scratch || e->resolved.cap[NIB_TIER_DISK] != NIB_AUTO;
}

char *engine_packed_folder(const engine_core *e) {
    return e->resolved.packed == NIB_PACKED_OFF ? NULL : engine_disk_folder(e, "packed");
}

bool engine_packed_may_write(const engine_core *e) {
    return e->resolved.packed == NIB_PACKED_ON ||
           (e->resolved.packed == NIB_PACKED_AUTO && engine_has_disk(e));
}

bool engine_packed_expected(const engine_core *e) {
    char *folder = engine_packed_folder(e);
    const bool expected = folder && (engine_packed_may_write(e) || pager_packed_exists(e->layout, folder));
    mem_free(folder);
    return expected;
}
