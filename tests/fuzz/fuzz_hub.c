/* fuzz_hub.c - any bytes as a hub's answer about a repository, and as a model's name. */
#include "hub/names.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The chosen files form one model, and no path leads out of a folder. */
static void choose(const hub_listing *l, const char *quant) {
    const char **paths = calloc(l->n + 1, sizeof *paths);
    for (size_t i = 0; paths && i < l->n; i++) {
        paths[i] = l->files[i].path;
        assert(paths[i][0] != '/' && paths[i][0] != '.' && !strstr(paths[i], "/."));
    }
    const int64_t chosen = paths ? hub_choose(paths, l->n, quant) : -1;
    if (chosen >= 0) {
        assert(hub_belongs(paths[chosen], paths[chosen]));
        hub_is_whole(paths, l->n, paths[chosen]);
    }
    free((void *)paths);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hub_listing l;
    hub_name name;
    char text[256] = "";
    memcpy(text, data, size < sizeof text - 1 ? size : sizeof text - 1);
    const bool named = hub_parse_name(text, &name);
    assert(!named || (name.user[0] != '.' && name.repo[0] != '.' && !strchr(name.repo, '/')));
    if (hub_read_listing((const char *)data, size, &l, NULL) == NIB_OK) {
        choose(&l, "");
        choose(&l, "Q4_0");
    }
    hub_listing_clear(&l);
    return 0;
}
