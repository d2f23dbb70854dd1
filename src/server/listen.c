/* listen.c - see listen.h. */
#include "server/listen.h"

#include "base/status.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 512 };

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static int try_address(const struct addrinfo *a) {
    const int one = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* connections inherit it */
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static int port_of(int fd) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at;
    socklen_t n = sizeof at;
    memset(&at, 0, sizeof at);
    if (getsockname(fd, &at.any, &n))
        return 0;
    return ntohs(at.any.sa_family == AF_INET6 ? at.v6.sin6_port : at.v4.sin_port);
}

static nib_status open_internet(const char *host, int port, listener *out, nib_error *err) {
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[16];
    const char *bare = host[0] == '[' ? host + 1 : host;
    snprintf(out->host, sizeof out->host, "%.*s", (int)strcspn(bare, "]"), bare);
    snprintf(service, sizeof service, "%d", port);
    const int why = getaddrinfo(out->host, service, &want, &found);
    if (why)
        return nib_fail(err, NIB_E_USAGE, "--host %s: %s", host, gai_strerror(why));
    for (const struct addrinfo *a = found; a && out->fd < 0; a = a->ai_next) {
        out->fd = try_address(a);
        out->loopback = is_loopback(a->ai_addr);
    }
    const int code = errno;
    freeaddrinfo(found);
    if (out->fd < 0)
        return nib_fail(err, NIB_E_USAGE, "cannot listen at %s, port %d: %s%s", host, port, strerror(code),
                        code == EADDRINUSE ? " (--port N takes another one, --port 0 any that is free)" : "");
    out->port = port_of(out->fd);
    if (strchr(out->host, ':'))
        snprintf(out->address, sizeof out->address, "http://[%s]:%d", out->host, out->port);
    else
        snprintf(out->address, sizeof out->address, "http://%s:%d", out->host, out->port);
    return NIB_OK;
}

/* Whether the path is a socket without a listener. A listener whose queue is full would make a blocking
 * connect wait for it. */
static bool is_left_behind(const struct sockaddr_un *at) {
    struct stat info;
    if (lstat(at->sun_path, &info) || !S_ISSOCK(info.st_mode))
        return false;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool answered = fd < 0 || connect(fd, (const struct sockaddr *)at, sizeof *at) == 0;
    const bool refused = !answered && errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return refused;
}

static nib_status open_unix(const char *path, listener *out, nib_error *err) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path)
        return nib_fail(err, NIB_E_USAGE, "--host %s: expected a socket path of at most %zu bytes", path,
                        sizeof at.sun_path - 1);
    memcpy(at.sun_path, path, strlen(path));
    if (is_left_behind(&at))
        unlink(path);
    out->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* only for the owner, because everyone who can connect can send requests */
    if (out->fd < 0 || fchmod(out->fd, 0600) || bind(out->fd, (struct sockaddr *)&at, sizeof at))
        return nib_fail(err, NIB_E_USAGE, "cannot listen at %s: %s", path, strerror(errno));
    out->path = path;
    out->loopback = true;
    snprintf(out->address, sizeof out->address, "unix:%s", path);
    if (listen(out->fd, BACKLOG))
        return nib_fail(err, NIB_E_USAGE, "cannot listen at %s: %s", path, strerror(errno));
    return NIB_OK;
}

nib_status listen_open(const char *host, int port, listener *out, nib_error *err) {
    *out = (listener){.fd = -1};
    const nib_status status =
        strchr(host, '/') ? open_unix(host, out, err) : open_internet(host, port, out, err);
    if (status != NIB_OK)
        listen_close(out);
    return status;
}

void listen_close(listener *l) {
    if (l->fd >= 0)
        close(l->fd);
    if (l->path)
        unlink(l->path);
    l->fd = -1;
    l->path = NULL;
}
