/* http.c - see http.h. */
#include "cli/pull/http.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/status.h"
#include "cli/cli.h"

#include <ctype.h>
#include <curl/curl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CALLS(X)                                                                                             \
    X(global_init)                                                                                           \
    X(easy_init)                                                                                             \
    X(easy_setopt)                                                                                           \
    X(easy_getinfo)                                                                                          \
    X(easy_strerror)                                                                                         \
    X(easy_cleanup)                                                                                          \
    X(multi_init)                                                                                            \
    X(multi_add_handle)                                                                                      \
    X(multi_perform)                                                                                         \
    X(multi_poll)                                                                                            \
    X(multi_info_read)                                                                                       \
    X(multi_remove_handle)                                                                                   \
    X(multi_cleanup)

/* libcurl's functions, without the prefix curl_. */
static struct {
#define X(name) __typeof__(&curl_##name) name;
    CALLS(X)
#undef X
} curl;

struct http {
    CURL *easy;
    CURLM *multi;
    char *token;
    const http_request *request; /* the current one */
    http_answer *answer;
    nib_error *err;
    nib_status status; /* of request->body */
    uint64_t at;       /* offset of the next byte of the body */
    bool ranged;       /* the answer has a content-range */
    char why[CURL_ERROR_SIZE];
};

enum { CONNECT_S = 20, STALLED_S = 30, POLL_MS = 100, MAX_REDIRECTS = 10 };

/* ---- the library ---- */

static bool find_calls(void *library) {
    void *at;
#define X(name)                                                                                              \
    if (!(at = dlsym(library, "curl_" #name)))                                                               \
        return false;                                                                                        \
    memcpy(&curl.name, &at, sizeof at);
    CALLS(X)
#undef X
    return true;
}

/* Loads the library once for the process. It is never unloaded, since not all of its libraries can be. */
static bool load_library(void) {
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    static bool loaded;
    for (size_t i = 0; i < NUM_COUNT(names) && !loaded; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        loaded = library && find_calls(library) && curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
    }
    return loaded;
}

/* ---- callbacks of a transfer ---- */

static void copy_value(const char *value, size_t n, char *out, size_t size) {
    while (n && isspace((unsigned char)*value)) {
        value++;
        n--;
    }
    while (n && isspace((unsigned char)value[n - 1]))
        n--;
    snprintf(out, size, "%.*s", (int)NUM_MIN(n, size - 1), value);
}

/* Handles a line of the header. After a redirection a new header begins with its status line. */
static size_t on_header(char *line, size_t each, size_t n, void *user) {
    http *h = user;
    static const char code[] = "x-error-code:", range[] = "content-range: bytes ";
    if (n > 5 && !strncmp(line, "HTTP/", 5)) {
        h->ranged = false;
        h->answer->code[0] = 0;
    } else if (n >= sizeof code && !strncasecmp(line, code, sizeof code - 1)) {
        copy_value(line + sizeof code - 1, n - sizeof code + 1, h->answer->code, sizeof h->answer->code);
    } else if (n >= sizeof range && !strncasecmp(line, range, sizeof range - 1)) {
        char from[24];
        copy_value(line + sizeof range - 1, n - sizeof range + 1, from, sizeof from);
        h->ranged = isdigit((unsigned char)from[0]);
        h->at = strtoull(from, NULL, 10);
    }
    return n * each;
}

/* Handles a piece of the body. Returning 0 ends the transfer. */
static size_t on_body(char *data, size_t each, size_t n, void *user) {
    http *h = user;
    curl.easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &h->answer->status);
    if (h->answer->status >= 300) /* the text of an error */
        return n * each;
    if (h->answer->status == 206 && !h->ranged)
        return 0;
    h->status = h->request->body(h->request->user, h->at, data, n * each, h->err);
    h->at += n * each;
    return h->status == NIB_OK ? n * each : 0;
}

/* ---- requests ---- */

static CURLcode set_up(http *h, const char *range) {
    static const char *const bundles[] = {"CURL_CA_BUNDLE", "SSL_CERT_FILE"}; /* as in the curl command */
    CURL *c = h->easy;
    curl.easy_setopt(c, CURLOPT_URL, h->request->url);
    curl.easy_setopt(c, CURLOPT_RANGE, range);
    curl.easy_setopt(c, CURLOPT_ERRORBUFFER, h->why);
    curl.easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl.easy_setopt(c, CURLOPT_USERAGENT, "nibble/" NIB_VERSION);
    curl.easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl.easy_setopt(c, CURLOPT_MAXREDIRS, (long)MAX_REDIRECTS);
    curl.easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl.easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl.easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)STALLED_S);
    curl.easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl.easy_setopt(c, CURLOPT_HEADERDATA, h);
    curl.easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl.easy_setopt(c, CURLOPT_WRITEDATA, h);
    curl.easy_setopt(c, CURLOPT_QUICK_EXIT, 1L); /* do not wait for a name lookup */
    for (size_t i = 0; i < NUM_COUNT(bundles); i++)
        if (getenv(bundles[i]))
            curl.easy_setopt(c, CURLOPT_CAINFO, getenv(bundles[i]));
    if (h->token) {
        curl.easy_setopt(c, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
        curl.easy_setopt(c, CURLOPT_XOAUTH2_BEARER, h->token);
    }
    const bool safe = !strncmp(h->request->url, "https:", 6);
    curl.easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    return curl.easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, safe ? "https" : "http,https");
}

