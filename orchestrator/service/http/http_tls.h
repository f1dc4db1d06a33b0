/* http_tls.h - the certificate and the key with which a server speaks TLS. */
#pragma once

#include "common/base/err.h"
#include <gnutls/gnutls.h>

/* What clients may speak: TLS 1.2 and 1.3, GnuTLS's usual ciphers. */
#define HTTP_TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

typedef struct http_tls {          /* all zero: none */
  gnutls_datum_t certificate, key; /* PEM, each with a NUL behind it; the certificate may be a chain */
} http_tls;

/* Reads both files, and tries whether they belong together. ERR_ARG names the file at fault, or says that
 * libmicrohttpd was built without TLS; ERR_NOMEM. */
int http_tls_read(http_tls *out, const char *certificate_file, const char *key_file, err *e);
void http_tls_fini(http_tls *t);
