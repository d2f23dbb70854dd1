/* Statuses, messages, escapes, sizes, checked arithmetic, the arena, growth, regions. */
#include "base/arena.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/status.h"
#include "support/faults.h"
#include "support/memfile.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void statuses_have_texts_and_exit_codes(void **state) {
    (void)state;
    assert_string_equal(nib_status_text(NIB_OK), "ok");
    assert_int_equal(nib_status_exit_code(NIB_E_NOFIT), 3);
    assert_int_equal(nib_status_exit_code(NIB_E_CANCELLED), 130);
    assert_non_null(nib_status_text((nib_status)999));
    assert_int_equal(nib_status_exit_code((nib_status)999), 1);
    assert_string_equal(nib_version(), NIB_VERSION);
    nib_free(NULL);
}

static void fail_fills_the_error(void **state) {
    (void)state;
    nib_error err;
    assert_int_equal(nib_fail(&err, NIB_E_MODEL, "expected %d, found %s", 3, "x\ny\x01"), NIB_E_MODEL);
    assert_int_equal(err.status, NIB_E_MODEL);
    assert_string_equal(err.message, "expected 3, found x\\ny\\x01");
    /* the message itself may be an argument */
    nib_fail(&err, NIB_E_IO, "again: %s", err.message);
    assert_string_equal(err.message, "again: expected 3, found x\\ny\\x01");
    assert_int_equal(nib_fail_prefix(&err, NIB_E_IO, "file.gguf"), NIB_E_IO);
    assert_string_equal(err.message, "file.gguf: again: expected 3, found x\\ny\\x01");
    assert_int_equal(nib_fail(NULL, NIB_E_IO, "nobody listens"), NIB_E_IO);
    assert_int_equal(nib_fail_prefix(NULL, NIB_E_IO, "x"), NIB_E_IO);
    nib_fail_nomem(&err, 3 << 20, "weights");
    assert_int_equal(err.status, NIB_E_NOMEM);
    assert_non_null(strstr(err.message, "3.0 MiB"));
    nib_fail_errno(&err, "cannot open", "/some/where", 13);
    assert_int_equal(err.status, NIB_E_IO);
    assert_non_null(strstr(err.message, "/some/where: cannot open: "));
}

static void long_messages_are_cut_at_a_character(void **state) {
    (void)state;
    nib_error err;
    char text[2000];
    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 'a', shift);
        size_t n = shift;
        for (; n + 3 < sizeof text; n += 3)
            memcpy(text + n, "\xe2\x82\xac", 3); /* the euro sign */
        text[n] = 0;
        nib_fail(&err, NIB_E_IO, "%s", text);
        size_t length = strlen(err.message);
        assert_true(length < sizeof err.message && length > sizeof err.message - 4);
        assert_int_equal((length - shift) % 3, 0);
        nib_fail_prefix(&err, NIB_E_IO, text); /* a prefix that fills the whole buffer */
        assert_true(strlen(err.message) < sizeof err.message);
    }
}

static void escapes_show_what_is_not_text(void **state) {
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain \xc3\xa9 \xf0\x9f\x98\x80", "plain \xc3\xa9 \xf0\x9f\x98\x80"},
        {"\x1b[31mred\x7f\t", "\\x1b[31mred\\x7f\\t"},
        {"bad \xff\xc3", "bad \\xff\\xc3"},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"}, /* a lone surrogate */
        {"c1 \xc2\x9b"
         "31m",
         "c1 \\x9b31m"},
        {"", ""},
    };
    char out[64];
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        size_t n = escape_line(out, sizeof out, cases[i].in);
        assert_string_equal(out, cases[i].out);
        assert_int_equal(n, strlen(out));
    }
    assert_int_equal(escape_line(out, 4, "ab\n"), 2); /* an escape is written whole or not at all */
    assert_int_equal(escape_line(out, 1, "ab"), 0);
}

static void take_line(void *user, const char *line) {
    snprintf(user, 64, "%s", line);
}

