/* memory_reader.h - a separate process that reads memory on request, so that its buffer (512 MiB) does not
 * count in this process's peak. One thread at a time. */
#ifndef NIB_CLI_MEMORY_READER_H
#define NIB_CLI_MEMORY_READER_H

#include <stdbool.h>
#include <sys/types.h>

typedef struct memory_reader {
    pid_t child; /* 0: there is none */
    int end;     /* of the socket to it */
} memory_reader;

/* Starts it, with so many threads; best while this process has one thread and little memory, since it is a
 * fork. False: not possible, and every pass is zero. The first pass takes longer: memory is taken and the
 * fastest pattern found then. */
bool memory_reader_open(memory_reader *r, int n_thread);
/* Bytes a second of reading for about `seconds`. Zero: there is no such process (any more), as after an
 * interruption. */
double memory_reader_pass(memory_reader *r, double seconds);
void memory_reader_close(memory_reader *r);

#endif