/* Runs the transfer. CURLE_ABORTED_BY_CALLBACK: interrupted. */
static CURLcode perform(http *h) {
    CURLcode result = CURLE_ABORTED_BY_CALLBACK;
    int running = 1, left;
    if (curl.multi_add_handle(h->multi, h->easy) != CURLM_OK)
        return CURLE_FAILED_INIT;
    while (running && !cli_interrupted())
        if (curl.multi_perform(h->multi, &running) != CURLM_OK ||
            (running && curl.multi_poll(h->multi, NULL, 0, POLL_MS, NULL) != CURLM_OK))
            break;
    const CURLMsg *message = curl.multi_info_read(h->multi, &left);
    if (message && message->msg == CURLMSG_DONE)
        result = message->data.result;
    curl.multi_remove_handle(h->multi, h->easy);
    return result;
}

/* Length of "https://host" in an address. */
static int host_length(const char *url) {
    const char *host = strstr(url, "://");
    return host ? (int)((size_t)(host + 3 - url) + strcspn(host + 3, "/")) : (int)strlen(url);
}

static bool is_passing(CURLcode result) {
    switch (result) {
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_SSL_CONNECT_ERROR: return true;
    default: return false;
    }
}

static nib_status judge(http *h, CURLcode result, nib_error *err) {
    const char *url = h->request->url;
    const long status = h->answer->status;
    if (cli_interrupted())
        return nib_fail(err, NIB_E_CANCELLED, "interrupted");
    if (h->status != NIB_OK)
        return h->status;
    if (result == CURLE_OK && status >= 200 && status < 300)
        return NIB_OK;
    h->answer->again = result != CURLE_OK ? is_passing(result) : status == 429 || status >= 500;
    if (result == CURLE_OK)
        return nib_fail(err, NIB_E_IO, "%s: the server answers %ld%s%s", url, status,
                        h->answer->code[0] ? ", " : "", h->answer->code);
    const char *why = h->why[0] ? h->why : curl.easy_strerror(result);
    const bool unknown = result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE;
    if (status)
        return nib_fail(err, NIB_E_IO, "%.*s: the connection broke: %s", host_length(url), url, why);
    return nib_fail(err, NIB_E_IO, "cannot reach %.*s: %s%s", host_length(url), url, why,
                    unknown ? " (Debian's certificates are in ca-certificates)" : "");
}

nib_status http_get(http *h, const http_request *request, http_answer *answer, nib_error *err) {
    char range[32];
    snprintf(range, sizeof range, "%llu-", (unsigned long long)request->from);
    *answer = (http_answer){0};
    h->request = request;
    h->answer = answer;
    h->err = err;
    h->status = NIB_OK;
    h->at = 0;
    h->why[0] = 0;
    CURLcode result = set_up(h, request->from ? range : NULL);
    if (result == CURLE_OK)
        result = perform(h);
    curl.easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &answer->status);
    return judge(h, result, err);
}

nib_status http_open(const char *token, http **out, nib_error *err) {
    if (!load_library())
        return nib_fail(err, NIB_E_FAILED,
                        "downloading needs the library libcurl, which is not installed (Debian: libcurl4)");
    http *h = mem_calloc(1, sizeof *h);
    if (!h)
        return nib_fail_nomem(err, sizeof *h, "a connection");
    h->easy = curl.easy_init();
    h->multi = curl.multi_init();
    h->token = token ? mem_strdup(token) : NULL;
    if (!h->easy || !h->multi || (token && !h->token)) {
        http_close(h);
        return nib_fail_nomem(err, sizeof *h, "a connection");
    }
    *out = h;
    return NIB_OK;
}

void http_close(http *h) {
    if (!h)
        return;
    if (h->easy)
        curl.easy_cleanup(h->easy);
    if (h->multi)
        curl.multi_cleanup(h->multi);
    mem_free(h->token);
    mem_free(h);
}

bool http_escape(const char *text, char *out, size_t size) {
    size_t n = 0;
    for (const char *c = text; *c; c++) {
        const unsigned char byte = (unsigned char)*c;
        const bool plain = byte < 128 && (isalnum(byte) || strchr("-._~/", byte));
        if (n + 4 > size)
            return false;
        n += (size_t)snprintf(out + n, 4, plain ? "%c" : "%%%02X", byte);
    }
    out[n] = 0;
    return n < size;
}