static void log_lines_are_single(void **state) {
    (void)state;
    char line[64] = "";
    logger log = {take_line, line, false};
    log_line(&log, "slow path: %s", "a\nb");
    assert_string_equal(line, "slow path: a\\nb");
    log_line(NULL, "nobody");
    log_line(&(logger){NULL, NULL, true}, "nobody");
    log_detail(&log, "nobody asked");
    assert_string_equal(line, "slow path: a\\nb");
    log.details = true;
    log_detail(&log, "chosen: %d", 1);
    assert_string_equal(line, "chosen: 1");
    log_detail(NULL, "nobody");
}

static void sizes_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"100000", 100000},
        {"512M", 512u << 20},
        {"2G", 2ull << 30},
        {"1.5GiB", 3ull << 29},
        {"1kB", 1000},
        {"1 KiB", 1024},
        {"0.5k", 512},
        {"3TB", 3000000000000ull},
        {"16b", 16},
        {"72m", 72u << 20},
        {"1.25MB", 1250000},
        {"auto", UINT64_MAX},
        {"18446744073709551614", UINT64_MAX - 1},
        {"16777215T", 16777215ull << 40},
        {"0.333333333333K", 341},
    };
    static const char *const bad[] = {"",
                                      "M",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1X",
                                      "1MiBs",
                                      "1..5G",
                                      "1.G",
                                      ".5G",
                                      "1e3",
                                      "0x10",
                                      "18446744073709551615",
                                      "18446744073709551616",
                                      "16777216T",
                                      "1  G",
                                      "Auto ",
                                      "1G ",
                                      "99999999999999999999999"};
    uint64_t bytes;
    for (size_t i = 0; i < NUM_COUNT(good); i++) {
        if (!num_parse_size(good[i].text, &bytes) || bytes != good[i].bytes)
            fail_msg("\"%s\" gave %llu", good[i].text, (unsigned long long)bytes);
    }
    for (size_t i = 0; i < NUM_COUNT(bad); i++)
        if (num_parse_size(bad[i], &bytes))
            fail_msg("\"%s\" was taken for %llu", bad[i], (unsigned long long)bytes);
}

static void sizes_are_shown(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {138412032, "132.0 MiB"},
        {98362432, "93.8 MiB"},
        {1048575, "1.0 MiB"},
        {1048576 - 60, "1023.9 KiB"},
        {UINT64_MAX, "16.0 EiB"},
        {1536ull << 40, "1.5 PiB"},
    };
    char out[32];
    for (size_t i = 0; i < NUM_COUNT(cases); i++)
        assert_string_equal(num_format_size(cases[i].bytes, out), cases[i].text);
    /* a printed cap is at least the needed bytes, and little more */
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        uint64_t shown;
        if (cases[i].bytes >> 40) /* no such unit is read */
            continue;
        char *space = strchr(num_format_cap(cases[i].bytes, out), ' ');
        memmove(space, space + 1, strlen(space));
        assert_true(num_parse_size(out, &shown));
        assert_true(shown >= cases[i].bytes && shown <= cases[i].bytes + cases[i].bytes / 4 + (2 << 20));
    }
    assert_string_equal(num_format_cap(UINT64_MAX, out), "16.0 EiB");
}

static void numbers_are_written_out(void **state) {
    (void)state;
    static const struct {
        double x;
        int digits;
        const char *text;
    } cases[] = {
        {0, 3, "0"},
        {-0.0, 3, "0"},
        {1, 6, "1"},
        {1180.4, 3, "1180"},
        {0.05, 15, "0.05"},
        {0.8, 15, "0.8"},
        {-1.5, 6, "-1.5"},
        {999.96, 4, "1000"},
        {0.000131, 3, "0.000131"},
        {9.96e-5, 2, "0.0001"},
        {1e-10, 6, "0"},
        {-1e-10, 6, "0"},
        {2.5e9, 3, "2500000000"},
        {123456.789, 15, "123456.789"},
        {9.2233720368547758e18, 15, "9223372036854775808"},
        {-3e17, 1, "-300000000000000000"},
        {1e300, 6, "10^300 or more"},
        {-1e30, 3, "-10^30 or more"},
        {INFINITY, 3, "inf"},
        {-INFINITY, 3, "-inf"},
        {NAN, 3, "nan"},
    };
    for (size_t i = 0; i < NUM_COUNT(cases); i++)
        assert_string_equal(num_text(cases[i].x, cases[i].digits), cases[i].text);
    const char *first = num_text(1, 1), *last = NULL;
    for (int i = 2; i <= 8; i++)
        last = num_text(i, 1);
    assert_string_equal(first, "1");
    assert_string_equal(last, "8");
}

