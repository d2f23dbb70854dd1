/* popular.c - see popular.h. */
#include "engine/popular.h"

#include "base/mem.h"

#include <string.h>

nib_status popular_load(const engine_core *e, popularity *out, nib_error *err) {
    const hparams *hp = model_hparams(e->m);
    char content[40];
    nib_error why;
    *out = (popularity){.n_layer = 0};
    if (hp->n_expert == 0)
        return NIB_OK;
    NIB_TRY(container_content_key(model_container(e->m), content, err));
    char *path = popularity_find(content);
    if (path && popularity_load(path, content, out, &why) != NIB_OK)
        log_line(&e->log, "shares of experts: %s", why.message);
    mem_free(path);
    if (out->n_layer != hp->n_layer || out->n_expert != hp->n_expert)
        popularity_clear(out);
    return NIB_OK;
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
