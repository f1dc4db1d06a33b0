#include "orchestrator/service/http/http_tls.h"

#include <errno.h>
#include <microhttpd.h>
#include <string.h>

static int read_file(gnutls_datum_t *out, const char *what, const char *path, err *e) {
  errno = 0;
  int rc = gnutls_load_file(path, out);
  if (rc == GNUTLS_E_SUCCESS) return ERR_OK;
  return err_set(e, ERR_ARG, "cannot read the %s %.200s: %s", what, path,
                 errno ? strerror(errno) : gnutls_strerror(rc));
}

static int use_both(gnutls_certificate_credentials_t c, const http_tls *t, const char *certificate_file,
                    const char *key_file, err *e) {
  int rc = gnutls_certificate_set_x509_key_mem(c, &t->certificate, &t->key, GNUTLS_X509_FMT_PEM);
  if (rc >= 0) return ERR_OK;
  if (rc == GNUTLS_E_MEMORY_ERROR) return err_set(e, ERR_NOMEM, "out of memory for the TLS certificate");
  if (rc == GNUTLS_E_CERTIFICATE_KEY_MISMATCH)
    return err_set(e, ERR_ARG, "the key in %.150s is not that of the certificate in %.150s", key_file,
                   certificate_file);
  return err_set(e, ERR_ARG, "cannot use the certificate in %.150s with the key in %.150s: %s",
                 certificate_file, key_file, gnutls_strerror(rc));
}

int http_tls_read(http_tls *out, const char *certificate_file, const char *key_file, err *e) {
  gnutls_certificate_credentials_t tried;
  *out = (http_tls){0};
  if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
    return err_set(
        e, ERR_ARG,
        "libmicrohttpd %s here was built without TLS: use one that has it, or put a proxy that has "
        "it before the server",
        MHD_get_version());
  int rc = read_file(&out->certificate, "certificate", certificate_file, e);
  if (rc == ERR_OK) rc = read_file(&out->key, "key", key_file, e);
  if (rc == ERR_OK && gnutls_certificate_allocate_credentials(&tried) != GNUTLS_E_SUCCESS)
    rc = err_set(e, ERR_NOMEM, "out of memory for the TLS certificate");
  else if (rc == ERR_OK) {
    rc = use_both(tried, out, certificate_file, key_file, e);
    gnutls_certificate_free_credentials(tried);
  }
  if (rc) http_tls_fini(out);
  return rc;
}

void http_tls_fini(http_tls *t) {
  if (t->key.data) gnutls_memset(t->key.data, 0, t->key.size);
  gnutls_free(t->certificate.data);
  gnutls_free(t->key.data);
  *t = (http_tls){0};
}
