/* link.c - how fast host memory comes to the GPU: page-locked, in pieces as large as a layer's matrices. */
#include "profile/link.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/status.h"
#include "base/thread.h"
#include "kernels/cuda_load.h"

enum { PIECE = 32 << 20, PASSES = 6 };

typedef struct link_job {
    const cuda_kernels *k;
    void *host, *there;
    bool pinned;
    cuda_stream stream;
} link_job;

static int copy_all(link_job *j, double *best) {
    int e = j->k->pin(j->host, PIECE);
    j->pinned = !e;
    e = e ? e : j->k->alloc(&j->there, PIECE);
    e = e ? e : j->k->stream_new(&j->stream);
    *best = 0;
    for (int i = 0; i <= PASSES && !e; i++) { /* the first one warms up */
        const double start = time_now();
        e = j->k->to_device(j->there, j->host, PIECE, j->stream);
        e = e ? e : j->k->stream_sync(j->stream);
        if (i > 0)
            *best = NUM_MAX(*best, PIECE / (time_now() - start));
    }
    if (j->stream)
        j->k->stream_free(j->stream);
    if (j->there)
        j->k->release(j->there);
    if (j->pinned)
        j->k->unpin(j->host);
    return e;
}

double link_rate(void) {
    link_job j = {0};
    cuda_device_info info;
    double best = 0;
    if (cuda_load(&j.k, NULL) != NIB_OK || j.k->device_open(0, &info))
        return 0;
    j.host = mem_map(PIECE);
    const int e = j.host ? copy_all(&j, &best) : 1;
    if (j.host)
        mem_unmap(j.host, PIECE);
    return e ? 0 : best;
}
