/* device_mapped.c - host memory that a GPU accesses in place (device_cuda.h). It is page-locked and therefore
 * wholly resident. For all other users it is ordinary host memory. */
#include "base/mem.h"
#include "base/status.h"
#include "memory/device_host.h"
#include "memory/device_cuda.h"

#include <string.h>

typedef struct device_mapped {
    device base;
    device *gpu;
    ptrdiff_t apart; /* the GPU's address minus the host's */
    bool is_known;   /* `apart` is set */
} device_mapped;

static device_mapped *of(device *d) {
    return (device_mapped *)(void *)d;
}

static const device_kind device_mapped_kind;

nib_status device_mapped_open(device *gpu, device **out, nib_error *err) {
    device_mapped *m = mem_calloc(1, sizeof *m);
    if (!m)
        return nib_fail_nomem(err, sizeof *m, "memory that the GPU reads");
    *m = (device_mapped){.base = {&device_mapped_kind, PLACE_RAM}, .gpu = gpu};
    *out = &m->base;
    return NIB_OK;
}

void *device_mapped_there(const device *d, const void *host) {
    const device_mapped *m = (const device_mapped *)(const void *)d;
    return (void *)((uintptr_t)host + (uintptr_t)m->apart);
}

static void mapped_close(device *d) {
    mem_free(of(d));
}

static void mapped_info(const device *d, device_info *out) {
    (void)d;
    device_host_kind.info(device_host(), out);
}

/* The distance must be the same for all allocations: kernels compute page addresses relative to the first
 * page. */
static nib_status map(device_mapped *m, void *host, uint64_t n_byte, nib_error *err) {
    const cuda_kernels *k = device_cuda_kernels(m->gpu);
    void *there = NULL;
    NIB_TRY(device_cuda_enter(m->gpu, err));
    NIB_TRY(device_cuda_ok(m->gpu, k->map(host, (size_t)n_byte, &there), "host memory for it to read", err));
    const ptrdiff_t apart = (ptrdiff_t)((uintptr_t)there - (uintptr_t)host);
    if (m->is_known && apart != m->apart) {
        k->unpin(host);
        return nib_fail(err, NIB_E_DEVICE,
                        "expected host memory at a constant distance from the GPU's addresses, found "
                        "different distances");
    }
    m->apart = apart;
    m->is_known = true;
    return NIB_OK;
}

static nib_status mapped_alloc(device *d, uint64_t n_byte, bool sparse, void **out, nib_error *err) {
    (void)sparse;
    NIB_TRY(device_host_kind.alloc(device_host(), n_byte, false, out, err));
    mem_prefer_huge(*out, n_byte);
    const nib_status status = map(of(d), *out, n_byte, err);
    if (status != NIB_OK)
        device_host_kind.free(device_host(), *out, n_byte);
    return status;
}

static void mapped_free(device *d, void *at, uint64_t n_byte) {
    device_cuda_enter(of(d)->gpu, NULL);
    device_cuda_kernels(of(d)->gpu)->unpin(at);
    device_host_kind.free(device_host(), at, n_byte);
}

static nib_status mapped_reorder(device *d, device_lane lane, const device_pages *p, nib_error *err) {
    const device_mapped *m = of(d);
    cuda_move a;
    cuda_stream s;
    memset(&a, 0, sizeof a);
    a.here = (cuda_kv){.k = p->key,
                       .v = p->value,
                       .n_kv_head = p->n_head,
                       .d_head = p->d_head,
                       .page = DEVICE_PAGE / 2,
                       .code_bits = p->code_bits};
    a.host_k = (uint8_t *)p->host_key + m->apart;
    a.host_v = (uint8_t *)p->host_value + m->apart;
    a.pairs = p->pairs;
    a.n_page = p->n_page;
    a.up = p->up;
    NIB_TRY(device_cuda_lane(m->gpu, lane, &s, err));
    return device_cuda_ok(m->gpu, device_cuda_kernels(m->gpu)->move(&a, s), "moving keys and values", err);
}

static const device_kind device_mapped_kind = {
    .tier = NIB_TIER_RAM,
    .close = mapped_close,
    .info = mapped_info,
    .alloc = mapped_alloc,
    .free = mapped_free,
    .pin = device_host_pin,
    .unpin = device_host_unpin,
    .copy = device_host_copy,
    .mark = device_host_mark,
    .wait = device_host_wait,
    .follow = device_host_follow,
    .reorder = mapped_reorder,
};
