/* Streaming under a cap gives the bits of the resident weights: for number formats of files (and the
 * values of the model in F32), for matrices that are stored transposed, with sliding windows, from split
 * files, and from a file that is not in the page cache. */
#include "base/file.h"
#include "nib.h"
#include "nib_tools.h"
#include "support/faults.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinyfolder.h"
#include "support/tinymodel.h"
#include "memory/ledger.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_TOKEN = SANITIZED ? 20 : 40 };

static const tiny_shape shape = {TYPE_Q8_0, 6, 256, 768, 8, 2, 2048, 128, true};

/* Logits of every position; caller frees. cap NIB_AUTO: resident. activation: its bits. */
static logits_rows forward_with(const char *path, uint64_t cap, int activation) {
    int32_t tokens[N_TOKEN];
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_session *s = NULL;
    nib_memory m;
    nib_error err = {0};
    nib_engine_options_init(&o);
    o.n_thread = 2;
    o.n_batch = 17; /* several passes, with the cache's window across their ends */
    o.ram = cap;
    o.activation = activation;
    o.stream = cap != NIB_AUTO;
    if (nib_engine_open(path, &o, &e, &err) || nib_session_open(e, NULL, &s, &err))
        fail_msg("%s: %s", path, err.message);
    nib_engine_memory(e, &m);
    assert_int_equal(m.owner[NIB_OWNER_STAGING] > 0, o.stream);
    logits_tokens(tokens, N_TOKEN, nib_engine_info(e)->n_vocab, 1);
    const logits_rows r = logits_of_session(s, tokens, N_TOKEN, nib_engine_info(e)->n_vocab);
    nib_engine_memory(e, &m);
    assert_true(!o.stream || m.tier[NIB_TIER_RAM].peak <= cap);
    nib_session_close(s);
    nib_engine_close(e);
    return r;
}

static logits_rows forward(const char *path, uint64_t cap) {
    return forward_with(path, cap, 8);
}

/* The resident logits; the caller frees them. */
static logits_rows check_same(const char *path) {
    uint64_t headroom = tiny_model_half_bytes(path);
    logits_rows whole = forward(path, NIB_AUTO), part = forward(path, process_bytes() + headroom);
    assert_memory_equal(whole.data, part.data, logits_bytes(&whole));
    free(part.data);
    return whole;
}

/* Root mean square of the differences, relative to b. */
static double distance(const logits_rows *a, const logits_rows *b) {
    double error = 0, size = 0;
    for (size_t i = 0; i < logits_bytes(a) / sizeof *a->data; i++) {
        error += pow((double)a->data[i] - (double)b->data[i], 2);
        size += pow((double)b->data[i], 2);
    }
    return sqrt(error / size);
}

/* `quantize` writes each value of the blocks as a float. */
static const char *as_floats(const char *path) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    nib_quantize_report r;
    nib_error err = {0};
    const char *out = temp_path("floats.gguf");
    unlink(out);
    const nib_quantize_options q = {.out = out, .type = "f32", .imatrix = "none"};
    if (nib_quantize(path, &o, &q, &r, &err))
        fail_msg("%s", err.message);
    return out;
}

static void formats_of_files(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_IQ1_M, TYPE_IQ2_XS, TYPE_IQ3_XXS,
                                    TYPE_IQ3_S, TYPE_TQ1_0,  TYPE_NVFP4};
    for (size_t i = 0; i < sizeof types / sizeof *types; i += (size_t)slow_step(4)) {
        const tiny_shape of = {types[i], 6, 256, 768, 4, 2, 512, 64, true};
        const char *path = tiny_model("format.gguf", &of);
        free(check_same(path).data);
        logits_rows packed = forward_with(path, NIB_AUTO, 16), floats = forward(as_floats(path), NIB_AUTO);
        const double found = distance(&packed, &floats);
        if (!(found <
              1e-2)) /* layers of random blocks enlarge what rounding leaves; an error gives about 1 */
            fail_msg("%s: %g from the model in F32", type_get(types[i])->name, found);
        free(packed.data);
        free(floats.data);
    }
}

static void transposed_weights(void **state) {
    (void)state;
    free(check_same(tiny_folder_gpt2()).data);
}

static void windows(void **state) {
    (void)state;
    const char *(*const make[])(int) = {tiny_folder_mistral, tiny_folder_gemma3};
    for (int i = 0; i < 2; i++) {
        logits_rows near = check_same(make[i](16)), far = check_same(make[i](128));
        size_t row = (size_t)near.n_vocab;
        /* equal up to the window's end and not after it, so the window was used */
        assert_memory_equal(near.data, far.data, 16 * row * sizeof *near.data);
        assert_memory_not_equal(near.data + 16 * row, far.data + 16 * row, row * sizeof *near.data);
        free(near.data);
        free(far.data);
    }
}

