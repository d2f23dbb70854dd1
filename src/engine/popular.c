/* popular.c - see popular.h. */
#include "engine/popular.h"

#include "base/mem.h"

#include <string.h>

nib_status popular_read(const engine_core *e, const popularity **out, nib_error *err) {
    const hparams *hp = model_hparams(e->m);
    popularity *p = &e->popular->of;
    char content[40];
    nib_error why;
    *out = p;
    if (hp->n_expert == 0 || e->popular->known)
        return NIB_OK;
    NIB_TRY(container_content_key(model_container(e->m), content, err));
    char *path = popularity_find(content);
    if (path && popularity_load(path, content, p, &why) != NIB_OK)
        log_line(&e->log, "shares of experts: %s", why.message);
    mem_free(path);
    if (p->n_layer != hp->n_layer || p->n_expert != hp->n_expert)
        popularity_clear(p);
    e->popular->known = true;
    return NIB_OK;
}

void popular_forget(engine_core *e) {
    popularity_clear(&e->popular->of);
    e->popular->known = false;
}

const double *popular_shares(const engine_core *e, const popularity *p, int b) {
    const int layer = layout_block(e->layout, b)->layer;
    return p->share && layer >= 0 ? p->share + layer * p->n_expert : NULL;
}

int popular_rank(const double *share, int n, int which) {
    int rank = 0;
    if (!share)
        return which;
    for (int e = 0; e < n; e++)
        rank += share[e] > share[which] || (e < which && !(share[e] < share[which]));
    return rank;
}

bool popular_hits(const popularity *p, double *hits) {
    double all = 0;
    if (!p->share)
        return false;
    memset(hits, 0, (size_t)(p->n_expert + 1) * sizeof *hits);
    for (int l = 0; l < p->n_layer; l++)
        for (int e = 0; e < p->n_expert; e++) {
            const double *share = p->share + l * p->n_expert;
            hits[popular_rank(share, p->n_expert, e) + 1] += share[e];
            all += share[e];
        }
    for (int e = 1; e <= p->n_expert && all > 0; e++)
        hits[e] = hits[e - 1] + hits[e] / all;
    return all > 0;
}
