/* stats.c - see stats.h. */
#include "quantize/stats.h"

#include "base/mem.h"
#include "engine/saliency.h"

#include <string.h>

static void set_block(stats *s, const model *m, const saliency_sites *sites, int b) {
    const container_tensor *first = container_tensor_at(model_container(m), 0);
    const block *at = model_block(m, b);
    for (int w = 0; w < at->n_weight; w++) {
        const int site = at->weights[w].shared_block >= 0 ? -1 : sites->of[sites->first[b] + w];
        for (int p = 0; site >= 0 && p < at->weights[w].n_piece; p++)
            s->of[at->weights[w].pieces[p].tensor - first] = s->channels.mean + s->channels.first[site];
    }
}

nib_status stats_of_channels(stats *s, const model *m, columns *channels, nib_error *err) {
    const size_t n = container_n_tensor(model_container(m));
    saliency_sites sites;
    s->channels = *channels;
    memset(channels, 0, sizeof *channels);
    memcpy(s->key, s->channels.prompts, sizeof s->key);
    s->of = mem_calloc(n + 1, sizeof *s->of);
    if (!s->of)
        return nib_fail_nomem(err, n * sizeof *s->of, "a list of tensors");
    NIB_TRY(saliency_sites_open(&sites, m, err));
    for (int b = 0; b < model_n_block(m); b++)
        set_block(s, m, &sites, b);
    saliency_sites_close(&sites);
    return NIB_OK;
}

nib_status stats_widths(stats_sites *s, const model *m, nib_error *err) {
    saliency_sites sites;
    NIB_TRY(saliency_sites_open(&sites, m, err));
    *s = (stats_sites){sites.k, sites.n_site};
    sites.k = NULL; /* the caller's from now on */
    saliency_sites_close(&sites);
    return NIB_OK;
}

void stats_widths_clear(stats_sites *s) {
    mem_free(s->k);
    memset(s, 0, sizeof *s);
}

void stats_close(stats *s) {
    mem_free(s->of);
    mem_free(s->own);
    columns_clear(&s->channels);
    memset(s, 0, sizeof *s);
}
