/* hub_fetch.c - see hub_fetch.h. The hidden file's name contains the checksum, so that a download of one
 * revision is never continued with another; the file is locked against a second process. */
#include "cli/pull/hub_fetch.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/status.h"
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/sha1.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 1 << 20, FIRST_WAIT_MS = 500, LONGEST_WAIT_MS = 16000 };

/* The checksum: SHA-256 for large files, git's blob hash for small ones. */
typedef struct digest {
    bool git;
    union {
        struct sha256_ctx sha256;
        struct sha1_ctx sha1;
    };
} digest;

typedef struct download {
    const hub_fetch *f;
    char *part;
    int fd;
    uint64_t have;    /* bytes in the hidden file */
    uint64_t fetched; /* bytes in this run, by all requests */
    bool resumed;     /* a part of the file is from an earlier run */
    digest sum;       /* of the bytes in the file */
} download;

static void digest_begin(digest *d, const hub_file *named) {
    char head[32];
    d->git = !named->sha256[0];
    if (!d->git) {
        sha256_init(&d->sha256);
        return;
    }
    const int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)named->bytes);
    sha1_init(&d->sha1);
    sha1_update(&d->sha1, (size_t)n + 1, (const uint8_t *)head);
}

static void digest_add(digest *d, const void *data, size_t n) {
    if (d->git)
        sha1_update(&d->sha1, n, data);
    else
        sha256_update(&d->sha256, n, data);
}

