/* shared.c - see shared.h. */
#include "cluster/shared.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static nib_status map(shared_sums *s, int file, int rank, int n_rank, int64_t width, const canceller *gone,
                      nib_error *err) {
    s->at = mem_map_shared(file, s->n_byte);
    if (!s->at)
        return nib_fail_nomem(err, s->n_byte, "the sums of ranks");
    mem_touch(s->at, s->n_byte);
    return sums_open(s->at, rank, n_rank, width, gone, &s->of, err);
}

nib_status shared_make(shared_sums *s, int n_rank, int64_t width, const canceller *gone, nib_error *err) {
    *s = (shared_sums){.n_byte = sums_bytes(n_rank, width), .file = memfd_create("nibble-sums", MFD_CLOEXEC)};
    if (s->file >= 0)
        snprintf(s->path, sizeof s->path, "/proc/%ld/fd/%d", (long)getpid(), s->file);
    if (s->file < 0 || ftruncate(s->file, (off_t)s->n_byte))
        return nib_fail(err, NIB_E_FAILED, "the sums of ranks: expected shared memory of %llu bytes: %s",
                        (unsigned long long)s->n_byte, strerror(errno));
    return map(s, s->file, 0, n_rank, width, gone, err);
}

nib_status shared_join(shared_sums *s, const char *path, int rank, int n_rank, int64_t width,
                       const canceller *gone, nib_error *err) {
    *s = (shared_sums){.n_byte = sums_bytes(n_rank, width), .file = -1};
    struct stat is;
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return nib_fail(err, NIB_E_FAILED, "the sums of ranks: expected the first rank's memory %s: %s", path,
                        strerror(errno));
    const nib_status status = fstat(file, &is) || (uint64_t)is.st_size < s->n_byte
                                  ? nib_fail(err, NIB_E_FAILED, "%s: expected %llu bytes, found fewer", path,
                                             (unsigned long long)s->n_byte)
                                  : map(s, file, rank, n_rank, width, gone, err);
    close(file);
    return status;
}

void shared_close(shared_sums *s) {
    sums_close(s->of);
    mem_unmap(s->at, s->n_byte);
    if (s->path[0] && s->file >= 0)
        close(s->file);
    memset(s, 0, sizeof *s);
}
