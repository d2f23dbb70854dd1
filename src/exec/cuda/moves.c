/* moves.c - moves keys and values of layers computed in place (in_place.c), which are in host memory, for
 * passes of prompts, which compute these layers on the GPU. VRAM has memory for the pages of one layer.
 * Before the layer's attention the pages that the rows see are copied from the host; after it the pages that
 * the rows wrote are copied back. Kernels do both, so they are queued like all other work. */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "memory/device_cuda.h"

#include <stdio.h>

enum { PAGE = DEVICE_CUDA_ALIGN, LIST = 5 /* numbers for a page: one in the table, two pairs */ };

_Static_assert(LIST *(int)sizeof(int32_t) == (int)OFFLOAD_MOVE_LIST && (int)PAGE == (int)OFFLOAD_PAGE,
               "plan/offload.h counts the same bytes");

void moves_close(cuda *c) {
    memory_region_close(&c->moves.memory);
    mem_free(c->moves.list);
    c->moves.list = NULL;
}

nib_status moves_reserve(cuda *c, int64_t n_page, nib_error *err) {
    moves *m = &c->moves;
    const uint64_t bytes = offload_moves_bytes(m->stride, (uint64_t)n_page);
    if (bytes <= m->memory.bytes)
        return NIB_OK;
    memory_region_close(&m->memory);
    return memory_region_open(&m->memory, c->base.device, c->setup.ledger, NIB_OWNER_KV, bytes, false,
                              "keys and values of one layer on the GPU", err);
}

/* Numbers the pass's pages for the kernels: consecutive on the GPU; on the host relative to the first page of
 * the pass. */
static nib_status list_pages(cuda *c, nib_error *err) {
    moves *m = &c->moves;
    int32_t *up = m->list, *down = up + 2 * m->n_page, *table = down + 2 * m->n_page, page = 0;
    for (int i = 0; i < c->now.pass.n_segment; i++) {
        const segment *s = &c->now.pass.segments[i];
        for (int64_t p = 0; p < gpu_workspace_pages_of(s); p++, page++) {
            const intptr_t apart = (s->kv->on_host[p] - m->origin) / PAGE;
            if (apart < INT32_MIN || apart > INT32_MAX || page > INT32_MAX / (int32_t)(m->stride / PAGE))
                return nib_fail(err, NIB_E_DEVICE, "pages of keys and values are too far apart for the GPU");
            const int32_t here = page * (int32_t)(m->stride / PAGE);
            table[page] = here;
            if (s->generated) /* computed in place */
                continue;
            if (p * KV_BLOCK < s->position) {
                up[2 * m->n_up] = here;
                up[2 * m->n_up++ + 1] = (int32_t)apart;
            }
            if ((p + 1) * KV_BLOCK > s->position) {
                down[2 * m->n_down] = here;
                down[2 * m->n_down++ + 1] = (int32_t)apart;
            }
        }
    }
    return NIB_OK;
}

nib_status moves_begin(cuda *c, nib_error *err) {
    moves *m = &c->moves;
    m->n_page = m->n_up = m->n_down = 0;
    for (int i = 0; i < c->now.pass.n_segment; i++)
        m->n_page += gpu_workspace_pages_of(&c->now.pass.segments[i]);
    const size_t n = LIST * (size_t)m->n_page + 1;
    if (mem_grow((void **)&m->list, &m->max_list, n, sizeof *m->list))
        return nib_fail_nomem(err, n * sizeof *m->list, "a list of pages");
    NIB_TRY(moves_reserve(c, m->n_page, err));
    m->origin = c->now.pass.segments->kv->on_host[0];
    NIB_TRY(list_pages(c, err));
    m->pairs = (int32_t *)(void *)((uint8_t *)m->memory.at + (uint64_t)m->n_page * m->stride);
    return spans_copy(c, "copy tables", DEVICE_LOAD, m->pairs, m->list,
                      (uint64_t)m->n_page * LIST * sizeof *m->list, err);
}

void moves_attend(const cuda *c, const kv_view *host, cuda_attend *a) {
    uint8_t *at = c->moves.memory.at;
    a->kv.k = at;
    a->kv.v = at + (host->value_at - host->key_at);
    a->pages = c->moves.pairs + 4 * c->moves.n_page;
}

cuda_move moves_of(const cuda *c, const kv_view *host, const cuda_attend *a, bool up) {
    const moves *m = &c->moves;
    uint8_t *origin = device_mapped_there(c->base.host, m->origin);
    return (cuda_move){.here = a->kv,
                       .host_k = origin + host->key_at,
                       .host_v = origin + host->value_at,
                       .pairs = m->pairs + (up ? 0 : 2 * m->n_page),
                       .n_page = up ? m->n_up : m->n_down,
                       .up = up};
}
