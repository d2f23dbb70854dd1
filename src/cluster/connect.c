/* connect.c - see connect.h. */
#include "cluster/connect.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "cluster/link.h"
#include "cluster/message.h"
#include "cluster/setup.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    NONCE = 32,
    BUILD = 64,
    MAX_WAITING = 2 * CLUSTER_MAX_RANK, /* callers that have not proved themselves: more than all ranks, which
                                           never replace each other; a new one replaces the oldest */
    PROOF_S = 10,                       /* for a proof, on a slow network */
    POLL_MS = 100,
    IDLE_S = 30,           /* without data, until the system asks whether the peer is there */
    UNREACHABLE_MS = 10000 /* bytes of a rank's sign of life that nobody acknowledges */
};

static const char magic[8] = "nibrank";

typedef struct greeting {
    char magic[8], build[BUILD];
    uint8_t nonce[NONCE];
} greeting;

typedef struct proof {
    char magic[8], build[BUILD];
    uint8_t nonce[NONCE];
    connect_who who;
    int32_t zero;
    uint8_t mac[SHA256_DIGEST_SIZE]; /* of the greeting and all above */
} proof;

typedef struct answer {
    uint8_t mac[SHA256_DIGEST_SIZE]; /* of the greeting and the whole proof */
} answer;

/* A caller that has not proved itself yet. */
typedef struct waiting {
    int fd;
    double until;
    greeting said;
    proof got;
    size_t n_got; /* bytes of it */
    connect_address from;
} waiting;

struct connect_listener {
    int fd;
    connect_secret secret;
    waiting callers[MAX_WAITING]; /* [n], the oldest first */
    int n;
};

/* Structs go around as they are (message.h), so a build is its version and their sizes. */
static void name_build(char out[BUILD]) {
    memset(out, 0, BUILD);
    snprintf(out, BUILD, "nibble %s, messages %llx.%zx.%zx.%zx", nib_version(),
             (unsigned long long)(MESSAGE_MAGIC >> 40), sizeof(message_header), sizeof(nib_engine_options),
             sizeof(cluster_rank));
}

static nib_status fill_random(uint8_t *out, size_t n, nib_error *err) {
    for (size_t at = 0; at < n;) {
        const ssize_t got = getrandom(out + at, n - at, 0);
        if (got < 0 && errno != EINTR)
            return nib_fail(err, NIB_E_FAILED, "the system gives no random numbers: %s", strerror(errno));
        at += got > 0 ? (size_t)got : 0;
    }
    return NIB_OK;
}

nib_status connect_secret_make(connect_secret *out, nib_error *err) {
    return fill_random(out->bytes, sizeof out->bytes, err);
}

void connect_secret_print(const connect_secret *s, char out[2 * CONNECT_SECRET + 1]) {
    for (int i = 0; i < CONNECT_SECRET; i++)
        snprintf(out + (ptrdiff_t)2 * i, 3, "%02x", s->bytes[i]);
}

bool connect_secret_parse(const char *text, connect_secret *out) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 2 * CONNECT_SECRET; i++) {
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit)
            return false;
        out->bytes[i / 2] = (uint8_t)(out->bytes[i / 2] << 4 | (digit - digits));
    }
    return text[2 * CONNECT_SECRET] == '\0';
}

/* The MAC of a greeting and of the first n bytes of a proof. */
static void sign(const connect_secret *secret, const greeting *g, const proof *p, size_t n,
                 uint8_t out[SHA256_DIGEST_SIZE]) {
    struct hmac_sha256_ctx hmac;
    hmac_sha256_set_key(&hmac, sizeof secret->bytes, secret->bytes);
    hmac_sha256_update(&hmac, sizeof *g, (const uint8_t *)g);
    hmac_sha256_update(&hmac, n, (const uint8_t *)p);
    hmac_sha256_digest(&hmac, SHA256_DIGEST_SIZE, out);
}

/* ---- addresses ---- */

static nib_status look_up(const char *host, int port, int flags, struct addrinfo **out, nib_error *err) {
    char service[16];
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    snprintf(service, sizeof service, "%d", port);
    const int failed = getaddrinfo(host, service, &hints, out);
    return failed ? nib_fail(err, NIB_E_USAGE, "cannot find the host '%s': %s", host, gai_strerror(failed))
                  : NIB_OK;
}

static bool print_address(const struct sockaddr *of, socklen_t n, connect_address *out) {
    return getnameinfo(of, n, out->host, sizeof out->host, NULL, 0, NI_NUMERICHOST) == 0;
}

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

nib_status connect_find(const char *name, connect_address *out, bool *loopback, nib_error *err) {
    struct addrinfo *found;
    NIB_TRY(look_up(name, 0, 0, &found, err));
    out->port = 0;
    *loopback = is_loopback(found->ai_addr);
    const bool printed = print_address(found->ai_addr, found->ai_addrlen, out);
    freeaddrinfo(found);
    return printed ? NIB_OK
                   : nib_fail(err, NIB_E_USAGE, "the host '%s' has an address of no known kind", name);
}

