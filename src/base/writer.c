/* writer.c - files that are whole or absent, see file_writer in file.h.
 * A large file is flushed to the disk while it is written. Otherwise commit would wait for all of it in one
 * call that cannot be cancelled. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER ((size_t)64 << 10)
#define BEHIND (UINT64_C(8) << 20) /* bytes that go to the disk at a time, while as many are written */

struct file_writer {
    int fd;
    char *path;      /* the final name; a symbolic link is followed */
    char *temporary; /* NULL: path is a device or a pipe and is written directly */
    bool stays;      /* the temporary file is kept when writing is not finished */
    mode_t mode;     /* of a new file */
    const canceller *cancel;
    uint64_t at;   /* bytes of the file that were written */
    uint64_t sent; /* of these, bytes whose flush has begun; all but the last BEHIND have reached the disk */
    size_t n;      /* bytes in buffer */
    char buffer[BUFFER];
};

static void writer_free(file_writer *w) {
    if (w->fd >= 0)
        close(w->fd);
    mem_free(w->path);
    mem_free(w->temporary);
    mem_free(w);
}

/* A copy of path, or of the existing target that it links to. */
static char *resolve(const char *path) {
    char *real = realpath(path, NULL);
    char *copy = mem_strdup(real ? real : path);
    free(real); /* realpath's own allocation */
    return copy;
}

static nib_status open_temporary(file_writer *w, nib_error *err) {
    static atomic_uint counter;
    size_t size = strlen(w->path) + 48;
    w->temporary = mem_alloc(size);
    if (!w->temporary)
        return nib_fail_nomem(err, size, "a file name");
    for (int i = 0; i < 100; i++) {
        snprintf(w->temporary, size, "%s.%ld-%u.tmp", w->path, (long)getpid(), atomic_fetch_add(&counter, 1));
        w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, w->mode);
        if (w->fd >= 0)
            return NIB_OK;
        if (errno != EEXIST)
            break;
    }
    nib_status status = nib_fail_errno(err, "cannot create", w->temporary, errno);
    mem_free(w->temporary);
    w->temporary = NULL;
    return status;
}

static nib_status open_for(mode_t mode, const char *path, file_writer **out, nib_error *err) {
    file_writer *w = mem_alloc(sizeof *w);
    if (!w)
        return nib_fail_nomem(err, sizeof *w, "a file writer");
    *w = (file_writer){.fd = -1, .path = resolve(path), .mode = mode};
    nib_status status = NIB_OK;
    struct stat info;
    if (!w->path) {
        status = nib_fail_nomem(err, strlen(path), "a file name");
    } else if (stat(w->path, &info) == 0 && !S_ISREG(info.st_mode)) {
        /* /dev/stdout, /dev/null: renaming over a device would remove it */
        w->fd = open(w->path, O_WRONLY | O_CLOEXEC);
        if (w->fd < 0)
            status = nib_fail_errno(err, "cannot write", path, errno);
    } else {
        status = open_temporary(w, err);
    }
    if (status != NIB_OK) {
        writer_free(w);
        return status;
    }
    *out = w;
    return NIB_OK;
}

nib_status file_writer_open(const char *path, file_writer **out, nib_error *err) {
    return open_for(0666, path, out, err);
}

nib_status file_writer_open_private(const char *path, file_writer **out, nib_error *err) {
    return open_for(0600, path, out, err);
}

static nib_status open_part(file_writer *w, nib_error *err) {
    const size_t size = strlen(w->path) + sizeof ".part";
    w->temporary = mem_alloc(size);
    if (!w->temporary)
        return nib_fail_nomem(err, size, "a file name");
    snprintf(w->temporary, size, "%s.part", w->path);
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (w->fd < 0)
        return nib_fail_errno(err, "cannot create", w->temporary, errno);
    struct stat info, named;
    if (fstat(w->fd, &info) || !S_ISREG(info.st_mode))
        return nib_fail(err, NIB_E_IO, "%s: expected a regular file to write to", w->temporary);
    /* The other process may have given the file its name between open and here. */
    if (flock(w->fd, LOCK_EX | LOCK_NB) || stat(w->temporary, &named) || named.st_ino != info.st_ino)
        return nib_fail(err, NIB_E_IO, "%s: another process is writing it", w->temporary);
    return NIB_OK;
}

nib_status file_writer_open_part(const char *path, file_writer **out, nib_error *err) {
    file_writer *w = mem_alloc(sizeof *w);
    if (!w)
        return nib_fail_nomem(err, sizeof *w, "a file writer");
    *w = (file_writer){.fd = -1, .path = resolve(path), .stays = true};
    nib_status status = w->path ? open_part(w, err) : nib_fail_nomem(err, strlen(path), "a file name");
    struct stat info;
    if (status == NIB_OK && stat(w->path, &info) == 0 && !S_ISREG(info.st_mode))
        status = nib_fail(err, NIB_E_IO, "%s: expected a regular file, or none", path);
    if (status != NIB_OK) {
        writer_free(w);
        return status;
    }
    *out = w;
    return NIB_OK;
}

/* Disk errors are returned here, and only once. If the system does not support this call, fsync at the end
 * flushes everything. */
