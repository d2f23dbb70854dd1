/* setup.c - see setup.h. The body is the options, the ranks, the content, and the texts, each behind a byte
 * that says whether there is one. */
#include "cluster/setup.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

nib_status rates_send(const rank_link *to, const cluster_rates *all, int n_rank, nib_error *err) {
    const message_header head = {.kind = MESSAGE_RATES, .rank = 1, .n_segment = n_rank};
    return message_send(to, head, &(link_part){all, (size_t)n_rank * sizeof *all}, 1, err);
}

nib_status rates_read(const message *m, int n_rank, cluster_rates **out, nib_error *err) {
    if (m->head.kind != MESSAGE_RATES || n_rank < 2 || n_rank > CLUSTER_MAX_RANK ||
        m->head.n_byte != (size_t)n_rank * sizeof **out)
        return nib_fail(err, NIB_E_FAILED, "expected the rates of %d ranks, found %llu bytes of kind %d",
                        n_rank, (unsigned long long)m->head.n_byte, m->head.kind);
    *out = (cluster_rates *)(void *)m->body;
    return NIB_OK;
}

enum { N_TEXT = 6 };

/* The texts of the options that ranks need. */
static void texts_of(cluster_setup *s, const char **out[N_TEXT]) {
    out[0] = &s->model;
    out[1] = &s->options.scratch;
    out[2] = &s->options.kv_layers;
    out[3] = &s->options.backend;
    out[4] = &s->options.kernels;
    out[5] = &s->sums;
}

nib_status setup_send(const rank_link *to, const cluster_setup *from, nib_error *err) {
    cluster_setup s = *from;
    const char **texts[N_TEXT];
    size_t n_byte = 0;
    texts_of(&s, texts);
    for (int i = 0; i < N_TEXT; i++)
        n_byte += *texts[i] ? strlen(*texts[i]) + 2 : 1;
    char *all = mem_calloc(n_byte, 1);
    if (!all)
        return nib_fail_nomem(err, n_byte, "the options of ranks");
    char *at = all;
    for (int i = 0; i < N_TEXT; i++) {
        const char *text = *texts[i];
        *at++ = text != NULL;
        if (text) {
            memcpy(at, text, strlen(text) + 1);
            at += strlen(text) + 1;
        }
        *texts[i] = NULL;
    }
    s.options.devices = s.options.program = s.options.hosts = s.options.launcher = NULL;
    s.options.plan_name = s.options.residual_rule = NULL;
    s.options.progress = NULL;
    s.options.log = NULL;
    s.options.cancel = NULL;
    s.options.cap_of = NULL;
    s.options.lender = NULL; /* an engine of this process */
    s.options.user = NULL;
    const link_part parts[] = {{&s.options, sizeof s.options},
                               {s.ranks, (size_t)s.n_rank * sizeof *s.ranks},
                               {s.content, sizeof s.content},
                               {all, n_byte}};
    const message_header head = {.kind = MESSAGE_SETUP, .rank = 1, .n_segment = s.n_rank, .width = s.width};
    const nib_status status = message_send(to, head, parts, 4, err);
    mem_free(all);
    return status;
}

/* Whether its texts end, and its stage has blocks. */
static bool is_rank(const cluster_rank *r) {
    const cluster_place *at = &r->place;
    const struct {
        const char *text;
        size_t n;
    } texts[] = {{at->backend, sizeof at->backend},
                 {at->name, sizeof at->name},
                 {at->model, sizeof at->model},
                 {at->program, sizeof at->program},
                 {at->rates, sizeof at->rates}};
    for (size_t i = 0; i < NUM_COUNT(texts); i++)
        if (!memchr(texts[i].text, 0, texts[i].n))
            return false;
    return r->stage.first >= 0 && r->stage.first < r->stage.end;
}

nib_status setup_read(const message *m, cluster_setup *out, nib_error *err) {
    const char **texts[N_TEXT];
    const size_t n = (size_t)m->head.n_segment, ranks = n * sizeof *out->ranks;
    const size_t begin = sizeof out->options + ranks + sizeof out->content;
    if (m->head.n_segment < 2 || n > CLUSTER_MAX_RANK || m->head.rank < 1 ||
        m->head.rank >= m->head.n_segment || m->head.n_byte < begin)
        return nib_fail(err, NIB_E_FAILED, "expected the options of a pipeline, found %llu bytes",
                        (unsigned long long)m->head.n_byte);
    memcpy(&out->options, m->body, sizeof out->options);
    out->n_rank = m->head.n_segment;
    out->width = m->head.width;
    out->ranks = (const cluster_rank *)(const void *)(m->body + sizeof out->options);
    for (int i = 0; i < out->n_rank; i++)
        if (!is_rank(&out->ranks[i]))
            return nib_fail(err, NIB_E_FAILED,
                            "expected the blocks and the place of rank %d, found other bytes", i);
    memcpy(out->content, m->body + sizeof out->options + ranks, sizeof out->content);
    texts_of(out, texts);
    const char *at = (const char *)m->body + begin, *end = (const char *)m->body + m->head.n_byte;
    for (int i = 0; i < N_TEXT; i++) {
        const bool there = at < end && *at;
        const char *text = at + 1, *stop = there ? memchr(text, 0, (size_t)(end - text)) : NULL;
        if (at >= end || (there && !stop))
            return nib_fail(err, NIB_E_FAILED, "expected the texts of a pipeline's options, found fewer");
        *texts[i] = there ? text : NULL;
        at = there ? stop + 1 : text;
    }
    return NIB_OK;
}
