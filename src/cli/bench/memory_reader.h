/* memory_reader.h - a separate process that reads memory on request, so that its buffer (512 MiB) does not
 * count in this process's peak. One thread at a time. */
#ifndef NIB_CLI_BENCH_MEMORY_READER_H
#define NIB_CLI_BENCH_MEMORY_READER_H

#include <stdbool.h>
#include <sys/types.h>

typedef struct memory_reader {
    pid_t child; /* 0: there is none */
    int end;     /* of the socket to it */
} memory_reader;

/* Starts the process with n_thread threads by a fork, so best while this process has one thread and little
 * memory. False: not possible, and every pass returns zero. The first pass takes longer, since it allocates
 * the buffer and finds the fastest access pattern. */
bool memory_reader_open(memory_reader *r, int n_thread);
/* Reads for about `seconds` and returns bytes a second. Blocks. Zero: the process is not running, for example
 * after an interruption. */
double memory_reader_pass(memory_reader *r, double seconds);
void memory_reader_close(memory_reader *r);

#endif
