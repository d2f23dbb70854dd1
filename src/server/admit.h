/* admit.h - which requests are admitted; of a request whose headers have been read. */
#ifndef NIB_SERVER_ADMIT_H
#define NIB_SERVER_ADMIT_H

#include "server/exchange.h"

bool admit_host(const exchange *x); /* false: its Host has no valid form */
/* False: a web page of another site has sent it from a browser on this machine. Its Origin is foreign, or,
 * without keys, its Host is a foreign name that resolves to this machine (DNS rebinding). admit_host is true.
 */
bool admit_origin(const exchange *x);
bool admit_key(exchange *x); /* it has a known key, which also identifies the client */
/* Identifies a client without keys: by its machine, or, on this machine, by the connection. */
uint64_t admit_client(int fd);
uint64_t admit_machine(int fd); /* identifies another machine; 0: this one */

#endif
