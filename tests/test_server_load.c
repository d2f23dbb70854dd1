/* Models that are loaded while others answer: the loading thread waits here until the others have answered.
 * cli_serve.sh tests this over HTTP. */
#include "base/status.h"
#include "server/server.h"
#include "server/web.h"
#include "support/engine.h"
#include "support/skip.h"
#include "support/tinymodel.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static const tiny_shape shape = {TYPE_Q8_0, 2, 64, 128, 4, 2, 301, 256, true};
enum { MODELS = 2, WAIT_S = 60 };

/* What `open` is to do for model "b", in turn. */
typedef struct script {
    nib_status first; /* of the first call; not NIB_OK: there is a second one */
    int n_open;
    bool was_alone; /* in the last call */
    sem_t opening, go;
} script;

typedef struct setup {
    script script;
    server *s;
    pthread_t thread;
    atomic_bool ending;
    const char *path;
} setup;

static nib_engine *open_tiny(const char *path) {
    nib_engine_options o = engine_usual();
    o.n_thread = 1;
    o.n_ctx = 256;
    o.n_session = 2;
    return engine_must_open(path, &o, NULL);
}

static void wait_sem(sem_t *s, const char *what) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    if (sem_timedwait(s, &until))
        fail_msg("%s: not within %d s", what, WAIT_S);
}

static nib_status open_later(void *user, size_t index, const server_reserved *reserved, nib_engine **out,
                             nib_error *err) {
    setup *b = user;
    script *s = &b->script;
    const int turn = s->n_open++;
    s->was_alone = reserved->alone;
    sem_post(&s->opening);
    wait_sem(&s->go, "a load is let go");
    if (turn == 0 && s->first != NIB_OK)
        return nib_fail(err, s->first, "model %zu: it is said to fail", index);
    *out = open_tiny(b->path);
    return NIB_OK;
}

/* ---- a server ---- */

static void wait_fd(void *user, int fd, int max_ms) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    (void)user;
    poll(&one, 1, max_ms < 20 ? max_ms : 20);
}

static bool is_ending(void *user) {
    setup *b = user;
    return atomic_load(&b->ending);
}

static void *serve(void *user) {
    setup *b = user;
    const server_host host = {wait_fd, is_ending, b};
    server_run(b->s, &host);
    return NULL;
}

static void begin(setup *b, nib_status first) {
    static const server_model models[MODELS] = {{.name = "a", .arch = "llama"},
                                                {.name = "b", .arch = "llama"}};
    nib_error err = {0};
    if (web_load(&err))
        skip_because("no libmicrohttpd");
    *b = (setup){.script.first = first, .path = tiny_model_with_words("load.gguf", &shape)};
    sem_init(&b->script.opening, 0, 0);
    sem_init(&b->script.go, 0, 0);
    const server_options o = {.models = models, .n_model = MODELS, .open = open_later, .opener = b};
    if (server_open(&o, &b->s, &err) || server_begin(b->s, open_tiny(b->path), 2, &err))
        fail_msg("%s", err.message);
    assert_int_equal(pthread_create(&b->thread, NULL, serve, b), 0);
}

static void end(setup *b) {
    atomic_store(&b->ending, true);
    pthread_join(b->thread, NULL);
    server_close(b->s);
    sem_destroy(&b->script.opening);
    sem_destroy(&b->script.go);
}

/* ---- its clients ---- */

static int ask(const setup *b, const char *name) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)server_port(b->s))};
    const struct timeval wait = {.tv_sec = WAIT_S};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    char body[160], text[512];
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    snprintf(body, sizeof body,
             "{\"model\":\"%s\",\"prompt\":[5,6,7],\"max_tokens\":8,\"temperature\":0,\"ignore_eos\":true}",
             name);
    const int n = snprintf(text, sizeof text,
                           "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                           "Content-Length: %zu\r\n\r\n%s",
                           strlen(body), body);
    assert_int_equal(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
    return fd;
}

/* Its status; closes the connection. */
static int status_of(int fd) {
    char text[4096];
    size_t n = 0;
    ssize_t got;
    int status = 0;
    while (n + 1 < sizeof text && (got = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0)
        n += (size_t)got;
    text[n] = '\0';
    close(fd);
    if (sscanf(text, "HTTP/1.1 %d", &status) != 1)
        fail_msg("no answer: '%s'", text);
    return status;
}

/* ---- the tests ---- */

static void test_others_answer_while_one_is_loaded(void **state) {
    setup b;
    (void)state;
    begin(&b, NIB_OK);
    const int wanted = ask(&b, "b"), too = ask(&b, "b");
    wait_sem(&b.script.opening, "b is being loaded");
    for (int i = 0; i < 3; i++)
        assert_int_equal(status_of(ask(&b, "a")), 200);
    sem_post(&b.script.go);
    assert_int_equal(status_of(wanted), 200);
    assert_int_equal(status_of(too), 200);
    assert_int_equal(b.script.n_open, 1);
    assert_int_equal(status_of(ask(&b, "a")), 200);
    end(&b);
}

static void test_who_is_idle_goes_for_it(void **state) {
    setup b;
    (void)state;
    begin(&b, NIB_E_NOFIT);
    const int wanted = ask(&b, "b");
    wait_sem(&b.script.opening, "b is being loaded");
    assert_false(b.script.was_alone);
    sem_post(&b.script.go);
    wait_sem(&b.script.opening, "b is loaded again");
    assert_true(b.script.was_alone);
    sem_post(&b.script.go);
    assert_int_equal(status_of(wanted), 200);
    assert_int_equal(b.script.n_open, 2);
    end(&b);
}

static void test_one_that_fails_says_so(void **state) {
    setup b;
    (void)state;
    begin(&b, NIB_E_MODEL);
    const int wanted = ask(&b, "b");
    sem_post(&b.script.go);
    assert_int_equal(status_of(wanted), 500);
    assert_int_equal(status_of(ask(&b, "a")), 200);
    end(&b);
}

/* Closing waits for the load, and its request is refused. */
static void test_the_end_comes_while_one_is_loaded(void **state) {
    setup b;
    (void)state;
    begin(&b, NIB_E_CANCELLED);
    const int wanted = ask(&b, "b");
    wait_sem(&b.script.opening, "b is being loaded");
    atomic_store(&b.ending, true);
    sem_post(&b.script.go);
    assert_int_equal(status_of(wanted), 503);
    end(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_others_answer_while_one_is_loaded),
                                       cmocka_unit_test(test_who_is_idle_goes_for_it),
                                       cmocka_unit_test(test_one_that_fails_says_so),
                                       cmocka_unit_test(test_the_end_comes_while_one_is_loaded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