/* Messages wait for nothing; a peer that is silent for long is asked for. */
static void set_options(int fd, bool control) {
    const int on = 1, idle = IDLE_S, unreachable = UNREACHABLE_MS;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    if (control)
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unreachable, sizeof unreachable);
}

/* ---- the one that is called ---- */

nib_status connect_listen(connect_address *at, const connect_secret *secret, connect_listener **out,
                          nib_error *err) {
    struct addrinfo *found;
    NIB_TRY(look_up(at->host, at->port, AI_NUMERICHOST | AI_PASSIVE, &found, err));
    connect_listener *l = mem_calloc(1, sizeof *l);
    if (!l) {
        freeaddrinfo(found);
        return nib_fail_nomem(err, sizeof *l, "connections of ranks");
    }
    struct sockaddr_storage own = {0};
    socklen_t n = sizeof own;
    l->secret = *secret;
    l->fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool bad = l->fd < 0 || bind(l->fd, found->ai_addr, found->ai_addrlen) ||
                     listen(l->fd, SOMAXCONN) || getsockname(l->fd, (struct sockaddr *)&own, &n);
    const int why = errno;
    freeaddrinfo(found);
    if (bad) {
        connect_unlisten(l);
        return nib_fail_errno(err, "cannot listen, as an address of this machine,", at->host, why);
    }
    struct sockaddr_in either; /* the port is at the same place in both kinds of addresses */
    memcpy(&either, &own, sizeof either);
    at->port = ntohs(either.sin_port);
    *out = l;
    return NIB_OK;
}

void connect_unlisten(connect_listener *l) {
    if (!l)
        return;
    for (int i = 0; i < l->n; i++)
        close(l->callers[i].fd);
    if (l->fd >= 0)
        close(l->fd);
    explicit_bzero(&l->secret, sizeof l->secret);
    mem_free(l);
}

static void forget(connect_listener *l, int i) {
    l->n--;
    memmove(&l->callers[i], &l->callers[i + 1], (size_t)(l->n - i) * sizeof *l->callers);
}

static void drop(connect_listener *l, int i) {
    close(l->callers[i].fd);
    forget(l, i);
}

/* Greets those that call; what is left waits for the next time. */
static nib_status greet(connect_listener *l, nib_error *err) {
    struct sockaddr_storage of = {0};
    socklen_t n = sizeof of;
    for (int i = 0; i < MAX_WAITING; i++) {
        const int fd = accept4(l->fd, (struct sockaddr *)&of, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            break;
        waiting w = {.fd = fd, .until = time_now() + PROOF_S};
        memcpy(w.said.magic, magic, sizeof magic);
        name_build(w.said.build);
        const nib_status status = fill_random(w.said.nonce, sizeof w.said.nonce, err);
        if (status != NIB_OK || !print_address((struct sockaddr *)&of, n, &w.from) ||
            send(fd, &w.said, sizeof w.said, MSG_NOSIGNAL) != (ssize_t)sizeof w.said) {
            close(fd);
            NIB_TRY(status);
            continue;
        }
        if (l->n == MAX_WAITING)
            drop(l, 0);
        l->callers[l->n++] = w;
    }
    return NIB_OK;
}

/* Reads what has come of a proof. False: it is none. */
static bool read_proof(const connect_listener *l, waiting *w) {
    uint8_t mac[SHA256_DIGEST_SIZE];
    const ssize_t n = recv(w->fd, (uint8_t *)&w->got + w->n_got, sizeof w->got - w->n_got, 0);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    w->n_got += (size_t)n;
    if (w->n_got < sizeof w->got)
        return true;
    sign(&l->secret, &w->said, &w->got, offsetof(proof, mac), mac);
    return memeql_sec(mac, w->got.mac, sizeof mac);
}

/* Answers a proof that is right, and leaves the connection to the caller. */
static nib_status welcome(connect_listener *l, int i, connect_who *who, connect_address *from, int *fd,
                          nib_error *err) {
    waiting w = l->callers[i];
    answer a;
    sign(&l->secret, &w.said, &w.got, sizeof w.got, a.mac);
    w.got.build[BUILD - 1] = '\0';
    if (memcmp(w.got.build, w.said.build, BUILD) != 0) {
        drop(l, i);
        return nib_fail(err, NIB_E_FAILED, "rank %d, of %s, is a build of '%s'; expected this one, '%s'",
                        w.got.who.rank, w.from.host, w.got.build, w.said.build);
    }
    forget(l, i);
    set_options(w.fd, w.got.who.kind == CONNECT_CONTROL);
    *who = w.got.who;
    if (from) {
        *from = w.from;
        from->port = who->port;
    }
    *fd = link_raise(w.fd);
    if (*fd < 0)
        return nib_fail_errno(err, "cannot connect ranks", "a connection", errno);
    const int flags = fcntl(*fd, F_GETFL);
    fcntl(*fd, F_SETFL, flags & ~O_NONBLOCK);
    if (send(*fd, &a, sizeof a, MSG_NOSIGNAL) == (ssize_t)sizeof a)
        return NIB_OK;
    nib_fail_errno(err, "cannot answer", w.from.host, errno);
    close(*fd);
    return NIB_E_IO;
}

nib_status connect_accept(connect_listener *l, double s, connect_check check, void *user, connect_who *who,
                          connect_address *from, int *fd, nib_error *err) {
    const double until = time_now() + s;
    while (time_now() < until) {
        struct pollfd all[MAX_WAITING + 1] = {{.fd = l->fd, .events = POLLIN}};
        const int n = l->n;
        for (int i = 0; i < n; i++)
            all[i + 1] = (struct pollfd){.fd = l->callers[i].fd, .events = POLLIN};
        poll(all, (nfds_t)n + 1, POLL_MS);
        NIB_TRY(check(user, err));
        for (int i = n - 1; i >= 0; i--) {
            waiting *w = &l->callers[i];
            if (all[i + 1].revents ? !read_proof(l, w) : time_now() > w->until)
                drop(l, i);
            else if (w->n_got == sizeof w->got)
                return welcome(l, i, who, from, fd, err);
        }
        if (all[0].revents)
            NIB_TRY(greet(l, err));
    }
    return nib_fail(err, NIB_E_FAILED, "nobody with the secret of this run has connected within %.0f seconds",
                    s);
}

/* ---- the one that calls ---- */

static bool is_connected(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int why = ETIMEDOUT;
    socklen_t n = sizeof why;
    if (poll(&p, 1, PROOF_S * 1000) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &n))
        return false;
    errno = why;
    return why == 0;
}

