/* Any bytes as a list of devices or as a file of hosts: refused with a reason, or every place is whole. The
 * first byte chooses which. */
#include "cluster/places.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void hold(bool good) {
    if (!good)
        abort();
}

static void look(const cluster_places *p) {
    int beside = 0;
    hold(p->n >= 1 && p->n <= CLUSTER_MAX_RANK && p->place[0].host == 0);
    for (int i = 0; i < p->n; i++) {
        const cluster_place *at = &p->place[i];
        hold(!strcmp(at->backend, p->place[0].backend) && (at->gpu >= 0) == !strcmp(at->backend, "cuda"));
        hold(at->gpu < CLUSTER_MAX_RANK && at->ram && at->vram && at->disk && at->n_beside >= 1);
        hold(memchr(at->name, 0, sizeof at->name) && memchr(at->model, 0, sizeof at->model) &&
             memchr(at->program, 0, sizeof at->program) && memchr(at->rates, 0, sizeof at->rates) &&
             (at->name[0] != '\0') == p->over_network);
        hold(i == 0 || at->host == at[-1].host || at->host == at[-1].host + 1);
        beside += at->host == 0;
    }
    hold(p->place[0].n_beside == beside);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static cluster_places places;
    const size_t skip = size ? 1 : 0;
    char *text = malloc(size - skip + 1);
    nib_error why = {NIB_OK, ""};
    if (!text)
        return 0;
    memcpy(text, data + skip, size - skip);
    text[size - skip] = '\0';
    const nib_status status = size && data[0] % 2 ? cluster_places_parse(text, &places, &why)
                                                  : cluster_hosts_parse(text, &places, &why);
    hold(status == why.status);
    if (status == NIB_OK)
        look(&places);
    else
        hold(why.message[0] != '\0');
    free(text);
    return 0;
}
