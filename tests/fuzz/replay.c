/* replay.c - runs a fuzz target over the files of the folders (or the files) it is given, and over nothing at
 * all: the corpus, crashes included, is part of the normal test run. Says "ok FILE" for each, as run-tests.sh
 * counts it; a crash ends the program and is counted there. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path) {
    FILE *f = fopen(path, "rb");
    struct stat info;
    if (!f || fstat(fileno(f), &info)) {
        printf("not ok %s: cannot be read\n", path);
        if (f)
            fclose(f);
        return 1;
    }
    /* Exactly as large as the input, so that a sanitizer sees one byte too many. */
    size_t size = (size_t)info.st_size;
    uint8_t *data = malloc(size ? size : 1);
    int bad = !data || fread(data, 1, size, f) != size;
    fclose(f);
    if (bad) {
        printf("not ok %s: cannot be read\n", path);
    } else {
        LLVMFuzzerTestOneInput(data, size);
        printf("ok %s\n", path);
    }
    free(data);
    fflush(stdout);
    return bad;
}

static int replay(const char *path) {
    DIR *folder = opendir(path);
    if (!folder)
        return replay_file(path);
    int bad = 0;
    for (struct dirent *e; (e = readdir(folder));) {
        char name[4096];
        if (e->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        bad |= replay(name);
    }
    closedir(folder);
    return bad;
}

int main(int argc, char **argv) {
    int bad = 0;
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    printf("ok empty input\n");
    for (int i = 1; i < argc; i++)
        bad |= replay(argv[i]);
    return bad;
}
