/* popular.c - see popular.h. */
#include "engine/popular.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

enum { MIN_ROWS = 16 /* of a run that is stored */ };

/* Loads a file, whose path it frees, if it is for the model. */
static void load(const engine_core *e, char *path, const char *content, popularity *out) {
    const hparams *hp = model_hparams(e->m);
    nib_error why;
    const nib_status status = path ? popularity_load(path, content, out, &why) : NIB_OK;
    if (status != NIB_OK && status != NIB_E_NOTFOUND)
        log_line(&e->log, "shares of experts: %s", why.message);
    mem_free(path);
    if (out->n_layer != hp->n_layer || out->n_expert != hp->n_expert)
        popularity_clear(out);
}

nib_status popular_read(const engine_core *e, const popularity **out, nib_error *err) {
    popularity *p = &e->popular->of;
    char content[40];
    *out = p;
    if (model_hparams(e->m)->n_expert == 0 || e->popular->known)
        return NIB_OK;
    NIB_TRY(container_content_key(model_container(e->m), content, err));
    load(e, popularity_find(content), content, p);
    if (!p->share && e->requested.learn)
        load(e, popularity_runs_path(content), content, p);
    e->popular->known = true;
    return NIB_OK;
}

void popular_forget(engine_core *e) {
    popularity_clear(&e->popular->of);
    e->popular->known = false;
}

/* The shares of the rows of this run; n_token is 0 if they are few. */
static nib_status count(const engine_core *e, const pager *p, popularity *out, nib_error *err) {
    const hparams *hp = model_hparams(e->m);
    NIB_TRY(popularity_begin(out, (int)hp->n_layer, (int)hp->n_expert, err));
    for (int b = 0; b < layout_n_block(e->layout); b++) {
        const block *of = layout_block(e->layout, b);
        double *share = of->layer >= 0 ? out->share + of->layer * out->n_expert : NULL, all = 0;
        bool has = false;
        for (int w = 0; w < of->n_weight; w++)
            has = has || of->weights[w].n_expert == hp->n_expert;
        for (int i = 0; i < out->n_expert && share && has; i++)
            all += share[i] = (double)pager_expert_rows(p, b, i);
        const double rows = all / (double)NUM_MAX(hp->n_expert_used, 1);
        for (int i = 0; i < out->n_expert && share && rows > 0; i++)
            share[i] /= rows;
        out->n_token = NUM_MAX(out->n_token, rows < MIN_ROWS ? 0 : (int64_t)rows);
    }
    return NIB_OK;
}

static nib_status keep(const engine_core *e, const popularity *run, nib_error *err) {
    popularity all = {0};
    char content[40];
    NIB_TRY(container_content_key(model_container(e->m), content, err));
    char *path = popularity_runs_path(content);
    load(e, path ? mem_strdup(path) : NULL, content, &all);
    nib_status status = !path       ? nib_fail_nomem(err, 256, "a path")
                        : all.share ? NIB_OK
                                    : popularity_begin(&all, run->n_layer, run->n_expert, err);
    if (status == NIB_OK) {
        memcpy(all.content, content, sizeof all.content);
        memcpy(all.prompts, "0", 2);
        popularity_add(&all, run);
        status = popularity_save(path, &all, err);
    }
    popularity_clear(&all);
    mem_free(path);
    return status;
}

void popular_keep(const engine_core *e, const pager *p) {
    popularity run = {0};
    nib_error err;
    if (!e->requested.learn || !p || model_hparams(e->m)->n_expert == 0)
        return;
    nib_status status = count(e, p, &run, &err);
    if (status == NIB_OK && run.n_token > 0)
        status = keep(e, &run, &err);
    if (status != NIB_OK)
        log_line(&e->log, "the choices of experts in this run were not stored: %s", err.message);
    popularity_clear(&run);
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