static void split_files(void **state) {
    (void)state;
    logits_rows one = check_same(tiny_model("whole.gguf", &shape));
    logits_rows three = check_same(tiny_model_split("part", &shape, 3));
    assert_memory_equal(one.data, three.data, logits_bytes(&one));
    free(one.data);
    free(three.data);
}

/* ---- a cold page cache ---- */

static size_t cached_pages(int fd, size_t n_byte) {
    size_t n_page = (n_byte + 4095) / 4096, n = 0;
    unsigned char *in = malloc(n_page);
    void *p = mmap(NULL, n_byte, PROT_READ, MAP_SHARED, fd, 0);
    assert_non_null(in);
    assert_true(p != MAP_FAILED);
    assert_int_equal(mincore(p, n_byte, in), 0);
    for (size_t i = 0; i < n_page; i++)
        n += in[i] & 1;
    munmap(p, n_byte);
    free(in);
    return n;
}

/* False if the file system cannot drop its pages (tmpfs). */
static bool make_cold(const char *path) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &info), 0);
    fsync(fd);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    size_t left = cached_pages(fd, (size_t)info.st_size);
    close(fd);
    return left == 0;
}

static void a_cold_file(void **state) {
    (void)state;
    const char *path = tiny_model("cold.gguf", &shape);
    uint64_t headroom = tiny_model_half_bytes(path);
    logits_rows warm = forward(path, NIB_AUTO);
    for (int streamed = 0; streamed < 2; streamed++) {
        if (!make_cold(path))
            print_message("this file system keeps its pages: the file was not cold\n");
        logits_rows cold = forward(path, streamed ? process_bytes() + headroom : NIB_AUTO);
        assert_memory_equal(warm.data, cold.data, logits_bytes(&warm));
        free(cold.data);
    }
    free(warm.data);
}

/* ---- every cap, thread count and batch ---- */

enum { N_VOCAB = 2048, N_LONG = SANITIZED ? 26 : 100 };

typedef struct way {
    uint64_t headroom; /* the cap beyond the process's memory; NIB_AUTO: no cap */
    int n_thread;
    int64_t n_batch;
    const char *scratch; /* a packed file there */
    bool no_fuse;
} way;

static nib_engine *open_way(const char *path, const way *how) {
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_error err = {0};
    nib_engine_options_init(&o);
    o.n_thread = how->n_thread;
    o.n_batch = how->n_batch;
    o.n_ctx = 128;
    o.no_fuse = how->no_fuse;
    o.scratch = how->scratch;
    o.packed = how->scratch ? NIB_PACKED_AUTO : NIB_PACKED_OFF;
    o.stream = how->headroom != NIB_AUTO;
    o.ram = o.stream ? process_bytes() + how->headroom : NIB_AUTO;
    if (nib_engine_open(path, &o, &e, &err))
        fail_msg("%d threads, batch %d: %s", how->n_thread, (int)how->n_batch, err.message);
    return e;
}

/* A prompt and a few more tokens; the last logits, and the bytes that were read. */
static nib_traffic walk(const char *path, const way *how, float *logits) {
    int32_t tokens[N_LONG + 3];
    nib_engine *e = open_way(path, how);
    nib_session *s = NULL;
    nib_memory m;
    nib_traffic t;
    nib_error err = {0};
    logits_tokens(tokens, N_LONG + 3, N_VOCAB, 1);
    assert_int_equal(nib_session_open(e, NULL, &s, &err), NIB_OK);
    for (size_t n = N_LONG; n <= N_LONG + 3; n++)
        if (nib_session_sync(s, tokens, n, &err))
            fail_msg("%s", err.message);
    memcpy(logits, nib_session_logits(s), N_VOCAB * sizeof *logits);
    nib_engine_memory(e, &m);
    assert_true(m.tier[NIB_TIER_RAM].peak <= m.tier[NIB_TIER_RAM].cap);
    nib_engine_traffic(e, &t);
    nib_session_close(s);
    nib_engine_close(e);
    return t;
}

