/* client.h - the client of a server in the same process: asks, notes the replies, and ends the server. */
#ifndef NIB_TESTS_FAULTS_CLIENT_H
#define NIB_TESTS_FAULTS_CLIENT_H

#include "faults/run.h"

/* Starts its thread. The server prints its address into fd's other end. */
void client_start(int fd, run_result *into);

#endif
