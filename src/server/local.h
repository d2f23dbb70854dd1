/* local.h - requests without HTTP (server_ask). */
#ifndef NIB_SERVER_LOCAL_H
#define NIB_SERVER_LOCAL_H

#include "server/parts.h"

void local_drop(server *s); /* drops all requests of server_ask */

#endif
