/* link.c - see link.h. */
#include "cluster/link.h"

#include "base/num.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FIRST_FD = 10 /* above those that a started program gets */, BUFFER = 1 << 20 };

int link_raise(int fd) {
    if (fd < 0)
        return fd;
    const int raised = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD), why = errno;
    close(fd);
    errno = why;
    return raised;
}

nib_status link_pair(int *in, int *out, nib_error *err) {
    int ends[2];
    const int size = BUFFER;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return nib_fail_errno(err, "cannot connect ranks", "a pair of sockets", errno);
    setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof size); /* larger is faster, not needed */
    *in = link_raise(ends[0]);
    const int why = errno;
    *out = link_raise(ends[1]);
    if (*in < 0 || *out < 0)
        return nib_fail_errno(err, "cannot connect ranks", "a pair of sockets", *in < 0 ? why : errno);
    return NIB_OK;
}

void link_close(rank_link *l) {
    if (l->in >= 0)
        close(l->in);
    if (l->out >= 0)
        close(l->out);
    if (l->control >= 0)
        close(l->control);
    l->in = l->out = l->control = -1;
}

void link_shut(const rank_link *l) {
    shutdown(l->in, SHUT_RDWR);
    shutdown(l->out, SHUT_RDWR);
}

nib_status link_send(const rank_link *l, const link_part *parts, int n_part, nib_error *err) {
    struct iovec left[LINK_MAX_PART];
    struct msghdr m = {.msg_iov = left, .msg_iovlen = (size_t)n_part};
    for (int i = 0; i < n_part; i++)
        left[i] = (struct iovec){(void *)(uintptr_t)parts[i].at, parts[i].n_byte};
    while (m.msg_iovlen > 0) {
        if (m.msg_iov->iov_len == 0) {
            m.msg_iov++;
            m.msg_iovlen--;
            continue;
        }
        ssize_t n = sendmsg(l->out, &m, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return nib_fail_errno(err, "cannot send", "to the next rank", errno);
        for (; n > 0; m.msg_iov++, m.msg_iovlen--) {
            const size_t part = NUM_MIN((size_t)n, m.msg_iov->iov_len);
            if (part == 0) /* of a part that is NULL too */
                continue;
            n -= (ssize_t)part;
            m.msg_iov->iov_base = (uint8_t *)m.msg_iov->iov_base + part;
            m.msg_iov->iov_len -= part;
            if (m.msg_iov->iov_len > 0)
                break;
        }
    }
    return NIB_OK;
}

void link_look(const rank_link *l, double seconds) {
    char first;
    const double end = time_now() + seconds;
    while (recv(l->in, &first, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR) &&
           time_now() < end)
        thread_relax();
}

nib_status link_receive(const rank_link *l, void *to, size_t n_byte, bool *ended, nib_error *err) {
    if (ended)
        *ended = false;
    for (size_t at = 0; at < n_byte;) {
        const ssize_t n = recv(l->in, (uint8_t *)to + at, n_byte - at, 0);
        if (n > 0)
            at += (size_t)n;
        else if (n == 0 && at == 0 && ended) {
            *ended = true;
            return NIB_OK;
        } else if (n == 0)
            return nib_fail(err, NIB_E_IO, "the rank before has ended");
        else if (errno != EINTR)
            return nib_fail_errno(err, "cannot receive", "from the rank before", errno);
    }
    return NIB_OK;
}
