/* Reads in flight, by io_uring and by threads: the same bytes as a plain read, a file's end, and failures. */
#include "base/mem.h"
#include "base/num.h"
#include "base/read_queue_parts.h"
#include "support/skip.h"
#include "support/tempdir.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { CHUNK = 16 << 10, DEPTH = 4, N_BYTE = 37 * CHUNK + 4096 + 100 };

static uint8_t content[N_BYTE];

static file *open_content(unsigned flags) {
    file *f = NULL;
    for (size_t i = 0; i < N_BYTE; i++)
        content[i] = (uint8_t)(i * 2654435761u >> 11);
    assert_int_equal(file_open(temp_file("content", content, N_BYTE), flags, &f, NULL), NIB_OK);
    return f;
}

/* Reads the whole file, DEPTH chunks in flight; how many of them failed. */
static int read_all(read_queue *q, file *f, uint8_t *buffer, uint8_t *out) {
    uint64_t offset[DEPTH], at = 0;
    int tag, idle[DEPTH] = {0, 1, 2, 3}, n_idle = DEPTH, n_failed = 0;
    do {
        while (n_idle > 0 && at < N_BYTE) {
            tag = idle[--n_idle];
            offset[tag] = at;
            read_request what = {f, buffer + tag * CHUNK, at, CHUNK, NUM_MIN(CHUNK, N_BYTE - at)};
            if (!file_is_direct(f))
                what.n_byte = what.min;
            read_queue_submit(q, tag, &what);
            at += CHUNK;
        }
        nib_error err = {NIB_OK, ""};
        if (n_idle == DEPTH)
            assert_false(read_queue_ready(q));
        while (n_idle < DEPTH && at % (2 * CHUNK) == 0 && !read_queue_ready(q))
            sched_yield(); /* it becomes ready without a wait */
        nib_status status = read_queue_wait(q, &tag, &err);
        if (tag < 0)
            return n_failed;
        if (status != NIB_OK)
            assert_true(status == NIB_E_IO && strstr(err.message, "content"));
        n_failed += status != NIB_OK;
        if (status == NIB_OK)
            memcpy(out + offset[tag], buffer + tag * CHUNK, (size_t)NUM_MIN(CHUNK, N_BYTE - offset[tag]));
        idle[n_idle++] = tag;
    } while (true);
}

static void every_carrier_and_file(void **state) {
    (void)state;
    uint8_t *buffer = mem_map(DEPTH * CHUNK), *out = mem_alloc(N_BYTE);
    for (unsigned i = 0; i < 4; i++) {
        read_queue *q;
        file *f = open_content(i & 1 ? FILE_DIRECT : 0);
        assert_int_equal(
            read_queue_open(DEPTH, i & 2 ? READ_QUEUE_THREADS : 0, buffer, DEPTH * CHUNK, &q, NULL), NIB_OK);
        if (i & 2)
            assert_false(read_queue_is_ring(q));
        memset(out, 0, N_BYTE);
        assert_int_equal(read_all(q, f, buffer, out), 0);
        assert_memory_equal(out, content, N_BYTE);
        for (int n = 1; n <= 38; n += 12) { /* one read fails; the others are whole */
            fault_arm(FAULT_READ, n);
            assert_in_range(read_all(q, f, buffer, out), i & 2 ? 0 : 1, 1);
            fault_arm(FAULT_READ, 0);
        }
        for (int n = 1; n <= 38;
             n++) { /* the same after it was started; a read that ends early is repeated */
            fault_arm(FAULT_DONE, n);
            assert_int_equal(read_all(q, f, buffer, out), 1);
            fault_arm(FAULT_DONE, 0);
            memset(out, 0, N_BYTE);
            fault_arm(FAULT_SHORT, n);
            assert_int_equal(read_all(q, f, buffer, out), 0);
            fault_arm(FAULT_SHORT, 0);
            assert_memory_equal(out, content, N_BYTE);
        }
        read_queue_close(q);
        file_close(f);
    }
    mem_unmap(buffer, DEPTH * CHUNK);
    mem_free(out);
}

static void a_file_that_became_shorter(void **state) {
    (void)state;
    uint8_t *buffer = mem_map(CHUNK);
    for (unsigned i = 0; i < 4; i++) {
        read_queue *q;
        int tag;
        nib_error err = {NIB_OK, ""};
        file *f = open_content(i & 1 ? FILE_DIRECT : 0);
        assert_int_equal(truncate(file_path(f), 5000), 0);
        assert_int_equal(read_queue_open(1, i & 2 ? READ_QUEUE_THREADS : 0, NULL, 0, &q, NULL), NIB_OK);
        read_request what = {f, buffer, 4096, CHUNK, CHUNK};
        read_queue_submit(q, 0, &what);
        assert_int_equal(read_queue_wait(q, &tag, &err), NIB_E_MODEL);
        assert_non_null(strstr(err.message, "ends at"));
        assert_int_equal(tag, 0);
        assert_int_equal(read_queue_wait(q, &tag, &err), NIB_OK);
        assert_int_equal(tag, -1);
        read_queue_close(q);
        file_close(f);
    }
    mem_unmap(buffer, CHUNK);
}

