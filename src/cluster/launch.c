/* launch.c - see launch.h. */
#include "cluster/launch.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "cluster/connect.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_WORD = 32, TEXT = 2 * CONNECT_SECRET + 2 /* a secret with its line's end */ };

/* ---- the first rank ---- */

typedef struct launcher {
    processes *p;
    const processes_how *how;
    connect_secret secret;
    connect_address own; /* of rank 0 */
    connect_listener *listener;
    connect_address next[CLUSTER_MAX_RANK]; /* where rank i listens */
} launcher;

static nib_status check_start(void *user, nib_error *err) {
    const launcher *l = user;
    NIB_TRY(cancel_check(l->how->cancel, err));
    return processes_check(l->p, err);
}

/* Its own address is where all others call. */
static nib_status listen_here(launcher *l, nib_error *err) {
    const cluster_places *places = l->how->places;
    const char *name = places->place[0].name;
    bool loopback, alone = true;
    NIB_TRY(connect_find(name, &l->own, &loopback, err));
    for (int i = 0; i < places->n; i++)
        alone = alone && places->place[i].host == 0;
    if (loopback && !alone)
        return nib_fail(
            err, NIB_E_USAGE,
            "the first line of the hosts must name this machine as the others reach it; found '%s', "
            "which is %s, every machine's own address",
            name, l->own.host);
    return connect_listen(&l->own, &l->secret, &l->listener, err);
}

/* Puts the secret into a new pipe, which holds it without a reader. */
static nib_status open_stdin(const connect_secret *secret, int *out, nib_error *err) {
    char text[TEXT];
    int ends[2];
    connect_secret_print(secret, text);
    text[TEXT - 2] = '\n';
    if (pipe2(ends, O_CLOEXEC))
        return nib_fail_errno(err, "cannot start ranks", "a pipe", errno);
    const bool written = write(ends[1], text, TEXT - 1) == TEXT - 1;
    explicit_bzero(text, sizeof text);
    close(ends[1]);
    *out = ends[0];
    if (written)
        return NIB_OK;
    close(ends[0]);
    return nib_fail_errno(err, "cannot start ranks", "a pipe", errno);
}

