/* openapi.h - the description of all routes, for programs. */
#ifndef NIB_SERVER_OPENAPI_H
#define NIB_SERVER_OPENAPI_H

#include "server/exchange.h"

void openapi_describe(exchange *x);

#endif
