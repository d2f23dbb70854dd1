/* test_cluster_hosts.c - files of hosts, and the proofs of callers. */
#include "cluster/connect.h"
#include "cluster/places.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static cluster_places places;

static void test_a_file_of_hosts(void **state) {
    (void)state;
    nib_error err;
    const char *text = "# ranks\n10.0.0.1 cpu,cpu:1G ram=2G\n\n"
                       "user@gpu2 model=/m.gguf\tprogram=/opt/nibble disk=3G # one\n";
    assert_int_equal(cluster_hosts_parse(text, &places, &err), NIB_OK);
    assert_int_equal(places.n, 3);
    assert_true(places.over_network);
    const cluster_place *p = places.place;
    assert_true(p[0].ram == UINT64_C(2) << 30 && p[1].ram == UINT64_C(1) << 30 && p[2].ram == NIB_AUTO);
    assert_true(p[0].n_beside == 2 && p[1].host == 0 && p[2].host == 1 && p[2].n_beside == 1);
    assert_string_equal(p[2].name, "user@gpu2");
    assert_string_equal(p[2].model, "/m.gguf");
    assert_string_equal(p[2].program, "/opt/nibble");
    assert_string_equal(p[2].backend, "cpu");
    assert_true(p[2].disk == UINT64_C(3) << 30);
}

static void test_lines_that_are_wrong(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "expected a line for each host"},
        {"# nothing\n", "expected a line for each host"},
        {"a\nb turbo=1", "line 2: expected ram="},
        {"a cpu cpu", "line 1: expected ram="},
        {"a ram=much", "line 1: expected a cap"},
        {"a cpu:0", "line 1: expected a cap"},
        {"a cpu\nb check", "line 2: expected GPUs alone or processors alone"},
        {"a model=/m", "line 1: the first line is this machine"},
        {"a\nb program=/x;rm", "without characters that shells read"},
        {"a\n-oProxyCommand=x", "line 2: expected a host's name"},
        {"a;b", "line 1: expected a host's name"},
        {"a\nb model=", "line 2: expected a path"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nib_error err = {NIB_OK, ""};
        assert_int_equal(cluster_hosts_parse(cases[i][0], &places, &err), NIB_E_USAGE);
        if (!strstr(err.message, cases[i][1]))
            fail_msg("expected '%s', found '%s'", cases[i][1], err.message);
    }
}

typedef struct caller {
    connect_address to;
    connect_secret secret;
    connect_who who;
    nib_status status;
    pthread_t thread;
} caller;

static void *call(void *user) {
    caller *c = user;
    nib_error err;
    int fd = -1;
    c->status = connect_dial(&c->to, &fd, NULL, &err);
    if (c->status == NIB_OK)
        c->status = connect_prove(fd, &c->secret, &c->who, &err);
    if (fd >= 0)
        close(fd);
    return NULL;
}

static nib_status go_on(void *user, nib_error *err) {
    (void)user;
    (void)err;
    return NIB_OK;
}

static void test_only_the_secret_lets_in(void **state) {
    (void)state;
    enum { SILENT = 40 };
    nib_error err;
    connect_listener *l;
    caller bad = {.who = {CONNECT_RING, 7, 0}}, good = {.who = {CONNECT_CONTROL, 3, 1234}};
    connect_address from;
    connect_who who;
    bool loopback;
    int silent[SILENT], fd;
    assert_int_equal(connect_find("127.0.0.1", &good.to, &loopback, &err), NIB_OK);
    assert_true(loopback);
    assert_int_equal(connect_secret_make(&good.secret, &err), NIB_OK);
    assert_int_equal(connect_listen(&good.to, &good.secret, &l, &err), NIB_OK);
    bad.to = good.to;
    for (int i = 0; i < SILENT; i++)
        assert_int_equal(connect_dial(&good.to, &silent[i], NULL, &err), NIB_OK);
    assert_int_equal(send(silent[0], "GET /", 5, MSG_NOSIGNAL), 5);
    assert_int_equal(pthread_create(&bad.thread, NULL, call, &bad), 0);
    assert_int_equal(connect_accept(l, 0.5, go_on, NULL, &who, NULL, &fd, &err), NIB_E_FAILED);
    pthread_join(bad.thread, NULL);
    assert_int_equal(bad.status, NIB_E_FAILED);
    assert_int_equal(pthread_create(&good.thread, NULL, call, &good), 0);
    assert_int_equal(connect_accept(l, 10, go_on, NULL, &who, &from, &fd, &err), NIB_OK);
    pthread_join(good.thread, NULL);
    assert_int_equal(good.status, NIB_OK);
    assert_true(who.kind == CONNECT_CONTROL && who.rank == 3 && who.port == 1234 && from.port == 1234);
    assert_string_equal(from.host, "127.0.0.1");
    close(fd);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    connect_unlisten(l);
}

static void test_a_secret_as_text(void **state) {
    (void)state;
    connect_secret a, b;
    nib_error err;
    char text[2 * CONNECT_SECRET + 1];
    assert_int_equal(connect_secret_make(&a, &err), NIB_OK);
    connect_secret_print(&a, text);
    assert_int_equal(strlen(text), 2 * CONNECT_SECRET);
    assert_true(connect_secret_parse(text, &b));
    assert_memory_equal(&a, &b, sizeof a);
    text[5] = 'x';
    assert_false(connect_secret_parse(text, &b));
    text[5] = '\0';
    assert_false(connect_secret_parse(text, &b));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_of_hosts), cmocka_unit_test(test_lines_that_are_wrong),
        cmocka_unit_test(test_only_the_secret_lets_in), cmocka_unit_test(test_a_secret_as_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
