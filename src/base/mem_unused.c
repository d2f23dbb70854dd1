/* mem_unused.c - returns memory that is not in use to the system. A page of code of a private mapping that
 * was written to (by a relocation, or a debugger's breakpoint) is a copy, and stays. */
#include "base/mem.h"
#include "base/num.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* An entry of /proc/self/pagemap: Linux, Documentation/admin-guide/mm/pagemap.rst. */
#define PAGE_PRESENT   (UINT64_C(1) << 63)
#define PAGE_OF_A_FILE (UINT64_C(1) << 61)

static atomic_bool kept;

void mem_keep_code(void) {
    atomic_store(&kept, true);
}

static void discard_pages(uintptr_t from, uintptr_t to) {
    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

static void discard_mapping(int pagemap, uintptr_t from, uintptr_t to, uintptr_t page) {
    uint64_t entry[256];
    uintptr_t run = from; /* [run, from) can be discarded */
    while (from < to) {
        const size_t n = NUM_MIN((to - from) / page, NUM_COUNT(entry)), n_byte = n * sizeof *entry;
        if (pread(pagemap, entry, n_byte, (off_t)(from / page * sizeof *entry)) != (ssize_t)n_byte)
            break;
        for (size_t i = 0; i < n; i++, from += page)
            if (!(entry[i] & PAGE_PRESENT) || !(entry[i] & PAGE_OF_A_FILE)) {
                discard_pages(run, from);
                run = from + page;
            }
    }
    discard_pages(run, from);
}

/* A private mapping of a file that cannot be written. */
typedef struct mapping {
    uintptr_t from, to;
    unsigned long inode;
    bool runs; /* is executable */
} mapping;

static bool parse_mapping(const char *line, mapping *out) {
    unsigned long from, to;
    char access[5];
    if (sscanf(line, "%lx-%lx %4s %*x %*x:%*x %lu", &from, &to, access, &out->inode) != 4)
        return false;
    out->from = from;
    out->to = to;
    out->runs = access[2] == 'x';
    return out->inode && access[0] == 'r' && access[1] == '-' && access[3] == 'p';
}

/* Program files have an executable mapping, with constants before and after it. Mappings of other files are
 * data of somebody else. */
static void discard_code(void) {
    const int pagemap = atomic_load(&kept) ? -1 : open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    FILE *maps = pagemap < 0 ? NULL : fopen("/proc/self/maps", "re");
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    mapping m, before = {.inode = 0};
    unsigned long program = 0; /* inode of the latest file with an executable mapping */
    char part[256];            /* of a line, whose end is a path of any length */
    for (bool begins = true; maps && fgets(part, sizeof part, maps); begins = strchr(part, '\n')) {
        if (!begins || !parse_mapping(part, &m))
            continue;
        if (m.runs && before.inode == m.inode)
            discard_mapping(pagemap, before.from, before.to, page);
        if (m.runs || m.inode == program)
            discard_mapping(pagemap, m.from, m.to, page);
        program = m.runs ? m.inode : program;
        before = m;
    }
    if (maps)
        fclose(maps);
    if (pagemap >= 0)
        close(pagemap);
}

void mem_return_unused(void) {
    malloc_trim(0);
    discard_code();
}
