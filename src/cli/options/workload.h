/* workload.h - the lengths of many requests, and the plan for them. */
#ifndef NIB_CLI_OPTIONS_WORKLOAD_H
#define NIB_CLI_OPTIONS_WORKLOAD_H

#include "cli/cli.h"
#include "nib_tools.h"

#include <jansson.h>

/* Estimates the lengths of a batch file's requests from a sample of them: 4 bytes of text are a token, and an
 * answer has the tokens that the request allows. The file's position stays. n_request is n_line. False: it
 * has no request, or cannot be read twice. */
bool workload_of_file(int fd, int64_t n_line, nib_workload *out);

/* {"kind","block","micro_batch","attend"}; NULL: no memory. */
json_t *workload_schedule(const nib_flow *f);
/* nibble plan --workload. Returns an exit code. */
int workload_plan(cli_args *args, const char *model, const nib_engine_options *options);

#endif
