/* file.c - reading of files. Handles short reads, signals, and the alignment that O_DIRECT needs. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_READ   ((size_t)1 << 30) /* Linux moves at most 2 GiB less a page in one call */
#define MAX_BOUNCE ((size_t)1 << 20)

struct file {
    int fd;
    unsigned flags;
    atomic_bool direct; /* switched off for good when the file system refuses a direct read */
    uint64_t size;
    int64_t changed; /* ns */
    char *path;
};

static nib_status fail_open(nib_error *err, const char *path, int code) {
    if (code == ENOENT || code == ENOTDIR)
        return nib_fail(err, NIB_E_NOTFOUND, "%s: not found", path);
    return nib_fail_errno(err, "cannot open", path, code);
}

/* O_NONBLOCK: a named pipe must not hang us; it has no effect on regular files. */
static int open_regular(const char *path, unsigned flags, bool *direct) {
    int mode = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    *direct = flags & FILE_DIRECT;
    int fd = open(path, mode | (*direct ? O_DIRECT : 0));
    if (fd < 0 && *direct && errno == EINVAL) {
        *direct = false;
        fd = open(path, mode);
    }
    return fd;
}

/* Takes fd over, also if it fails. */
static nib_status wrap(int fd, const char *path, unsigned flags, bool direct, const struct stat *info,
                       file **out, nib_error *err) {
    file *f = mem_calloc(1, sizeof *f);
    char *copy = mem_strdup(path);
    if (!f || !copy) {
        mem_free(f);
        mem_free(copy);
        close(fd);
        return nib_fail_nomem(err, sizeof *f, "a file");
    }
    f->fd = fd;
    f->flags = flags;
    f->size = (uint64_t)info->st_size;
    f->changed = (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
    f->path = copy;
    atomic_init(&f->direct, direct);
    *out = f;
    return NIB_OK;
}

nib_status file_open(const char *path, unsigned flags, file **out, nib_error *err) {
    bool direct;
    int fd = open_regular(path, flags, &direct);
    if (fd < 0)
        return fail_open(err, path, errno);
    struct stat info;
    if (fstat(fd, &info)) {
        int code = errno;
        close(fd);
        return nib_fail_errno(err, "cannot read the properties of", path, code);
    }
    if (!S_ISREG(info.st_mode)) {
        close(fd);
        return nib_fail(err, NIB_E_MODEL, "%s: expected a regular file, found %s", path,
                        S_ISDIR(info.st_mode) ? "a folder" : "something else");
    }
    return wrap(fd, path, flags, direct, &info, out, err);
}

/* Makes a file there, without a name, of n_byte bytes. Returns -1 with errno. */
static int make_nameless(char *path, uint64_t n_byte, bool *direct) {
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return -1;
    unlink(path);
    int code = fault_hit(FAULT_WRITE) ? ENOSPC : posix_fallocate(fd, 0, (off_t)n_byte);
    if (code) {
        close(fd);
        errno = code;
        return -1;
    }
    *direct = fcntl(fd, F_SETFL, O_DIRECT) == 0;
    return fd;
}

static nib_status leave_some(const char *folder, uint64_t n_byte, nib_error *err) {
    const uint64_t left = path_disk_left(folder);
    char need[32], have[32];
    if (n_byte <= left)
        return NIB_OK;
    return nib_fail(err, NIB_E_NOFIT,
                    "%s: %s do not fit: the file system has %s more than the tenth that stays free", folder,
                    num_format_size(n_byte, need), num_format_size(left, have));
}

nib_status file_open_scratch(const char *folder, uint64_t n_byte, file **out, nib_error *err) {
    char *path = path_join(folder, "nibble-XXXXXX");
    bool direct;
    if (!path)
        return nib_fail_nomem(err, 0, "a path");
    nib_status status = path_make_folders(path, err);
    if (status == NIB_OK)
        status = leave_some(folder, n_byte, err);
    const int fd = status == NIB_OK ? make_nameless(path, n_byte, &direct) : -1;
    const struct stat info = {.st_size = (off_t)n_byte};
    if (status == NIB_OK)
        status = fd < 0 ? nib_fail_errno(err, "cannot make a file in", folder, errno)
                        : wrap(fd, folder, FILE_DIRECT, direct, &info, out, err);
    mem_free(path);
    return status;
}

void file_close(file *f) {
    if (!f)
        return;
    close(f->fd);
    mem_free(f->path);
    mem_free(f);
}

const char *file_path(const file *f) {
    return f->path;
}

uint64_t file_size(const file *f) {
    return f->size;
}

int64_t file_changed(const file *f) {
    return f->changed;
}

int file_handle(const file *f) {
    return f->fd;
}

bool file_is_direct(const file *f) {
    return atomic_load_explicit(&f->direct, memory_order_relaxed);
}

static nib_status fail_short(const file *f, uint64_t offset, uint64_t n_byte, uint64_t end, nib_error *err) {
    return nib_fail(err, NIB_E_MODEL, "%s: expected %llu bytes at offset %llu, the file ends at %llu",
                    f->path, (unsigned long long)n_byte, (unsigned long long)offset, (unsigned long long)end);
}

/* As pread, but continues after signals, and fails where a test injects a fault. A direct read that the file
 * system refuses is repeated without O_DIRECT. Returns -1 with errno. */
static ssize_t read_once(file *f, void *out, size_t n, uint64_t offset) {
    if (fault_hit(FAULT_READ)) {
        errno = EIO;
        return -1;
    }
    for (;;) {
        ssize_t got = pread(f->fd, out, NUM_MIN(n, MAX_READ), (off_t)offset);
        if (got >= 0 || errno != EINTR) {
            if (got >= 0 || errno != EINVAL || !file_is_direct(f))
                return got;
            int mode = fcntl(f->fd, F_GETFL);
            if (mode < 0 || fcntl(f->fd, F_SETFL, mode & ~O_DIRECT))
                return -1;
            atomic_store(&f->direct, false);
        }
    }
}

/* Reads at least `min` and at most n bytes, or fails. Direct files: out, n and offset are aligned. */
static nib_status read_span(file *f, char *out, size_t n, size_t min, uint64_t offset, nib_error *err) {
    size_t done = 0;
    while (done < min) {
        ssize_t got = read_once(f, out + done, n - done, offset + done);
        if (got < 0)
            return nib_fail_errno(err, "cannot read", f->path, errno);
        if (got == 0)
            return fail_short(f, offset, min, offset + done, err);
        done += (size_t)got;
        /* The next direct read must begin at an aligned offset; a read ends elsewhere only at a file's end.
         */
        if (file_is_direct(f) && done < min)
            done = done / FILE_ALIGN * FILE_ALIGN;
        if (file_is_direct(f) && (size_t)got < FILE_ALIGN && done < min)
            return fail_short(f, offset, min, offset + done + (size_t)got, err);
    }
    return NIB_OK;
}

/* Reads through an aligned buffer of `size` bytes. */
static nib_status read_bounced(file *f, char *buffer, size_t size, char *out, uint64_t offset,
                               uint64_t n_byte, nib_error *err) {
    while (n_byte > 0) {
        size_t skip = (size_t)(offset % FILE_ALIGN);
        size_t take = (size_t)NUM_MIN((uint64_t)(size - skip), n_byte);
        size_t whole = (skip + take + FILE_ALIGN - 1) / FILE_ALIGN * FILE_ALIGN;
        NIB_TRY(read_span(f, buffer, whole, skip + take, offset - skip, err));
        memcpy(out, buffer + skip, take);
        out += take;
        offset += take;
        n_byte -= take;
    }
    return NIB_OK;
}

static nib_status read_direct(file *f, char *out, uint64_t offset, uint64_t n_byte, nib_error *err) {
    alignas(FILE_ALIGN) char small[FILE_ALIGN];
    if (offset % FILE_ALIGN == 0 && (uintptr_t)out % FILE_ALIGN == 0) {
        uint64_t bulk =
            n_byte - n_byte % FILE_ALIGN; /* directly; the rest (a file's end) goes through `small` */
        NIB_TRY(read_span(f, out, bulk, bulk, offset, err));
        return read_bounced(f, small, sizeof small, out + bulk, offset + bulk, n_byte - bulk, err);
    }
    if (offset % FILE_ALIGN + n_byte <= sizeof small)
        return read_bounced(f, small, sizeof small, out, offset, n_byte, err);
    size_t size = (size_t)NUM_MIN((uint64_t)MAX_BOUNCE, (n_byte / FILE_ALIGN + 2) * FILE_ALIGN);
    char *buffer = mem_alloc_aligned(FILE_ALIGN, size);
    if (!buffer)
        return nib_fail_nomem(err, size, "a read buffer");
    nib_status status = read_bounced(f, buffer, size, out, offset, n_byte, err);
    mem_free(buffer);
    return status;
}

/* Drops the range from the page cache. */
static void drop_cache(const file *f, uint64_t offset, uint64_t n_byte) {
    posix_fadvise(f->fd, (off_t)offset, (off_t)n_byte, POSIX_FADV_DONTNEED);
}

nib_status file_read_at(file *f, void *out, uint64_t offset, uint64_t n_byte, nib_error *err) {
    uint64_t end;
    if (!num_add_u64(offset, n_byte, &end) || end > INT64_MAX || n_byte > SIZE_MAX)
        return fail_short(f, offset, n_byte, f->size, err);
    if (file_is_direct(f))
        return read_direct(f, out, offset, n_byte, err);
    NIB_TRY(read_span(f, out, n_byte, n_byte, offset, err));
    if (f->flags & FILE_DIRECT)
        drop_cache(f, offset, n_byte);
    return NIB_OK;
}

/* As pwrite, but continues after signals, and fails where a test injects a fault. */
static ssize_t write_once(const file *f, const char *data, size_t n, uint64_t offset) {
    if (fault_hit(FAULT_WRITE)) {
        errno = ENOSPC;
        return -1;
    }
    ssize_t wrote;
    do
        wrote = pwrite(f->fd, data, NUM_MIN(n, MAX_READ), (off_t)offset);
    while (wrote < 0 && errno == EINTR);
    return wrote;
}

nib_status file_write_at(file *f, const void *data, uint64_t offset, uint64_t n_byte, nib_error *err) {
    for (uint64_t done = 0; done < n_byte;) {
        const ssize_t wrote =
            write_once(f, (const char *)data + done, (size_t)(n_byte - done), offset + done);
        if (wrote <= 0)
            return nib_fail_errno(err, "cannot write to", f->path, wrote < 0 ? errno : EIO);
        done += (uint64_t)wrote;
    }
    if (!file_is_direct(f))
        drop_cache(f, offset, n_byte);
    return NIB_OK;
}

void file_will_need(file *f, uint64_t offset, uint64_t n_byte) {
    posix_fadvise(f->fd, (off_t)offset, (off_t)n_byte, POSIX_FADV_WILLNEED);
}

/* A read that must not wait shows whether a page is in the cache. Readahead is off, because a probe would
 * otherwise load more than the probed page. */
double file_cached(file *f) {
    enum { SAMPLES = 64 };
    char byte;
    struct iovec to = {&byte, 1};
    int found = 0;
    if (f->size == 0 || file_is_direct(f) || posix_fadvise(f->fd, 0, 0, POSIX_FADV_RANDOM))
        return 0;
    for (uint64_t i = 0; i < SAMPLES; i++)
        found += preadv2(f->fd, &to, 1, (off_t)(f->size / SAMPLES * i), RWF_NOWAIT) == 1;
    posix_fadvise(f->fd, 0, 0, POSIX_FADV_NORMAL);
    return (double)found / SAMPLES;
}

static nib_status read_stream(int fd, const char *path, uint64_t max, size_t expect, char **out,
                              size_t *n_byte, nib_error *err) {
    char *data = NULL;
    size_t cap = 0, n = 0;
    for (;;) {
        /* One byte for the NUL, and one so that the end of the file is seen without growing. */
        size_t want = NUM_MAX(expect + 2, n + 2);
        if (mem_grow((void **)&data, &cap, want, 1)) {
            mem_free(data);
            return nib_fail_nomem(err, want, path);
        }
        ssize_t got = -1;
        errno = EIO;
        if (!fault_hit(FAULT_READ))
            got = read(fd, data + n, NUM_MIN(cap - 1 - n, MAX_READ));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int code = errno;
            mem_free(data);
            return nib_fail_errno(err, "cannot read", path, code);
        }
        n += (size_t)got;
        if (n > max) {
            mem_free(data);
            return nib_fail(err, NIB_E_MODEL, "%s: expected at most %llu bytes, found more", path,
                            (unsigned long long)max);
        }
        if (got == 0)
            break;
    }
    data[n] = 0;
    *out = data;
    *n_byte = n;
    return NIB_OK;
}

nib_status file_read_all(const char *path, uint64_t max, char **out, size_t *n_byte, nib_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_open(err, path, errno);
    struct stat info;
    size_t expect = 0; /* a pipe has no size */
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
        expect = (size_t)NUM_MIN((uint64_t)info.st_size, max);
    nib_status status = read_stream(fd, path, max, expect, out, n_byte, err);
    close(fd);
    return status;
}