/* Cuts the launcher's words in place into argv, which has room for `max` of them. */
static nib_status cut_words(char *words, char **argv, size_t max, size_t *n, nib_error *err) {
    char *rest = NULL;
    for (char *word = strtok_r(words, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
        if (*n == max)
            return nib_fail(err, NIB_E_USAGE, "launcher: expected at most %zu words, found more", max);
        argv[(*n)++] = word;
    }
    return *n ? NIB_OK : nib_fail(err, NIB_E_USAGE, "launcher: expected a command, found none");
}

static nib_status start_one(launcher *l, int rank, nib_error *err) {
    const cluster_place *at = &l->how->places->place[rank];
    char address[CONNECT_ADDRESS + 64];
    char *argv[MAX_WORD + 5], *words = mem_strdup(l->how->launcher);
    size_t n = 0;
    int in = -1;
    snprintf(address, sizeof address, LAUNCH_PREFIX "%d,%d,%s", l->own.port, rank, l->own.host);
    nib_status status = words ? NIB_OK : nib_fail_nomem(err, strlen(l->how->launcher), "a launcher");
    if (status == NIB_OK && at->host > 0) {
        status = cut_words(words, argv, MAX_WORD, &n, err);
        argv[n++] = (char *)(uintptr_t)at->name;
    }
    argv[n++] = (char *)(uintptr_t)(at->host == 0    ? l->how->program
                                    : at->program[0] ? at->program
                                                     : "nibble");
    argv[n++] = (char *)(uintptr_t) "--rank";
    argv[n++] = address;
    argv[n] = NULL;
    if (status == NIB_OK)
        status = open_stdin(&l->secret, &in, err);
    if (status == NIB_OK) {
        status = processes_spawn(l->p, argv, NULL, 0, in, true, err);
        close(in);
    }
    mem_free(words);
    return status;
}

/* Puts the first rank that has not called before the error. */
static nib_status name_missing(const launcher *l, const int *controls, nib_status status, nib_error *err) {
    char name[CLUSTER_HOST + 32];
    int rank = 1;
    while (controls[rank - 1] >= 0)
        rank++;
    snprintf(name, sizeof name, "rank %d on %s", rank, l->how->places->place[rank].name);
    return nib_fail_prefix(err, status, name);
}

/* Takes the call of each rank, in any order. */
static nib_status take_calls(launcher *l, int *controls, nib_error *err) {
    const int n = l->how->places->n;
    for (int left = n - 1; left > 0; left--) {
        connect_address from;
        connect_who who;
        int fd;
        const double until = time_now() + CONNECT_S;
        const nib_status status =
            connect_accept(l->listener, CONNECT_S, check_start, l, &who, &from, &fd, err);
        if (status != NIB_OK)
            return time_now() < until ? status : name_missing(l, controls, status, err);
        if (who.kind != CONNECT_CONTROL || who.rank < 1 || who.rank >= n || controls[who.rank - 1] >= 0) {
            close(fd);
            return nib_fail(err, NIB_E_FAILED, "expected a call of each rank, found another one of rank %d",
                            who.rank);
        }
        controls[who.rank - 1] = fd;
        l->next[who.rank] = from;
    }
    l->next[0] = l->own;
    return NIB_OK;
}

static nib_status close_ring(launcher *l, const int *controls, rank_link *first, nib_error *err) {
    const int n = l->how->places->n;
    const connect_who own = {CONNECT_RING, 0, 0};
    connect_who who;
    for (int i = 1; i < n; i++)
        if (send(controls[i - 1], &l->next[(i + 1) % n], sizeof *l->next, MSG_NOSIGNAL) !=
            (ssize_t)sizeof *l->next)
            return nib_fail(err, NIB_E_FAILED, "rank %d has ended before it was connected", i);
    NIB_TRY(connect_dial(&l->next[1], &first->out, NULL, err));
    NIB_TRY(connect_prove(first->out, &l->secret, &own, err));
    NIB_TRY(connect_accept(l->listener, CONNECT_S, check_start, l, &who, NULL, &first->in, err));
    return who.kind == CONNECT_RING && who.rank == n - 1
               ? NIB_OK
               : nib_fail(err, NIB_E_FAILED, "expected the last rank in the ring, found rank %d", who.rank);
}

nib_status launch_ranks(processes *p, const processes_how *how, rank_link *first, int *controls,
                        nib_error *err) {
    launcher *l = mem_calloc(1, sizeof *l);
    if (!l)
        return nib_fail_nomem(err, sizeof *l, "the hosts of ranks");
    l->p = p;
    l->how = how;
    rank_link ring = {-1, -1, -1};
    nib_status status = connect_secret_make(&l->secret, err);
    if (status == NIB_OK)
        status = listen_here(l, err);
    for (int i = 1; i < how->places->n && status == NIB_OK; i++)
        status = start_one(l, i, err);
    if (status == NIB_OK)
        status = take_calls(l, controls, err);
    if (status == NIB_OK)
        status = close_ring(l, controls, &ring, err);
    connect_unlisten(l->listener);
    explicit_bzero(&l->secret, sizeof l->secret);
    mem_free(l);
    if (status == NIB_OK)
        *first = ring;
    else
        link_close(&ring);
    return status;
}

/* ---- another rank ---- */

static nib_status read_secret(connect_secret *out, nib_error *err) {
    char text[TEXT] = "";
    size_t at = 0;
    for (ssize_t n; at < TEXT - 1 && (n = read(STDIN_FILENO, text + at, TEXT - 1 - at)) > 0;)
        at += (size_t)n;
    const bool whole = at == TEXT - 1 && text[at - 1] == '\n';
    text[whole ? at - 1 : 0] = '\0';
    const bool good = connect_secret_parse(text, out);
    explicit_bzero(text, sizeof text);
    return good ? NIB_OK
                : nib_fail(err, NIB_E_USAGE, "a rank: expected a secret of %d digits on stdin, found none",
                           2 * CONNECT_SECRET);
}

/* Whether rank 0 is still there. */
static nib_status check_first(void *user, nib_error *err) {
    const rank_link *l = user;
    char byte;
    return recv(l->control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0
               ? nib_fail(err, NIB_E_IO, "the first rank has ended")
               : NIB_OK;
}

/* Calls rank 0, and listens at the address that reaches it. */
static nib_status call_first(const connect_address *to, int rank, const connect_secret *secret,
                             rank_link *out, connect_listener **listener, nib_error *err) {
    connect_address own;
    NIB_TRY(connect_dial(to, &out->control, &own, err));
    NIB_TRY(connect_listen(&own, secret, listener, err));
    const connect_who who = {CONNECT_CONTROL, rank, own.port};
    return connect_prove(out->control, secret, &who, err);
}

/* Waits for the address of the next rank, the call of the rank before, and calls the next one. */
static nib_status join_ring(int rank, const connect_secret *secret, connect_listener *listener,
                            rank_link *out, nib_error *err) {
    connect_address next;
    connect_who before;
    const connect_who who = {CONNECT_RING, rank, 0};
    if (recv(out->control, &next, sizeof next, MSG_WAITALL) != (ssize_t)sizeof next)
        return nib_fail(err, NIB_E_IO, "the first rank has ended");
    next.host[sizeof next.host - 1] = '\0';
    NIB_TRY(connect_accept(listener, CONNECT_S, check_first, out, &before, NULL, &out->in, err));
    if (before.kind != CONNECT_RING || before.rank != rank - 1)
        return nib_fail(err, NIB_E_FAILED, "expected the call of rank %d, found rank %d", rank - 1,
                        before.rank);
    NIB_TRY(connect_dial(&next, &out->out, NULL, err));
    return connect_prove(out->out, secret, &who, err);
}

nib_status launch_join(const char *text, rank_link *out, nib_error *err) {
    connect_address first = {"", 0};
    connect_listener *listener = NULL;
    connect_secret secret;
    int rank = 0, end = 0;
    *out = (rank_link){-1, -1, -1};
    if (sscanf(text, LAUNCH_PREFIX "%d,%d,%n", &first.port, &rank, &end) != 2 || end == 0 || rank < 1 ||
        strlen(text + end) >= sizeof first.host)
        return nib_fail(err, NIB_E_USAGE,
                        "a rank: expected " LAUNCH_PREFIX "PORT,RANK,ADDRESS, found '%.64s'", text);
    memcpy(first.host, text + end, strlen(text + end) + 1);
    NIB_TRY(read_secret(&secret, err));
    nib_status status = call_first(&first, rank, &secret, out, &listener, err);
    if (status == NIB_OK)
        status = join_ring(rank, &secret, listener, out, err);
    connect_unlisten(listener);
    explicit_bzero(&secret, sizeof secret);
    return status;
}