nib_status connect_dial(const connect_address *to, int *out, connect_address *own, nib_error *err) {
    struct addrinfo *found;
    struct sockaddr_storage here = {0};
    socklen_t n = sizeof here;
    int ok = 0;
    NIB_TRY(look_up(to->host, to->port, AI_NUMERICHOST, &found, err));
    const int fd = link_raise(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd >= 0) {
        fcntl(fd, F_SETFL, O_NONBLOCK);
        ok =
            connect(fd, found->ai_addr, found->ai_addrlen) == 0 || (errno == EINPROGRESS && is_connected(fd));
    }
    const int why = errno;
    freeaddrinfo(found);
    if (!ok) {
        if (fd >= 0)
            close(fd);
        return nib_fail_errno(err, "cannot connect to a rank at", to->host, why);
    }
    fcntl(fd, F_SETFL, 0);
    if (own &&
        (getsockname(fd, (struct sockaddr *)&here, &n) || !print_address((struct sockaddr *)&here, n, own))) {
        close(fd);
        return nib_fail_errno(err, "cannot find the address of this machine towards", to->host, errno);
    }
    if (own)
        own->port = 0;
    *out = fd;
    return NIB_OK;
}

/* Receives all of it, in at most PROOF_S seconds for each part. */
static bool receive_all(int fd, void *to, size_t n_byte) {
    const struct timeval limit = {.tv_sec = PROOF_S}, none = {0};
    size_t at = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (ssize_t n; at < n_byte; at += (size_t)n)
        if ((n = recv(fd, (uint8_t *)to + at, n_byte - at, 0)) <= 0)
            break;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    return at == n_byte;
}

nib_status connect_prove(int fd, const connect_secret *secret, const connect_who *who, nib_error *err) {
    greeting g;
    proof p = {.who = *who};
    answer got, want;
    set_options(fd, who->kind == CONNECT_CONTROL);
    if (!receive_all(fd, &g, sizeof g) || memcmp(g.magic, magic, sizeof magic) != 0)
        return nib_fail(err, NIB_E_FAILED, "expected the greeting of a rank, found none");
    memcpy(p.magic, magic, sizeof magic);
    name_build(p.build);
    NIB_TRY(fill_random(p.nonce, sizeof p.nonce, err));
    sign(secret, &g, &p, offsetof(proof, mac), p.mac);
    sign(secret, &g, &p, sizeof p, want.mac);
    g.build[BUILD - 1] = '\0';
    if (send(fd, &p, sizeof p, MSG_NOSIGNAL) != (ssize_t)sizeof p || !receive_all(fd, &got, sizeof got)) {
        const bool other = memcmp(g.build, p.build, BUILD) != 0;
        return nib_fail(
            err, NIB_E_FAILED,
            other ? "the rank that was called is a build of '%s', and refuses this one, '%s'"
                  : "the rank that was called has closed the connection: it has ended, or has another secret",
            g.build, p.build);
    }
    return memeql_sec(got.mac, want.mac, sizeof got.mac)
               ? NIB_OK
               : nib_fail(err, NIB_E_FAILED, "the rank that was called does not know the secret of this run");
}