/* The smallest headroom with which it can be streamed. */
static uint64_t min_headroom(const char *path, uint64_t max) {
    uint64_t low = 0, high = max;
    while (high - low > 128 << 10) {
        const uint64_t headroom = (low + high) / 2;
        nib_engine_options o;
        nib_engine *e = NULL;
        nib_engine_options_init(&o);
        o.n_thread = 2;
        o.n_ctx = 128;
        o.n_batch = 23; /* the maximum below; without a request there are fewer if they do not fit */
        o.stream = true;
        o.ram = process_bytes() + headroom;
        *(nib_engine_open(path, &o, &e, NULL) == NIB_OK ? &high : &low) = headroom;
        nib_engine_close(e);
    }
    return high;
}

static void the_same_bits(const tiny_shape *of) {
    static float expected[N_VOCAB], found[N_VOCAB];
    const char *path = tiny_model("ways.gguf", of), *scratch = temp_path("ways");
    const uint64_t half = tiny_model_half_bytes(path), min = min_headroom(path, half);
    const uint64_t caps[] = {min + (1 << 20), half - (half - min) / 2, half - (half - min) / 4};
    const int64_t batches[] = {0, 1, 23};
    (void)mkdir(scratch, 0777);
    walk(path, &(way){NIB_AUTO, 1, 0, NULL, false}, expected);
    for (int i = 0; i < 18; i += slow_step(7)) { /* 7: still covers every value of each setting */
        way how = {caps[i % 3], 1 + i % 2, batches[i / 3 % 3], i < 9 ? NULL : scratch, i % 5 == 4};
        nib_traffic t = walk(path, &how, found);
        assert_memory_equal(expected, found, sizeof expected);
        assert_true(t.pass > 0 && t.streamed >= t.pass); /* blocks that the ring holds are read once */
    }
}

static void every_way_gives_the_same_bits(void **state) {
    static const tiny_shape wide = {TYPE_Q4_1, 3, 512, 1536, 8, 4, N_VOCAB, 128, true};
    static const tiny_shape narrow = {TYPE_Q8_0, 16, 128, 256, 4, 2, N_VOCAB, 128, false};
    (void)state;
    the_same_bits(&wide);   /* blocks larger than the ring */
    the_same_bits(&narrow); /* several blocks in the ring */
}

/* Streamed weights are read once for each pass, whatever the prompt's length, and the passes grow. */
static void a_prompt_reads_once(void **state) {
    static const tiny_shape narrow = {TYPE_Q8_0, 16, 128, 256, 4, 2, N_VOCAB, 128, false};
    static float logits[N_VOCAB];
    (void)state;
    const char *path = tiny_model("once.gguf", &narrow);
    const way how = {tiny_model_half_bytes(path), 2, 0, NULL, false};
    const nib_traffic t = walk(path, &how, logits);
    assert_int_equal(t.n_pass, 4); /* the prompt, and three tokens */
    /* a row of the embedding is a separate read; the ring is some pages ahead */
    assert_true(t.streamed >= 4 * t.pass && t.streamed < 5 * t.pass + (N_LONG + 3) * 4096);
}

/* ---- every read fails once ---- */

typedef struct life {
    const char *path;
    uint64_t headroom;
} life;

static nib_status live(void *user, nib_error *err) {
    const life *l = user;
    static const int32_t tokens[] = {1, 2};
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_session *s = NULL;
    nib_engine_options_init(&o);
    o.n_thread = 2;
    o.stream = true;
    o.ram = process_bytes() + l->headroom;
    nib_status status = nib_engine_open(l->path, &o, &e, err);
    if (status == NIB_OK)
        status = nib_session_open(e, NULL, &s, err);
    if (status == NIB_OK)
        status = nib_session_sync(s, tokens, 2, err);
    if (status == NIB_OK)
        fault_made(nib_session_logits(s), (size_t)nib_engine_info(e)->n_vocab * sizeof(float));
    nib_session_close(s);
    nib_engine_close(e);
    return status;
}

static void every_read_of_a_split_model(void **state) {
    (void)state;
    life l = {tiny_model_split("fail", &shape, 3), 0};
    l.headroom = tiny_model_half_bytes(l.path);
    assert_true(fault_sweep(FAULT_READ, 1, live, &l) > 20);
}

int main(void) {
    process_counted();
    const struct CMUnitTest files[] = {
        cmocka_unit_test(formats_of_files),
        cmocka_unit_test(transposed_weights),
        cmocka_unit_test(windows),
        cmocka_unit_test(split_files),
        cmocka_unit_test(every_read_of_a_split_model),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cold_file),
        cmocka_unit_test(every_way_gives_the_same_bits),
        cmocka_unit_test(a_prompt_reads_once),
    };
    /* Other files, the same threads. */
    const int failed = SANITIZED_THREADS ? 0 : cmocka_run_group_tests(files, NULL, NULL);
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
