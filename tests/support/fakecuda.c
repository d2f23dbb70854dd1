/* fakecuda.c - the fake table itself, memory, streams, events and graphs (see fakecuda.h). */
#include "support/fakecuda_parts.h"
#include "support/sanitized.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct fake_state fake;

/* Launches may read a matrix only after the host, or their stream (by an event), has waited for its
 * reordering. */
static void order_ends(size_t n) {
    fake.n_reordered -= n;
    memmove(fake.reordered, fake.reordered + n, fake.n_reordered * sizeof *fake.reordered);
    fake.n_recorded = 0;
}

int fake_misuse(const char *what) {
    fake.wrong = fake.wrong ? fake.wrong : what;
    return MISUSE;
}

kept_launch *fake_keep(void) {
    graph *g = fake.recording ? fake.recording : fake.goes_on ? NULL : fake.waiting;
    if (!g)
        return NULL;
    g->list = realloc(g->list, (g->n + 1) * sizeof *g->list);
    g->list[g->n] = (kept_launch){0};
    return &g->list[g->n++];
}

static int run_kept(const kept_launch *k, cuda_stream s);

void fake_wait_for_host(cuda_stream s) {
    fake.waiting = calloc(1, sizeof *fake.waiting);
    fake.waits_in = s;
}

/* Runs launches that waited for the host as far as it has answered. */
static void go_on(void) {
    graph *of = fake.waiting;
    const bool replaying = fake.replaying;
    size_t n = 0;
    if (!of || fake.goes_on)
        return;
    fake.goes_on = fake.replaying = true;
    /* a device that is lost runs nothing more */
    const bool lost = fake.fail_at && !fake.fails_once && fake.calls >= fake.fail_at;
    for (int e = 0; n < of->n && !e && (lost || fake_is_answered(&of->list[n])); n++) {
        if (lost)
            continue;
        fake.calls--; /* they were counted */
        e = run_kept(&of->list[n], fake.waits_in);
    }
    fake.goes_on = false;
    fake.replaying = replaying;
    of->n -= n;
    memmove(of->list, of->list + n, of->n * sizeof *of->list);
    if (of->n > 0)
        return;
    free(of->list);
    free(of);
    fake.waiting = NULL;
}

int fake_call(void) {
    go_on();
    const long n = ++fake.calls;
    return fake.fail_at && (fake.fails_once ? n == fake.fail_at : n >= fake.fail_at) ? fake.error : 0;
}

bool is_there(const void *p) {
    return ((uintptr_t)p & DEVICE_BIT) != 0;
}
void *real(const void *p) {
    if (p && !is_there(p)) {
        fprintf(stderr, "fake CUDA: a kernel got the host's address %p\n", p);
        abort();
    }
    return (void *)((uintptr_t)p & ~DEVICE_BIT);
}

/* ---- the runtime ---- */

static const char *error_text(int error) {
    return error == OUT_OF_MEMORY ? "out of memory" : error == MISUSE ? "misuse" : "the device is lost";
}
static int device_count(int *n) {
    *n = 1;
    return fake_call();
}
static int device_open(int device, cuda_device_info *info) {
    CALL();
    *info = (cuda_device_info){.name = "fake", .major = 9, .memory = fake.memory, .driver = fake.driver};
    return device ? fake_misuse("there is one device") : 0;
}
static size_t left_now(void) {
    const size_t taken = fake.used + fake.others;
    return fake.memory > taken ? fake.memory - taken : 0;
}
static int memory_now(size_t *left, size_t *all) {
    CALL();
    *left = left_now();
    *all = fake.memory;
    return 0;
}
/* Small and large blocks of the host's heap are terabytes apart, those of a GPU are not. So blocks are
 * mapped; under a sanitizer, which watches only the heap, all are large. */
