/* gpu_attend.c - see gpu_attend.h. */
#include "support/gpu_attend.h"

#include <math.h>
#include <stdlib.h>

static float *angles(int64_t n_position, int64_t n_rot) {
    float *table = malloc((size_t)(n_position * (n_rot + 1)) * sizeof *table);
    for (int64_t p = 0; p < n_position; p++)
        for (int64_t i = 0; i < n_rot / 2; i++) {
            const float angle = (float)p * powf(10000, -2.0f * (float)i / (float)n_rot);
            table[p * n_rot + i] = cosf(angle);
            table[p * n_rot + n_rot / 2 + i] = sinf(angle);
        }
    return table;
}

static void *filled(int byte, size_t bytes) {
    void *p = device_new(bytes);
    OK(cuda->fill(p, byte, bytes, stream));
    return p;
}

/* Scattered pages of each sequence; with codes, a page before them has its newest block. */
static void list_pages(cuda_attend *a, int64_t n_row, bool apart, int n_page) {
    const int n_seq = apart ? (int)n_row : 1, newest = a->kv.code_bits > 0, each = n_page + newest;
    int32_t *pages = malloc((size_t)(n_seq * each) * sizeof *pages),
            *first = malloc((size_t)n_row * sizeof *first);
    for (int s = 0; s < n_seq; s++)
        for (int i = 0; i < each; i++) {
            const int p = s * n_page + i - newest, n = n_seq * n_page;
            pages[s * each + i] = i < newest ? s : (p * (n % 7 ? 7 : 5) + 3) % n;
        }
    for (int64_t r = 0; r < n_row; r++)
        first[r] = (int32_t)(apart ? r * each : 0) + newest;
    a->pages = device_copy(pages, (size_t)(n_seq * each) * sizeof *pages);
    a->first_page = device_copy(first, (size_t)n_row * sizeof *first);
    free(pages), free(first);
}

gpu_attention gpu_attention_open(const attend_case *c, int64_t n_row, bool apart, int n_page) {
    const int64_t d_pad = (c->d + 31) / 32 * 32, page = c->n_kv * CUDA_PAGE * (c->code_bits ? d_pad : c->d);
    const size_t n_seq = apart ? (size_t)n_row : 1, cache = n_seq * (size_t)(n_page * page) * 2;
    const size_t scratch =
        cuda->attend_scratch(n_row < CUDA_MAX_ROWS ? n_row : CUDA_MAX_ROWS, c->n_head, c->d);
    gpu_attention g = {.nq = c->n_head * c->d, .nk = c->n_kv * c->d, .n_position = n_page * CUDA_PAGE};
    cuda_attend *a = &g.a;
    g.ld = g.nq + 2 * g.nk;
    g.table = angles(g.n_position, c->n_rot);
    a->kv = (cuda_kv){.k = filled(0xff, cache),
                      .v = filled(0xff, cache),
                      .n_kv_head = c->n_kv,
                      .d_head = c->d,
                      .page = page,
                      .recent_k = filled(0xff, n_seq * (size_t)page * 2),
                      .recent_v = filled(0xff, n_seq * (size_t)page * 2),
                      .code_bits = c->code_bits};
    a->q = device_new((size_t)(n_row * g.ld) * sizeof(float));
    a->k = a->q + g.nq;
    a->v = a->k + g.nk;
    a->ldq = a->ldk = a->ldv = g.ld;
    a->out = filled(0xff, (size_t)(n_row * g.nq) * sizeof(float));
    a->ldo = g.nq;
    a->n_row = n_row;
    a->n_head = c->n_head;
    int32_t *at = malloc((size_t)n_row * sizeof *at);
    for (int64_t r = 0; r < n_row; r++)
        at[r] = apart ? 0 : (int32_t)r;
    a->position = device_copy(at, (size_t)n_row * sizeof *at);
    free(at);
    list_pages(a, n_row, apart, n_page);
    if (c->n_rot)
        a->cos_sin = device_copy(g.table, (size_t)(g.n_position * c->n_rot) * sizeof(float));
    a->cos_sin_by_row = a->stored = !apart;
    a->style = c->style;
    a->n_rot = c->n_rot;
    a->window = c->window;
    a->scale = 1.0f / sqrtf((float)c->d);
    a->softcap = c->softcap;
    a->alibi_max_bias = c->alibi;
    a->alibi_scale = c->alibi > 0 ? 0.5f : 0;
    if (c->sink > 0) {
        float *sinks = malloc((size_t)c->n_head * sizeof *sinks);
        for (int64_t h = 0; h < c->n_head; h++)
            sinks[h] = c->sink * gpu_sink_size(h);
        a->sinks = device_copy(sinks, (size_t)c->n_head * sizeof *sinks);
        free(sinks);
    }
    a->scratch = filled(0, scratch);
    return g;
}

void gpu_attention_close(gpu_attention *g) {
    const cuda_attend *a = &g->a;
    drop(a->kv.k), drop(a->kv.v), drop(a->kv.recent_k), drop(a->kv.recent_v), drop(a->q), drop(a->out);
    drop(a->position), drop(a->pages), drop(a->first_page), drop(a->scratch);
    if (a->cos_sin)
        drop(a->cos_sin);
    if (a->sinks)
        drop(a->sinks);
    free(g->table);
}

cuda_attend gpu_attention_rows(const gpu_attention *g, int64_t r, int64_t n) {
    cuda_attend a = g->a;
    a.q += r * g->ld, a.k += r * g->ld, a.v += r * g->ld, a.out += r * g->nq;
    a.position += r, a.first_page += r;
    a.cos_sin += a.cos_sin ? r * a.n_rot : 0;
    a.n_row = n;
    return a;
}

void gpu_attention_run(const gpu_attention *g, int64_t r, int64_t n, bool as_prompt) {
    const int64_t in_block = CUDA_PAGE - r % CUDA_PAGE; /* `attend` takes rows of one block of a sequence */
    if (g->a.kv.code_bits && g->a.stored && !as_prompt && n > in_block) {
        gpu_attention_run(g, r, in_block, false);
        gpu_attention_run(g, r + in_block, n - in_block, false);
        return;
    }
    const cuda_attend a = gpu_attention_rows(g, r, n);
    const bool later = a.kv.code_bits && as_prompt;
    if (a.kv.code_bits)
        OK(cuda->pack(&a, stream));
    if (!later)
        OK(cuda->store(&a, stream));
    OK(as_prompt ? cuda->attend_prompt(&a, stream) : cuda->attend(&a, stream));
    if (later)
        OK(cuda->store(&a, stream));
}