static void without_io_uring(void **state) {
    (void)state;
    read_queue *q;
    nib_error err;
    fault_arm(FAULT_RING, 1);
    assert_int_equal(read_queue_open(2, 0, NULL, 0, &q, NULL), NIB_OK);
    fault_arm(FAULT_RING, 0);
    assert_false(read_queue_is_ring(q));
    read_queue_close(q);
    assert_int_equal(read_queue_open(0, 0, NULL, 0, &q, &err), NIB_E_USAGE);
    assert_int_equal(read_queue_open(MAX_READ_QUEUE + 1, 0, NULL, 0, &q, &err), NIB_E_USAGE);
}

/* Closing waits for reads that nobody has waited for. */
static void closed_with_reads_in_flight(void **state) {
    (void)state;
    uint8_t *buffer = mem_map(DEPTH * CHUNK);
    for (unsigned flags = 0; flags <= READ_QUEUE_THREADS; flags++) {
        read_queue *q;
        file *f = open_content(FILE_DIRECT);
        assert_int_equal(read_queue_open(DEPTH, flags, buffer, DEPTH * CHUNK, &q, NULL), NIB_OK);
        for (int i = 0; i < DEPTH; i++) {
            read_request what = {f, buffer + i * CHUNK, (uint64_t)i * CHUNK, CHUNK, CHUNK};
            read_queue_submit(q, i, &what);
        }
        read_queue_close(q);
        file_close(f);
        assert_memory_equal(buffer, content, DEPTH * CHUNK);
    }
    mem_unmap(buffer, DEPTH * CHUNK);
}

/* Replaces this process' last io_uring by something else. False: there is none. */
static bool break_ring(void) {
    static const char ring[] = "anon_inode:[io_uring]";
    char path[64], target[64];
    for (int fd = 255; fd > 2; fd--) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(path, target, sizeof target);
        if (n == (ssize_t)strlen(ring) && !memcmp(target, ring, strlen(ring))) {
            const int other = open("/dev/null", O_RDONLY);
            assert_int_equal(dup2(other, fd), fd);
            close(other);
            return true;
        }
    }
    return false;
}

/* A ring that breaks is an error of each read, not an endless wait. */
static void a_ring_that_breaks(void **state) {
    (void)state;
    uint8_t *buffer = mem_map(DEPTH * CHUNK);
    int64_t got = 0;
    int tag;
    nib_error err;
    void *ring = read_ring_open(DEPTH, NULL, 0);
    if (!ring || !break_ring()) {
        mem_unmap(buffer, DEPTH * CHUNK);
        skip_because("no io_uring here");
    }
    assert_int_equal(read_ring.finish(ring, &got), -1);
    assert_true(got < 0);
    read_ring.close(ring);
    read_queue *q;
    file *f = open_content(FILE_DIRECT);
    assert_int_equal(read_queue_open(DEPTH, 0, buffer, DEPTH * CHUNK, &q, NULL), NIB_OK);
    for (int i = 0; i < DEPTH; i++) {
        read_request what = {f, buffer + i * CHUNK, (uint64_t)i * CHUNK, CHUNK, CHUNK};
        read_queue_submit(q, i, &what);
    }
    read_queue_send(q);
    assert_true(break_ring());
    for (int i = 0; i < DEPTH; i++) { /* each of them was done before, or fails */
        const nib_status status = read_queue_wait(q, &tag, &err);
        assert_in_range(tag, 0, DEPTH - 1);
        assert_true(status == NIB_OK || status == NIB_E_IO);
    }
    assert_int_equal(read_queue_wait(q, &tag, &err), NIB_OK);
    assert_int_equal(tag, -1);
    read_queue_close(q);
    file_close(f);
    mem_unmap(buffer, DEPTH * CHUNK);
}

static nib_status whole_life(void *user, nib_error *err) {
    read_queue *q;
    NIB_TRY(read_queue_open(DEPTH, *(unsigned *)user, NULL, 0, &q, err));
    read_queue_close(q);
    return NIB_OK;
}

static void allocations_fail(void **state) {
    (void)state;
    for (unsigned flags = 0; flags <= READ_QUEUE_THREADS; flags++)
        for (int n = 1; n <= 3; n++) {
            nib_error err = {NIB_OK, ""};
            fault_arm(FAULT_ALLOC, n);
            nib_status status = whole_life(&flags, &err);
            fault_arm(FAULT_ALLOC, 0);
            assert_true(status == NIB_OK || (status == NIB_E_NOMEM && err.message[0]));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_carrier_and_file), cmocka_unit_test(a_file_that_became_shorter),
        cmocka_unit_test(without_io_uring),       cmocka_unit_test(closed_with_reads_in_flight),
        cmocka_unit_test(allocations_fail),       cmocka_unit_test(a_ring_that_breaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