enum { BEFORE = SANITIZED ? 512 << 10 : 0 };
static size_t taken(size_t bytes) {
    return BEFORE + (bytes + 2 * HEADER - 1) / HEADER * HEADER;
}
static uint8_t *take(size_t n) {
    if (SANITIZED)
        return aligned_alloc(HEADER, n);
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}
static void give(uint8_t *p, size_t n) {
    if (SANITIZED)
        free(p);
    else
        munmap(p, n);
}
static int alloc(void **p, size_t bytes) {
    CALL();
    if (bytes > left_now())
        return OUT_OF_MEMORY;
    uint8_t *all = take(taken(bytes));
    if (!all)
        return OUT_OF_MEMORY;
    uint8_t *block = all + BEFORE;
    memcpy(block, &bytes, sizeof bytes);
    memset(block + HEADER, 0xff, bytes); /* NaNs */
    fake.used += bytes;
    fake.peak = fake.used > fake.peak ? fake.used : fake.peak;
    fake.held++;
    *p = (void *)((uintptr_t)(block + HEADER) | DEVICE_BIT);
    return 0;
}
static int release(void *p) {
    if (fake_is_shared(p))
        return fake_share_close(p);
    uint8_t *block = (uint8_t *)real(p) - HEADER;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    fake.used -= bytes;
    fake.held--;
    give(block - BEFORE, taken(bytes));
    return 0;
}
/* A copy waits for the launches before it, and the next launch for the copy. */
static void copy_comes_between(void) {
    if (fake.recording)
        fake_misuse("something besides launches is recorded");
    if (fake.waiting)
        fake_misuse("a copy comes after launches that wait for the host");
    fake.n_fresh = 0;
}
static int pin(void *host, size_t bytes) {
    CALL();
    (void)bytes;
    if (is_there(host))
        return fake_misuse("the device's memory is not pinned");
    fake.held++;
    return 0;
}
static int map(void *host, size_t bytes, void **device) {
    *device = (void *)((uintptr_t)host | DEVICE_BIT);
    return pin(host, bytes);
}
static int unpin(void *host) {
    (void)host;
    fake.held--;
    return 0;
}
static void *real_or_host(const void *p) {
    return is_there(p) ? real(p) : (void *)(uintptr_t)p;
}
static int to_device(void *to, const void *host, size_t bytes, cuda_stream s) {
    CALL();
    copy_comes_between();
    if (!is_there(to) || is_there(host))
        return fake_misuse("a copy to the device has its sides wrong");
    fake_copy(real(to), host, bytes, false, s);
    fake.n_sent += bytes;
    return 0;
}
static int to_host(void *host, const void *from, size_t bytes, cuda_stream s) {
    CALL();
    copy_comes_between();
    if (is_there(host) || !is_there(from))
        return fake_misuse("a copy to the host has its sides wrong");
    fake_copy(host, real(from), bytes, true, s);
    return 0;
}
static int on_device(void *to, const void *from, size_t bytes, cuda_stream s) {
    CALL();
    copy_comes_between();
    if (!is_there(to) || !is_there(from))
        return fake_misuse("a copy on the device has its sides wrong");
    fake_copy(real(to), real(from), bytes, false, s);
    return 0;
}
static int copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes,
                     size_t n_row, bool by_kernel, cuda_stream s) {
    CALL();
    const bool to_dev = is_there(to);
    (void)by_kernel;
    copy_comes_between();
    if (is_there(from) == to_dev || bytes > to_pitch || bytes > from_pitch)
        return fake_misuse("a copy of rows has its sides wrong, or rows overlap");
    for (size_t i = 0; i < n_row; i++)
        fake_copy((uint8_t *)real_or_host(to) + i * to_pitch,
                  (const uint8_t *)real_or_host(from) + i * from_pitch, bytes, !to_dev, s);
    fake.n_sent += to_dev ? bytes * n_row : 0;
    return 0;
}
static int fill(void *to, int byte, size_t bytes, cuda_stream s) {
    CALL();
    (void)s;
    copy_comes_between();
    memset(real(to), byte, bytes);
    return 0;
}
static int stream_new(cuda_stream *s) {
    CALL();
    *s = fake_stream_open();
    fake.held += *s != NULL;
    return *s ? 0 : OUT_OF_MEMORY;
}
static int stream_free(cuda_stream s) {
    if (s == fake.fork_to)
        fake.fork_to = NULL;
    fake.held--;
    fake_stream_close(s);
    return 0;
}
static int stream_sync(cuda_stream s) {
    CALL();
    fake_stream_finish(s);
    order_ends(fake.n_reordered);
    copy_comes_between();
    return 0;
}