static void arithmetic_is_checked(void **state) {
    (void)state;
    uint64_t x;
    assert_true(num_add_u64(1, 2, &x) && x == 3);
    assert_false(num_add_u64(UINT64_MAX, 1, &x));
    assert_true(num_mul_u64(1ull << 32, 1ull << 31, &x) && x == 1ull << 63);
    assert_false(num_mul_u64(1ull << 32, 1ull << 32, &x));
    assert_int_equal(num_div_up(7, 3), 3);
    assert_int_equal(num_round_up(576, 64), 576);
    assert_int_equal(num_round_up(577, 64), 640);
}

static void arena_gives_zeroed_aligned_memory(void **state) {
    (void)state;
    arena a;
    arena_init(&a);
    size_t total = 0;
    for (size_t n = 0; n < 300; n++) {
        size_t size = n % 50 == 49 ? 3 << 20 : n * 37 % 5000;
        unsigned char *p = arena_alloc(&a, size);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < size; i += 61)
            assert_int_equal(p[i], 0);
        memset(p, 0xaa, size);
        total += size;
    }
    assert_true(a.bytes >= total && a.bytes < total + total / 4 + (2 << 20));
    assert_string_equal(arena_strndup(&a, "hello", 4), "hell");
    assert_string_equal(arena_strndup(&a, NULL, 0), "");
    assert_null(arena_array(&a, SIZE_MAX / 2, 3));
    assert_null(arena_alloc(&a, SIZE_MAX));
    fault_arm(FAULT_ALLOC, 1);
    assert_null(arena_alloc(&a, 5 << 20));
    fault_arm(FAULT_ALLOC, 0);
    arena_deinit(&a);
    assert_int_equal(a.bytes, 0);
}

static void heap_checks_sizes_and_faults(void **state) {
    (void)state;
    assert_null(mem_array(SIZE_MAX / 4, 8));
    assert_null(mem_calloc(SIZE_MAX / 4, 8));
    void *p = mem_alloc(0);
    assert_non_null(p);
    mem_free(p);
    p = mem_alloc_aligned(4096, 100);
    assert_int_equal((uintptr_t)p % 4096, 0);
    mem_free(p);
    fault_arm(FAULT_ALLOC, 2);
    p = mem_alloc(1);
    assert_non_null(p);
    assert_null(mem_alloc(1));
    char *s = mem_strdup("the third one works again");
    assert_non_null(s);
    assert_int_equal(fault_count(FAULT_ALLOC), 3);
    fault_arm(FAULT_ALLOC, 0);
    mem_free(s);
    mem_free(p);

    int *array = NULL;
    size_t cap = 0, grown = 0;
    for (size_t n = 1; n <= 1000; n++) {
        size_t before = cap;
        assert_int_equal(mem_grow((void **)&array, &cap, n, sizeof *array), 0);
        grown += cap != before;
        array[n - 1] = (int)n;
    }
    assert_true(grown < 12 && array[0] == 1 && array[999] == 1000);
    size_t kept = cap;
    assert_int_not_equal(mem_grow((void **)&array, &cap, SIZE_MAX / 2, sizeof *array), 0);
    assert_int_equal(cap, kept);
    mem_free(array);
}

static void regions_are_zeroed_and_page_aligned(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 4097, 1 << 20, (16 << 20) + 12345};
    for (size_t i = 0; i < NUM_COUNT(sizes); i++) {
        unsigned char *p = mem_map(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 4096, 0);
        for (size_t at = 0; at < sizes[i]; at += 4096) {
            assert_int_equal(p[at], 0);
            p[at] = 1;
        }
        mem_unmap(p, sizes[i]);
    }
    mem_unmap(NULL, 5);
    assert_null(mem_map(SIZE_MAX));
    fault_arm(FAULT_ALLOC, 1);
    assert_null(mem_map(4096));
    fault_arm(FAULT_ALLOC, 0);
}

/* Blocks, regions and announced bytes count against a bound, and no longer when they are freed. Nested bounds
 * both hold. */
