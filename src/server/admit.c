/* admit.c - whose requests are taken: keys, and the names by which a browser may reach the server. */
#include "server/admit.h"

#include "base/num.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- the client ---- */

/* Compares in a time that depends on the lengths only. */
static bool same_secret(const char *given, const char *secret) {
    const size_t n = strlen(given), n_secret = strlen(secret);
    unsigned differ = n != n_secret;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned)given[i] ^ (unsigned)secret[n_secret ? i % n_secret : 0];
    return differ == 0;
}

bool admit_key(exchange *x) {
    const char *bearer = exchange_header(x, "Authorization"), *plain = exchange_header(x, "x-api-key");
    unsigned found = 0;
    if (bearer && strncasecmp(bearer, "Bearer ", 7) != 0)
        bearer = NULL;
    for (size_t i = 0; i < x->s->options.n_key; i++) {
        const unsigned as_bearer = bearer && same_secret(bearer + 7, x->s->keys[i]);
        const unsigned as_plain = plain && same_secret(plain, x->s->keys[i]);
        found |= as_bearer | as_plain;
        x->client = as_bearer | as_plain ? i + 1 : x->client;
    }
    return found || x->s->options.n_key == 0;
}

uint64_t admit_machine(int fd) {
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } from = {0};
    socklen_t n = sizeof from;
    uint64_t id = 0;
    if (getpeername(fd, &from.any, &n))
        return 0;
    if (from.any.sa_family == AF_INET && ntohl(from.four.sin_addr.s_addr) >> 24 != IN_LOOPBACKNET)
        id = UINT64_C(1) << 32 | from.four.sin_addr.s_addr;
    if (from.any.sa_family == AF_INET6 && !IN6_IS_ADDR_LOOPBACK(&from.six.sin6_addr))
        memcpy(&id, &from.six.sin6_addr, sizeof id); /* only the network part, which belongs to one client */
    return id;
}

uint64_t admit_client(int fd) {
    const uint64_t machine = admit_machine(fd);
    return machine ? machine : (uint64_t)fd + 1;
}

/* ---- Host and Origin ---- */

/* Length of the name in "name:port" or "[address]:port"; SIZE_MAX: it is neither. */
static size_t name_length(const char *host) {
    static const char in_name[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%!$&'()*+,;=";
    static const char in_address[] = "0123456789abcdefABCDEF:.";
    size_t n = strspn(host, in_name);
    if (host[0] == '[') {
        const size_t inside = strspn(host + 1, in_address);
        n = inside > 1 && host[inside + 1] == ']' ? inside + 2 : SIZE_MAX;
    }
    if (n == SIZE_MAX || !host[n])
        return n;
    const char *port = host + n + 1;
    const size_t digits = host[n] == ':' ? strspn(port, "0123456789") : SIZE_MAX;
    return digits <= 5 && !port[digits] && strtoul(port, NULL, 10) <= UINT16_MAX ? n : SIZE_MAX;
}

static enum MHD_Result count_hosts(void *n, enum MHD_ValueKind kind, const char *name, const char *value) {
    (void)kind;
    (void)value;
    *(int *)n += !strcasecmp(name, "Host");
    return MHD_YES;
}

bool admit_host(const exchange *x) {
    const char *host = exchange_header(x, "Host");
    int n = 0;
    web.get_connection_values(x->connection, MHD_HEADER_KIND, count_hosts, &n);
    return n <= 1 && (!host || name_length(host) != SIZE_MAX);
}

static bool is_local_name(const server *s, const char *host) {
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]", ""};
    const size_t n = name_length(host);
    for (size_t i = 0; i < NUM_COUNT(names); i++)
        if (strlen(names[i]) == n && !strncasecmp(names[i], host, n))
            return true;
    return strlen(s->listener.host) == n && !strncasecmp(s->listener.host, host, n);
}

bool admit_origin(const exchange *x) {
    const char *origin = exchange_header(x, "Origin"), *host = exchange_header(x, "Host");
    const char *from = origin ? strstr(origin, "://") : NULL;
    if (origin && (!from || !host || strcasecmp(from + 3, host) != 0))
        return false;
    return !x->s->listener.loopback || x->s->options.n_key > 0 || !host || is_local_name(x->s, host);
}