static int event_new(cuda_event *e) {
    CALL();
    *e = calloc(1, sizeof(fake_event));
    fake.held += *e != NULL;
    return *e ? 0 : OUT_OF_MEMORY;
}
static int event_free(cuda_event e) {
    fake.held--;
    free(e);
    return 0;
}
static int event_record(cuda_event e, cuda_stream s) {
    CALL();
    *(fake_event *)e = (fake_event){fake.calls + fake.late, s, fake.n_aside, fake_stream_queued(s)};
    fake.n_recorded = fake.n_reordered;
    return 0;
}
/* Every call takes at least a microsecond. */
static int event_ms(float *ms, cuda_event from, cuda_event to) {
    CALL();
    const long begin = from ? ((const fake_event *)from)->when : 0,
               end = to ? ((const fake_event *)to)->when : 0;
    if (begin == 0 || end == 0)
        return fake_misuse("the time of an event that was not recorded");
    *ms = (float)(end - begin) * 1e-3f;
    return 0;
}
static int read_all(const void *data, size_t bytes, unsigned *sink, cuda_stream s) {
    CALL();
    (void)s;
    if (!is_there(data) || !is_there(sink) || bytes % 16)
        return fake_misuse("what is read is not the device's");
    return 0;
}
/* The second stream waits for the first, then the first for all of the second. */
static int stream_wait(cuda_stream s, cuda_event e) {
    CALL();
    const fake_event *of = e;
    order_ends(fake.n_recorded);
    fake_stream_wait(s, of->of, of->queued);
    if (fake.side == FETCHED) {
        if (s != fake.fork_from || of->of != fake.fork_to || of->n_aside != fake.n_aside)
            return fake_misuse("residuals are not joined behind all that is beside them");
        fake.side = JOINED;
        return 0;
    }
    fake.side = FORKED;
    fake.fork_from = of->of;
    fake.fork_to = s;
    fake.n_aside = 0;
    return 0;
}

int fake_launch(cuda_stream s) {
    CALL();
    if (fake.replaying)
        return 0;
    const bool aside = fake.fork_to && s == fake.fork_to;
    if (aside && fake.side != FORKED && fake.side != FETCHED)
        return fake_misuse("a launch in the second stream may start before what is behind it in the first");
    if (!aside && fake.side == FETCHED && fake.fetched_first)
        return fake_misuse("a launch may start before what the second stream has is there");
    fake.n_aside += aside;
    return 0;
}

/* ---- graphs ---- */

static int graph_begin(cuda_stream s) {
    CALL();
    (void)s;
    if (fake.recording)
        return fake_misuse("two graphs are recorded at once");
    fake.recording = calloc(1, sizeof *fake.recording);
    return 0;
}
static int graph_free(cuda_graph g) {
    graph *old = g;
    fake.held--;
    free(old->list);
    free(old);
    return 0;
}
static int graph_end(cuda_stream s, cuda_graph *g) {
    const int e = fake_call();
    graph *made = fake.recording;
    (void)s;
    fake.recording = NULL;
    if (!made)
        return fake_misuse("no graph is recorded");
    fake.held++;
    *g = made;
    if (e) {
        graph_free(made);
        *g = NULL;
    }
    return e;
}
static int run_kept(const kept_launch *k, cuda_stream s) {
#define RUN(name, arguments)                                                                                 \
    if (k->name)                                                                                             \
        return k->name(&k->u.name, s);
    CUDA_LAUNCHES(RUN)
#undef RUN
    return MISUSE;
}
static int graph_launch(cuda_graph g, cuda_stream s) {
    const graph *made = g;
    CALL();
    for (size_t i = 0; i < made->n; i++) {
        const kept_launch *k = &made->list[i];
        fake.calls--; /* one launch */
        fake.replaying = true;
        const int e = run_kept(k, s);
        fake.replaying = false;
        if (e)
            return e;
    }
    fake.n_replayed += (long)made->n;
    return 0;
}

/* ---- the table ---- */