/* Ends the digest. True if it is the file's checksum. */
static bool digest_is(digest *d, const hub_file *named) {
    uint8_t bytes[SHA256_DIGEST_SIZE];
    char hex[2 * SHA256_DIGEST_SIZE + 1];
    const size_t n = d->git ? SHA1_DIGEST_SIZE : SHA256_DIGEST_SIZE;
    if (d->git)
        sha1_digest(&d->sha1, n, bytes);
    else
        sha256_digest(&d->sha256, n, bytes);
    for (size_t i = 0; i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    return !strcmp(hex, d->git ? named->blob : named->sha256);
}

/* ---- the hidden file ---- */

/* "folder/.name.0123456789abcdef.part" */
static char *part_path(const hub_file *named, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t size = strlen(path) + 32;
    char *part = mem_alloc(size);
    if (part)
        snprintf(part, size, "%.*s.%s.%.16s.part", (int)(name - path), path, name,
                 named->sha256[0] ? named->sha256 : named->blob);
    return part;
}

uint64_t hub_fetch_there(const hub_file *named, const char *path) {
    struct stat info;
    char *part = part_path(named, path);
    uint64_t n = 0;
    if (!stat(path, &info) || (part && !stat(part, &info)))
        n = NUM_MIN((uint64_t)info.st_size, named->bytes);
    mem_free(part);
    return n;
}

static nib_status begin_anew(download *d, nib_error *err) {
    if (ftruncate(d->fd, 0))
        return nib_fail_errno(err, "cannot empty", d->part, errno);
    d->have = 0;
    d->resumed = false;
    digest_begin(&d->sum, d->f->file);
    return NIB_OK;
}

/* Adds a whole file to the digest. *n: its bytes. */
static nib_status digest_file(const hub_fetch *f, int fd, digest *sum, uint64_t *n, nib_error *err) {
    char *piece = mem_alloc(PIECE);
    nib_status status = piece ? NIB_OK : nib_fail_nomem(err, PIECE, "reading a file");
    *n = 0;
    digest_begin(sum, f->file);
    for (ssize_t got = 1; got > 0 && status == NIB_OK;) {
        got = pread(fd, piece, PIECE, (off_t)*n);
        if (got < 0)
            status = nib_fail_errno(err, "cannot read", f->path, errno);
        else
            digest_add(sum, piece, (size_t)got);
        *n += got > 0 ? (uint64_t)got : 0;
        if (got > 0 && !f->progress(f->user, f->file, NUM_MIN(*n, f->file->bytes), 0))
            status = nib_fail(err, NIB_E_CANCELLED, "interrupted");
    }
    mem_free(piece);
    return status;
}

/* Sets *there to whether the file exists with the hub's size and checksum. */
static nib_status is_there(const hub_fetch *f, bool *there, nib_error *err) {
    struct stat info;
    digest sum;
    uint64_t n;
    const int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    *there = false;
    if (fd < 0)
        return NIB_OK;
    nib_status status = NIB_OK;
    if (!fstat(fd, &info) && (uint64_t)info.st_size == f->file->bytes) {
        status = digest_file(f, fd, &sum, &n, err);
        *there = status == NIB_OK && digest_is(&sum, f->file);
    }
    close(fd);
    return status;
}

static nib_status open_part(download *d, nib_error *err) {
    d->part = part_path(d->f->file, d->f->path);
    if (!d->part)
        return nib_fail_nomem(err, strlen(d->f->path), "a path");
    d->fd = open(d->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (d->fd < 0)
        return nib_fail_errno(err, "cannot write", d->part, errno);
    if (flock(d->fd, LOCK_EX | LOCK_NB))
        return errno == EWOULDBLOCK
                   ? nib_fail(err, NIB_E_IO, "%s is being downloaded by another process", d->f->path)
                   : nib_fail_errno(err, "cannot lock", d->part, errno);
    NIB_TRY(digest_file(d->f, d->fd, &d->sum, &d->have, err));
    d->resumed = d->have > 0;
    return d->have > d->f->file->bytes ? begin_anew(d, err) : NIB_OK;
}

static nib_status write_piece(download *d, const char *data, size_t n_byte, nib_error *err) {
    while (n_byte > 0) {
        const ssize_t put = pwrite(d->fd, data, n_byte, (off_t)d->have);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return nib_fail(err, NIB_E_IO,
                            "cannot write %s: %s; the partial file is kept, and the next download resumes it",
                            d->part, strerror(errno));
        digest_add(&d->sum, data, (size_t)put);
        data += put;
        n_byte -= (size_t)put;
        d->have += (uint64_t)put;
        d->fetched += (uint64_t)put;
    }
    return NIB_OK;
}

static nib_status on_body(void *user, uint64_t at, const void *data, size_t n_byte, nib_error *err) {
    download *d = user;
    if (at != d->have) /* the server does not begin at the requested byte */
        NIB_TRY(at == 0 ? begin_anew(d, err)
                        : nib_fail(err, NIB_E_IO,
                                   "%s: expected an answer from byte %llu on, found one from byte %llu on",
                                   d->f->url, (unsigned long long)d->have, (unsigned long long)at));
    if (n_byte > d->f->file->bytes - d->have)
        return nib_fail(err, NIB_E_IO, "%s: expected %llu bytes, as the hub lists, found more", d->f->url,
                        (unsigned long long)d->f->file->bytes);
    NIB_TRY(write_piece(d, data, n_byte, err));
    return d->f->progress(d->f->user, d->f->file, d->have, d->fetched)
               ? NIB_OK
               : nib_fail(err, NIB_E_CANCELLED, "interrupted");
}

/* ---- requests ---- */

/* Waits. False: interrupted. */
static bool wait_ms(int64_t ms) {
    const struct timespec a_while = {0, 50 * 1000 * 1000};
    for (; ms > 0 && !cli_interrupted(); ms -= 50)
        nanosleep(&a_while, NULL);
    return !cli_interrupted();
}

/* Repeats requests until the file has all its bytes. A request that receives any bytes resets the number of
 * retries. */
static nib_status fetch_rest(download *d, nib_error *err) {
    int64_t tries = 0, wait = FIRST_WAIT_MS;
    while (d->have < d->f->file->bytes) {
        const uint64_t before = d->have;
        http_answer answer;
        const http_request request = {.url = d->f->url, .from = before, .body = on_body, .user = d};
        const nib_status status = http_get(d->f->http, &request, &answer, err);
        if (d->have > before) {
            tries = 0;
            wait = FIRST_WAIT_MS;
        }
        if (status == NIB_OK && d->have > before)
            continue;
        if (status == NIB_OK)
            return nib_fail(err, NIB_E_IO, "%s: the server sent only %llu of %llu bytes", d->f->url,
                            (unsigned long long)d->have, (unsigned long long)d->f->file->bytes);
        if (!answer.again || tries++ >= d->f->retries)
            return status;
        d->f->note(d->f->user, err->message);
        if (!wait_ms(wait))
            return nib_fail(err, NIB_E_CANCELLED, "interrupted");
        wait = NUM_MIN(2 * wait, LONGEST_WAIT_MS);
    }
    return NIB_OK;
}

static nib_status fetch_and_check(download *d, nib_error *err) {
    NIB_TRY(fetch_rest(d, err));
    if (digest_is(&d->sum, d->f->file))
        return NIB_OK;
    if (d->resumed) { /* the part from an earlier run may be damaged */
        d->f->note(d->f->user, "the partial file is damaged: it is downloaded again");
        NIB_TRY(begin_anew(d, err));
        NIB_TRY(fetch_rest(d, err));
        if (digest_is(&d->sum, d->f->file))
            return NIB_OK;
    }
    unlink(d->part);
    return nib_fail(err, NIB_E_IO, "%s is not the file that the hub lists: its %s differs", d->f->url,
                    d->sum.git ? "checksum" : "SHA-256");
}

/* Flushes the file to disk, then renames it to its name. */
static nib_status finish(download *d, nib_error *err) {
    if (fsync(d->fd))
        return nib_fail_errno(err, "cannot write", d->part, errno);
    if (rename(d->part, d->f->path))
        return nib_fail_errno(err, "cannot rename the finished file", d->f->path, errno);
    return NIB_OK;
}

static nib_status fetch_part(download *d, nib_error *err) {
    bool there;
    NIB_TRY(is_there(d->f, &there, err)); /* from an earlier run, or by another process */
    if (there) {
        unlink(d->part);
        return NIB_OK;
    }
    NIB_TRY(fetch_and_check(d, err));
    return finish(d, err);
}

nib_status hub_fetch_file(const hub_fetch *f, nib_error *err) {
    download d = {.f = f, .fd = -1};
    nib_status status = open_part(&d, err);
    if (status == NIB_OK)
        status = fetch_part(&d, err);
    if (d.fd >= 0)
        close(d.fd);
    mem_free(d.part);
    return status;
}