static void a_bound_refuses_before_it_is_passed(void **state) {
    (void)state;
    mem_bound outer, inner;
    mem_bound_set(&outer, 1 << 20);
    char *a = mem_alloc(600 << 10);
    assert_non_null(a);
    assert_null(mem_alloc(600 << 10));
    assert_true(outer.refused);
    mem_free(a);
    a = mem_map(600 << 10);
    assert_non_null(a);
    assert_null(mem_calloc(600, 1024));
    assert_null(mem_map_sparse(600 << 10));
    assert_false(mem_bound_take(600 << 10));
    assert_true(mem_bound_take(100 << 10));
    mem_bound_set(&inner, UINT64_MAX); /* only counts */
    char *b = mem_alloc(200 << 10);
    assert_non_null(b);
    assert_null(mem_realloc(b, 400 << 10)); /* both blocks, for a moment */
    assert_false(inner.refused);
    assert_true(inner.now >= 200 << 10 && inner.now < 210 << 10 && inner.peak == inner.now);
    mem_bound_end(&inner);
    mem_free(b);
    mem_unmap(a, 600 << 10);
    assert_true(outer.now >= 100 << 10 && outer.now < 104 << 10 && outer.peak < 1 << 20);
    mem_bound_end(&outer);
    a = mem_alloc(2 << 20);
    assert_non_null(a);
    mem_free(a);
}

/* Whether a page has memory of this process now; -1: the system does not say. */
static int is_mapped(const void *page) {
    const size_t size = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t entry = 0;
    const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    const ssize_t n = pread(fd, &entry, sizeof entry, (off_t)((uintptr_t)page / size * sizeof entry));
    close(fd);
    return n == sizeof entry ? (int)(entry >> 63) : -1;
}

/* A file's pages are returned, and are the file's again when they are read; a page that was written to stays.
 */
static void unused_memory_is_returned(void **state) {
    (void)state;
    enum { N_PAGE = 600 }; /* more than are looked at together */
    const size_t size = (size_t)sysconf(_SC_PAGESIZE);
    memfile file = {0};
    uint8_t *data = malloc(N_PAGE * size);
    assert_non_null(data);
    for (size_t i = 0; i < N_PAGE * size; i++)
        data[i] = (uint8_t)(i / size + i);
    memfile_set(&file, data, N_PAGE * size);
    uint8_t *at = mmap(NULL, N_PAGE * size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.fd, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    const size_t written[] = {1, 255, 256, 257, N_PAGE - 1};
    for (size_t i = 0; i < NUM_COUNT(written); i++)
        at[written[i] * size] ^= 0x55;
    assert_int_equal(mprotect(at, N_PAGE * size, PROT_READ), 0);
    assert_int_equal(at[100 * size], data[100 * size]);
    if (is_mapped(at + 100 * size) < 0)
        skip();
    mem_return_unused(); /* a file of data */
    assert_int_equal(is_mapped(at + 100 * size), 1);
    if (mprotect(at, size, PROT_READ | PROT_EXEC)) /* the system may refuse it */
        skip();
    mem_return_unused();
    assert_int_equal(is_mapped(at + 100 * size), 0);
    for (size_t i = 0; i < NUM_COUNT(written); i++) {
        assert_int_equal(is_mapped(at + written[i] * size), 1);
        data[written[i] * size] ^= 0x55;
    }
    assert_memory_equal(at, data, N_PAGE * size);
    mem_keep_code();
    mem_return_unused();
    assert_int_equal(is_mapped(at + 100 * size), 1);
    munmap(at, N_PAGE * size);
    close(file.fd);
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statuses_have_texts_and_exit_codes),
        cmocka_unit_test(fail_fills_the_error),
        cmocka_unit_test(long_messages_are_cut_at_a_character),
        cmocka_unit_test(escapes_show_what_is_not_text),
        cmocka_unit_test(log_lines_are_single),
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(sizes_are_shown),
        cmocka_unit_test(numbers_are_written_out),
        cmocka_unit_test(arithmetic_is_checked),
        cmocka_unit_test(arena_gives_zeroed_aligned_memory),
        cmocka_unit_test(heap_checks_sizes_and_faults),
        cmocka_unit_test(regions_are_zeroed_and_page_aligned),
        cmocka_unit_test(a_bound_refuses_before_it_is_passed),
        cmocka_unit_test(unused_memory_is_returned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
