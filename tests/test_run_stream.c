/* Streaming under a cap gives the bits of the resident weights: for matrices that are stored transposed, with
 * sliding windows, from split files, and from a file that is not in the page cache. */
#include "base/file.h"
#include "nib.h"
#include "support/faults.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/tempdir.h"
#include "support/tinyfolder.h"
#include "support/tinymodel.h"
#include "tiers/ledger.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_TOKEN = 40 };

static const tiny_shape shape = {TYPE_Q8_0, 6, 256, 768, 8, 2, 2048, 128, true};

/* Logits of every position; caller frees. cap NIB_AUTO: resident. */
static logits_rows forward(const char *path, uint64_t cap) {
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
    o.stream = cap != NIB_AUTO;
    if (nib_engine_open(path, &o, &e, &err) || nib_session_open(e, NULL, &s, &err))
        fail_msg("%s: %s", path, err.message);
    nib_engine_memory(e, &m);
    assert_int_equal(m.owner[NIB_OWNER_STAGING] > 0, o.stream);
    logits_rows r = {NULL, nib_engine_info(e)->n_vocab, 0};
    r.data = calloc((size_t)(N_TOKEN * r.n_vocab), sizeof *r.data);
    assert_non_null(r.data);
    for (int i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)((i * 7919 + 13) % r.n_vocab);
    if (nib_session_forward(s, tokens, N_TOKEN, 0, logits_keep, &r, &err))
        fail_msg("%s: %s", path, err.message);
    nib_engine_memory(e, &m);
    assert_true(!o.stream || m.tier[NIB_TIER_RAM].peak <= cap);
    nib_session_close(s);
    nib_engine_close(e);
    return r;
}

static size_t bytes_of(const logits_rows *r) {
    return (size_t)(N_TOKEN * r->n_vocab) * sizeof *r->data;
}

/* The resident logits; the caller frees them. */
static logits_rows check_same(const char *path) {
    uint64_t room = tiny_model_half_room(path);
    logits_rows whole = forward(path, NIB_AUTO), part = forward(path, ledger_look().now + room);
    assert_memory_equal(whole.data, part.data, bytes_of(&whole));
    free(part.data);
    return whole;
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
        /* the same until the window's end, not after it: it was there */
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
    assert_memory_equal(one.data, three.data, bytes_of(&one));
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

/* False where the file system keeps its pages whatever one says (tmpfs). */
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
    uint64_t room = tiny_model_half_room(path);
    logits_rows warm = forward(path, NIB_AUTO);
    for (int streamed = 0; streamed < 2; streamed++) {
        if (!make_cold(path))
            print_message("this file system keeps its pages: the file was not cold\n");
        logits_rows cold = forward(path, streamed ? ledger_look().now + room : NIB_AUTO);
        assert_memory_equal(warm.data, cold.data, bytes_of(&warm));
        free(cold.data);
    }
    free(warm.data);
}

/* ---- every read fails once ---- */

typedef struct life {
    const char *path;
    uint64_t room;
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
    o.ram = ledger_look().now + l->room;
    nib_status status = nib_engine_open(l->path, &o, &e, err);
    if (status == NIB_OK)
        status = nib_session_open(e, NULL, &s, err);
    if (status == NIB_OK)
        status = nib_session_sync(s, tokens, 2, err);
    nib_session_close(s);
    nib_engine_close(e);
    return status;
}

static void every_read_of_a_split_model(void **state) {
    (void)state;
    life l = {tiny_model_split("fail", &shape, 3), 0};
    l.room = tiny_model_half_room(l.path);
    assert_true(fault_sweep(FAULT_READ, 1, live, &l) > 20);
}

int main(void) {
    process_counted();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transposed_weights),
        cmocka_unit_test(windows),
        cmocka_unit_test(split_files),
        cmocka_unit_test(a_cold_file),
        cmocka_unit_test(every_read_of_a_split_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