static const cuda_kernels table = {
    .version = CUDA_KERNELS_VERSION,
    .error_text = error_text,
    .device_count = device_count,
    .device_open = device_open,
    .memory_now = memory_now,
    .alloc = alloc,
    .release = release,
    .pin = pin,
    .unpin = unpin,
    .map = map,
    .to_device = to_device,
    .to_host = to_host,
    .on_device = on_device,
    .copy_rows = copy_rows,
    .fill = fill,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_sync = stream_sync,
    .stream_wait = stream_wait,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_ms = event_ms,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_launch = graph_launch,
    .graph_free = graph_free,
    .share_new = fake_share_new,
    .share_open = fake_share_open,
    .share_close = fake_share_close,
    .gtile = fake_gtile,
    .linear_scratch = fake_linear_scratch,
    .linear = fake_linear,
    .leaves_whole = fake_leaves_whole,
    .sums = fake_sums,
    .left_rows = fake_left_rows,
    .has_wide = fake_has_wide,
    .wide_scratch = fake_wide_scratch,
    .wide = fake_wide,
    .has_batch = fake_has_batch,
    .batch = fake_batch,
    .mixed_scratch = fake_mixed_scratch,
    .mixed = fake_mixed,
    .sparse = fake_sparse,
    .codes_bytes = fake_codes_bytes,
    .attend_scratch = fake_attend_scratch,
    .attend = fake_attend,
    .attend_prompt = fake_attend_prompt,
    .store = fake_store,
    .pack = fake_pack,
    .move = fake_move,
    .norm = fake_norm,
    .each = fake_each,
    .columns = fake_columns,
    .rope = fake_rope,
    .embed = fake_embed,
    .reduce = fake_reduce,
    .gather = fake_gather,
    .residual_scratch = fake_residual_scratch,
    .residual = fake_residual,
    .residual_add = fake_residual_add,
    .sample_scratch = fake_sample_scratch,
    .sample = fake_sample,
    .sketch_takes = fake_sketch_takes,
    .sketch = fake_sketch,
    .shortlist_scratch = fake_shortlist_scratch,
    .shortlist = fake_shortlist,
    .route = fake_route,
    .experts = fake_experts,
    .hand_down = fake_hand_down,
    .hand_up = fake_hand_up,
    .handed_down = fake_handed_down,
    .groups = fake_groups,
    .recurrent = fake_recurrent,
    .read_all = read_all,
    .strategies = fake_strategies,
    .units = fake_units,
};

const cuda_kernels *fake_cuda(size_t memory, long fail_at, int error) {
    if (fake.waiting)
        free(fake.waiting->list);
    free(fake.waiting);
    memset(&fake, 0, sizeof fake);
    fake_streams_reset();
    fake.memory = memory;
    fake.fail_at = fail_at;
    fake.error = error;
    return &table;
}

void fake_cuda_prompts_differ(bool differ) {
    fake.prompts_differ = differ;
}
void fake_cuda_without_wide(void) {
    fake.no_wide = true;
}
void fake_cuda_driver(size_t bytes) {
    fake.driver = bytes;
}
void fake_cuda_fail_in(long n) {
    fake.fail_at = n > 0 ? fake.calls + n : 0;
}
void fake_cuda_fail_once(long n) {
    fake_cuda_fail_in(n);
    fake.fails_once = true;
}
void fake_cuda_others(size_t bytes) {
    fake.others = bytes;
}
long fake_cuda_calls(void) {
    return fake.calls;
}
size_t fake_cuda_held(void) {
    return fake.held;
}
size_t fake_cuda_peak(void) {
    return fake.peak;
}
const char *fake_cuda_wrong(void) {
    return fake.wrong;
}
#define COUNT(name)                                                                                          \
    long fake_cuda_##name(void) {                                                                            \
        return fake.n_##name;                                                                                \
    }
COUNT(replayed)
COUNT(fetched_first)
COUNT(fetched)
COUNT(taken)
COUNT(wide)
COUNT(batch)
COUNT(mixed)
COUNT(sparse)
COUNT(embedded)
COUNT(sampled)
COUNT(short)
COUNT(prompt)
COUNT(moved)
size_t fake_cuda_sent(void) {
    return fake.n_sent;
}
long fake_cuda_by(int way) {
    return fake.n_by[way];
}
