/* client.c - see client.h. */
#include "faults/client.h"
#include "faults/alloc.h"

#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REPLY = 64 << 10 };

/* One answer of each dialect, and with what else makes values: a schema, tools, log-probabilities. */
static const struct {
    const char *url, *body;
} requests[] = {
    {"/v1/chat/completions", "{\"messages\":[{\"role\":\"system\",\"content\":\"Be \\\"brief\\\"\"},"
                             "{\"role\":\"user\",\"content\":\"Why \\u00e9?\"}],\"max_tokens\":4,"
                             "\"temperature\":0,\"logprobs\":true,\"top_logprobs\":2}"},
    {"/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
     "\"Who?\"}]}],\"max_tokens\":24,\"temperature\":0,\"response_format\":{\"type\":"
     "\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{\"type\":\"object\","
     "\"allOf\":[{\"properties\":{\"a\":{\"enum\":[1,\"b\"]}}},{\"required\":[\"a\"]}],"
     "\"additionalProperties\":false,\"properties\":{\"a\":{}}}}}}"},
    {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"Stream\"}],\"max_tokens\":4,"
                             "\"temperature\":0,\"stream\":true}"},
    {"/v1/completions", "{\"prompt\":[\"One\",\"Two\"],\"max_tokens\":3,\"temperature\":0,\"logprobs\":1}"},
    {"/v1/responses", "{\"input\":[{\"role\":\"user\",\"content\":\"What?\"}],\"max_output_tokens\":3,"
                      "\"temperature\":0}"},
    {"/v1/messages", "{\"system\":\"Be brief\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
                     "\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}],\"max_tokens\":3,"
                     "\"temperature\":0}"},
    {"/api/chat", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hm\"}],\"stream\":false,\"options\":"
                  "{\"num_predict\":3,\"temperature\":0}}"},
    {"/v1/embeddings", "{\"input\":[\"one\",\"two\"]}"},
    {"/tokenize", "{\"content\":\"pieces \\u00e9\",\"with_pieces\":true}"},
    {"/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"tell\"}]}"},
    {"/v1/models", NULL},
    {"/api/tags", NULL},
};

typedef struct client {
    int fd;
    run_result *into;
    char reply[REPLY], content[REPLY];
} client;

static client one;

/* Sends a request and reads to the end of the connection; how many bytes came. */
static size_t exchange(client *c, int port, const char *url, const char *body) {
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char request[2048];
    const int n = snprintf(request, sizeof request,
                           "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                           "Content-Length: %zu\r\n\r\n%s",
                           body ? "POST" : "GET", url, body ? strlen(body) : 0, body ? body : "");
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    size_t got = 0;
    ssize_t more = 1;
    if (!connect(s, (const struct sockaddr *)&at, sizeof at) &&
        send(s, request, (size_t)n, MSG_NOSIGNAL) == n)
        while (got < REPLY - 1 && (more = read(s, c->reply + got, REPLY - 1 - got)) > 0)
            got += (size_t)more;
    c->reply[got] = 0;
    close(s);
    return got;
}

/* The texts of a stream that ended well, one after the other; NULL: it did not. */
static const char *streamed(client *c) {
    static const char key[] = "\"content\":\"";
    size_t n = 0;
    if (!strstr(c->reply, "data: [DONE]"))
        return NULL;
    for (const char *p = c->reply; (p = strstr(p, key));) {
        p += strlen(key);
        while (*p && *p != '"')
            c->content[n++] = *p++;
    }
    c->content[n] = 0;
    return c->content;
}

/* Whether a reply without a stream came to its end. */
static bool is_whole(const client *c, const char *body) {
    const char *length = strcasestr(c->reply, "Content-Length:");
    return length && length < body && strlen(body + 4) == strtoull(length + 15, NULL, 10);
}

static void note(client *c, bool stream) {
    const char *body = strstr(c->reply, "\r\n\r\n");
    if (strncmp(c->reply, "HTTP/1.1 200", 12) != 0 || !body || (stream && strstr(c->reply, "\"error\"")) ||
        (!stream && !is_whole(c, body)))
        body = NULL;
    else
        body = stream ? streamed(c) : body + 4;
    if (body)
        run_part(c->into, body, strlen(body));
    else
        run_missing_part(c->into);
}

static void *ask(void *user) {
    client *c = user;
    char address[128] = "";
    size_t n = 0;
    malloc_fault_spare(true);
    while (n < sizeof address - 1 && !strchr(address, '\n') && read(c->fd, address + n, 1) == 1)
        address[++n] = 0;
    const char *port = strrchr(address, ':');
    for (size_t i = 0; port && i < sizeof requests / sizeof *requests; i++) {
        exchange(c, atoi(port + 1), requests[i].url, requests[i].body);
        note(c, requests[i].body && strstr(requests[i].body, "\"stream\":true"));
    }
    kill(getpid(), SIGTERM);
    return NULL;
}

void client_start(int fd, run_result *into) {
    pthread_t thread;
    one.fd = fd;
    one.into = into;
    if (pthread_create(&thread, NULL, ask, &one) || pthread_detach(thread))
        _exit(124);
}
