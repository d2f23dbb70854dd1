/* tools.h - calls of tools, in the form of the model's family. */
#ifndef NIB_SERVER_TOOLS_H
#define NIB_SERVER_TOOLS_H

#include "server/call.h"
#include "server/models.h"

/* Finds the form of its calls; before requests use it. */
nib_status tools_learn(served *m, const nib_engine *e, nib_error *err);
/* Adds a description of the tools if the template does not, and the grammar for their calls. False: *why. */
bool tools_resolve(const served *m, call *c, fault *why);

#endif