static nib_status write_behind(file_writer *w, nib_error *err) {
    const unsigned wait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    for (; w->temporary && w->at - w->sent >= BEHIND; w->sent += BEHIND) {
        int failed = sync_file_range(w->fd, (off_t)w->sent, BEHIND, SYNC_FILE_RANGE_WRITE);
        if (!failed && w->sent >= BEHIND)
            failed = sync_file_range(w->fd, (off_t)(w->sent - BEHIND), BEHIND, wait);
        if (failed && (errno == EIO || errno == ENOSPC || errno == EDQUOT))
            return nib_fail_errno(err, "cannot write", w->path, errno);
    }
    return NIB_OK;
}

static nib_status write_out(file_writer *w, const char *data, size_t n_byte, nib_error *err) {
    while (n_byte > 0) {
        ssize_t put = -1;
        errno = ENOSPC;
        if (!fault_hit(FAULT_WRITE))
            put = write(w->fd, data, NUM_MIN(n_byte, (size_t)1 << 30));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return nib_fail_errno(err, "cannot write", w->path, errno);
        data += put;
        n_byte -= (size_t)put;
        w->at += (uint64_t)put;
    }
    return write_behind(w, err);
}

static nib_status flush(file_writer *w, nib_error *err) {
    size_t n = w->n;
    w->n = 0;
    return write_out(w, w->buffer, n, err);
}

nib_status file_writer_write(file_writer *w, const void *data, size_t n_byte, nib_error *err) {
    if (n_byte > BUFFER - w->n)
        NIB_TRY(flush(w, err));
    if (n_byte > BUFFER)
        return write_out(w, data, n_byte, err);
    if (n_byte)
        memcpy(w->buffer + w->n, data, n_byte);
    w->n += n_byte;
    return NIB_OK;
}

nib_status file_writer_hole(file_writer *w, uint64_t n_byte, nib_error *err) {
    NIB_TRY(flush(w, err));
    const off_t at = lseek(w->fd, 0, SEEK_CUR);
    if (at < 0 || n_byte > (uint64_t)INT64_MAX - (uint64_t)at)
        return nib_fail(err, NIB_E_USAGE, "%s: %llu more bytes would exceed the size that a file can have",
                        w->path, (unsigned long long)n_byte);
    if (ftruncate(w->fd, at + (off_t)n_byte) || lseek(w->fd, 0, SEEK_END) < 0)
        return nib_fail_errno(err, "cannot extend", w->path, errno);
    w->at += n_byte;
    w->sent = w->at;
    return NIB_OK;
}

nib_status file_writer_skip(file_writer *w, uint64_t n_byte, nib_error *err) {
    NIB_TRY(flush(w, err));
    if (n_byte > (uint64_t)INT64_MAX - w->at || lseek(w->fd, (off_t)(w->at + n_byte), SEEK_SET) < 0)
        return nib_fail_errno(err, "cannot skip existing bytes of", w->path, errno);
    w->at += n_byte;
    w->sent = w->at;
    return NIB_OK;
}

void file_writer_set_cancel(file_writer *w, const canceller *cancel) {
    w->cancel = cancel;
}

static nib_status finish(file_writer *w, nib_error *err) {
    NIB_TRY(flush(w, err));
    if (w->stays && ftruncate(w->fd, (off_t)w->at))
        return nib_fail_errno(err, "cannot truncate", w->temporary, errno);
    /* A network or quota file system may only say now that the disk is full. */
    if (w->temporary && fsync(w->fd))
        return nib_fail_errno(err, "cannot write", w->path, errno);
    NIB_TRY(cancel_check(w->cancel, err));
    const int fd = w->fd;
    w->fd = w->stays ? fd : -1; /* the lock is held until the file is renamed */
    if (!w->stays && close(fd) && errno != EINTR)
        return nib_fail_errno(err, "cannot write", w->path, errno);
    if (w->temporary && rename(w->temporary, w->path))
        return nib_fail_errno(err, "cannot rename the finished file", w->path, errno);
    return NIB_OK;
}

nib_status file_writer_commit(file_writer *w, nib_error *err) {
    nib_status status = finish(w, err);
    if (status != NIB_OK && w->temporary && !w->stays)
        unlink(w->temporary);
    writer_free(w);
    return status;
}

void file_writer_abort(file_writer *w) {
    struct stat info;
    if (!w)
        return;
    const bool empty = w->stays && w->fd >= 0 && !fstat(w->fd, &info) && info.st_size == 0;
    if (w->temporary && (!w->stays || empty))
        unlink(w->temporary);
    writer_free(w);
}

void file_writer_discard(file_writer *w) {
    if (w)
        w->stays = false;
    file_writer_abort(w);
}

nib_status file_writer_end(file_writer *w, nib_status status, nib_error *err) {
    if (status == NIB_OK)
        return file_writer_commit(w, err);
    file_writer_abort(w);
    return status;
}

nib_status file_write_all(const char *path, const void *data, size_t n_byte, nib_error *err) {
    file_writer *w;
    NIB_TRY(file_writer_open(path, &w, err));
    return file_writer_end(w, file_writer_write(w, data, n_byte, err), err);
}
