/* fakecuda_streams.c - the fake table's copies. After fake_cuda_late, those that are queued in a stream other
 * than the first are made late: when something waits for them, or at a random time before. So a copy that
 * nothing waits for, or that may overwrite what is still read, changes results. */
#include "support/fakecuda_parts.h"

#include <stdlib.h>
#include <string.h>

typedef enum { COPY, TO_HOST, GTILE, MOVE, WAIT } late_kind;
typedef struct late_work {
    late_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    view matrix;
    bool to_gpu;
    cuda_move move;
    fake_stream *of; /* WAIT: for its first `at` works */
    size_t at;
} late_work;

struct fake_stream {
    late_work *works; /* [n], those after the first `before` of the stream; the first `done` are made */
    size_t n, done, before;
    fake_stream *next;
};

static struct {
    fake_stream *all, *first;
    uint32_t seed; /* 0: nothing is late */
    size_t n_stored;
} late;

static void make(const late_work *w);

/* Makes the first works of a stream. */
static void catch_up(fake_stream *s, size_t n) {
    while (s->done < n) {
        const late_work w = s->works[s->done++];
        make(&w);
    }
}

static void make(const late_work *w) {
    switch (w->kind) {
    case COPY:
    case TO_HOST: memmove(w->to, w->from, w->bytes); return;
    case GTILE: fake_gtile_now(&w->matrix, w->to_gpu); return;
    case MOVE: fake_move_now(&w->move); return;
    case WAIT:
        if (w->of && w->at > w->of->before)
            catch_up(w->of, w->at - w->of->before);
        return;
    }
}

static void queue(fake_stream *s, const late_work *w) {
    late.seed = late.seed ? late.seed * 1664525 + 1013904223 : 0;
    if (late.seed == 0 || s == late.first || (s->done == s->n && (late.seed >> 8) % 2 && w->kind != WAIT)) {
        make(w);
        return;
    }
    s->works = realloc(s->works, (s->n + 1) * sizeof *s->works);
    s->works[s->n++] = *w;
}

void fake_copy(void *to, const void *from, size_t bytes, bool to_host, cuda_stream s) {
    late.n_stored += to_host && s != late.first ? bytes : 0;
    const late_work w = {.kind = to_host ? TO_HOST : COPY, .to = to, .from = from, .bytes = bytes};
    queue(s, &w);
}
void fake_gtile_later(const view *w, bool to_gpu, cuda_stream s) {
    const late_work work = {.kind = GTILE, .matrix = *w, .to_gpu = to_gpu};
    queue(s, &work);
}
void fake_move_later(const cuda_move *a, cuda_stream s) {
    const late_work work = {.kind = MOVE, .move = *a};
    queue(s, &work);
}

fake_stream *fake_stream_open(void) {
    fake_stream *s = calloc(1, sizeof *s);
    if (!late.all)
        late.first = s;
    if (s) {
        s->next = late.all;
        late.all = s;
    }
    return s;
}

void fake_stream_close(fake_stream *s) {
    fake_stream **at = &late.all;
    catch_up(s, s->n);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    for (fake_stream *other = late.all; other; other = other->next)
        for (size_t i = other->done; i < other->n; i++)
            if (other->works[i].of == s)
                other->works[i].of = NULL;
    free(s->works);
    free(s);
}

size_t fake_stream_queued(const fake_stream *s) {
    return s->before + s->n;
}
void fake_stream_finish(fake_stream *s) {
    catch_up(s, s->n);
    s->before += s->n;
    s->n = s->done = 0;
}
void fake_stream_wait(fake_stream *s, fake_stream *of, size_t at) {
    const late_work w = {.kind = WAIT, .of = of, .at = at};
    if (of && of->before + of->done < at)
        queue(s, &w);
}

void fake_cuda_late(uint32_t seed) {
    late.seed = seed;
}
size_t fake_cuda_stored(void) {
    return late.n_stored;
}
void fake_streams_reset(void) {
    late.seed = 0;
    late.n_stored = 0;
}
