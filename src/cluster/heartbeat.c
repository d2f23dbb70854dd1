/* heartbeat.c - see heartbeat.h. Silence is counted in beats that this process has waited for, not in time:
 * when all ranks were stopped (Ctrl-Z), or the machine slept, none is silent. */
#include "cluster/heartbeat.h"

#include "base/mem.h"
#include "base/thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BEAT_MS = 500, MAX_MISSED = HEARTBEAT_S * 1000 / BEAT_MS };

struct heartbeat {
    pthread_t thread;
    rank_link ring; /* borrowed */
    int end;        /* an eventfd: the thread ends */
    int n;
    bool owns;                          /* the connections */
    struct pollfd at[CLUSTER_MAX_RANK]; /* [n], and `end` */
    int missed[CLUSTER_MAX_RANK];       /* [n]: beats in a row; 0: it has beaten since the last count */
    atomic_int silent, ended;
};

/* Reads what has arrived. False: the connection has ended. */
static bool drain(int fd) {
    char bytes[64];
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        ;
    return n != 0;
}

static void *beat(void *user) {
    heartbeat *h = user;
    const char sign = 0;
    for (;;) {
        const int n = poll(h->at, (nfds_t)h->n + 1, BEAT_MS);
        if (h->at[1].revents)
            return NULL;
        if (n == 0)
            send(h->at[0].fd, &sign, 1, MSG_NOSIGNAL | MSG_DONTWAIT); /* a full connection has enough */
        else if (h->at[0].revents && !drain(h->at[0].fd)) {
            link_shut(&h->ring);
            h->at[0].fd = -1;
        }
    }
}

/* Counts a beat for all. A rank that has ended is not silent: its neighbours notice its end. */
static void count(heartbeat *h) {
    for (int i = 0; i < h->n; i++)
        if (h->at[i].fd >= 0 && ++h->missed[i] > MAX_MISSED && h->silent == 0) {
            h->silent = i + 1;
            link_shut(&h->ring);
        }
}

static void *watch(void *user) {
    heartbeat *h = user;
    double next = time_now() + BEAT_MS / 1000.0;
    for (;;) {
        const double left = next - time_now();
        poll(h->at, (nfds_t)h->n + 1, left > 0 ? (int)(left * 1000) + 1 : 0);
        if (h->at[h->n].revents)
            return NULL;
        for (int i = 0; i < h->n; i++)
            if (h->at[i].revents) {
                h->missed[i] = 0;
                if (drain(h->at[i].fd))
                    continue;
                h->at[i].fd = -1 - h->at[i].fd; /* not polled any more */
                h->ended = h->ended ? h->ended : i + 1;
            }
        if (time_now() >= next) {
            count(h);
            next = time_now() + BEAT_MS / 1000.0;
        }
    }
}

static nib_status begin(const int *fds, int n, const rank_link *ring, bool watches, heartbeat **out,
                        nib_error *err) {
    heartbeat *h = mem_calloc(1, sizeof *h);
    if (!h)
        return nib_fail_nomem(err, sizeof *h, "the signs of life of ranks");
    *h = (heartbeat){.ring = *ring, .n = n, .owns = watches, .end = eventfd(0, EFD_CLOEXEC)};
    if (h->end < 0) {
        const int why = errno;
        mem_free(h);
        return nib_fail_errno(err, "cannot start the signs of life:", "eventfd", why);
    }
    for (int i = 0; i < n; i++)
        h->at[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    h->at[n] = (struct pollfd){.fd = h->end, .events = POLLIN};
    const int code = pthread_create(&h->thread, NULL, watches ? watch : beat, h);
    if (code) {
        close(h->end);
        mem_free(h);
        return nib_fail_errno(err, "cannot start the thread for signs of life:", "pthread_create", code);
    }
    *out = h;
    return NIB_OK;
}

nib_status heartbeat_begin(const rank_link *l, heartbeat **out, nib_error *err) {
    return begin(&l->control, 1, l, false, out, err);
}

nib_status heartbeat_watch(const int *controls, int n, const rank_link *ring, heartbeat **out,
                           nib_error *err) {
    return begin(controls, n, ring, true, out, err);
}

int heartbeat_silent(const heartbeat *h) {
    return h ? h->silent : 0;
}

int heartbeat_ended(const heartbeat *h) {
    return h ? h->ended : 0;
}

void heartbeat_end(heartbeat *h) {
    if (!h)
        return;
    eventfd_write(h->end, 1);
    pthread_join(h->thread, NULL);
    close(h->end);
    for (int i = 0; i < h->n && h->owns; i++)
        close(h->at[i].fd < 0 ? -1 - h->at[i].fd : h->at[i].fd);
    mem_free(h);
}
