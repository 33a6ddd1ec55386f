/* SPDX-License-Identifier: Apache-2.0 */
/**
 * OpenSSL as a table of functions, opened at run time: the library builds with its headers only (3.0 or newer) and runs without it.
 * One a process; it stays loaded. Only functions of 3.0 are in the table. Those that OpenSSL's headers write as macros over
 * SSL_CTX_ctrl are called through that.
 */
#ifndef QUOIT_TRANSPORT_TLS_LIBRARY_H
#define QUOIT_TRANSPORT_TLS_LIBRARY_H

#include "base/status.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

/* name of the function; all must be there */
#define TLS_FUNCTION_LIST(FUNCTION) \
    FUNCTION(OpenSSL_version_num) \
    FUNCTION(OPENSSL_init_ssl) \
    FUNCTION(ERR_clear_error) \
    FUNCTION(ERR_peek_error) \
    FUNCTION(ERR_reason_error_string) \
    FUNCTION(TLS_method) \
    FUNCTION(SSL_CTX_new) \
    FUNCTION(SSL_CTX_free) \
    FUNCTION(SSL_CTX_ctrl) \
    FUNCTION(SSL_CTX_set_options) \
    FUNCTION(SSL_CTX_set_ciphersuites) \
    FUNCTION(SSL_CTX_set_num_tickets) \
    FUNCTION(SSL_CTX_set_verify) \
    FUNCTION(SSL_CTX_set_session_id_context) \
    FUNCTION(SSL_CTX_use_certificate_chain_file) \
    FUNCTION(SSL_CTX_use_PrivateKey) \
    FUNCTION(SSL_CTX_check_private_key) \
    FUNCTION(SSL_CTX_load_verify_locations) \
    FUNCTION(SSL_CTX_set_psk_use_session_callback) \
    FUNCTION(SSL_CTX_set_psk_find_session_callback) \
    FUNCTION(SSL_new) \
    FUNCTION(SSL_free) \
    FUNCTION(SSL_set_bio) \
    FUNCTION(SSL_set_ex_data) \
    FUNCTION(SSL_get_ex_data) \
    FUNCTION(SSL_set_connect_state) \
    FUNCTION(SSL_set_accept_state) \
    FUNCTION(SSL_do_handshake) \
    FUNCTION(SSL_get_error) \
    FUNCTION(SSL_read_ex) \
    FUNCTION(SSL_has_pending) \
    FUNCTION(SSL_write_ex) \
    FUNCTION(SSL_key_update) \
    FUNCTION(SSL_shutdown) \
    FUNCTION(SSL_version) \
    FUNCTION(SSL_get_version) \
    FUNCTION(SSL_get_current_cipher) \
    FUNCTION(SSL_get_verify_result) \
    FUNCTION(SSL_session_reused) \
    FUNCTION(SSL_alert_desc_string_long) \
    FUNCTION(SSL_CIPHER_find) \
    FUNCTION(SSL_CIPHER_get_name) \
    FUNCTION(SSL_SESSION_new) \
    FUNCTION(SSL_SESSION_free) \
    FUNCTION(SSL_SESSION_set1_master_key) \
    FUNCTION(SSL_SESSION_set1_id_context) \
    FUNCTION(SSL_SESSION_set_cipher) \
    FUNCTION(SSL_SESSION_set_protocol_version) \
    FUNCTION(BIO_meth_new) \
    FUNCTION(BIO_meth_free) \
    FUNCTION(BIO_meth_set_read_ex) \
    FUNCTION(BIO_meth_set_write_ex) \
    FUNCTION(BIO_meth_set_ctrl) \
    FUNCTION(BIO_new) \
    FUNCTION(BIO_free) \
    FUNCTION(BIO_new_mem_buf) \
    FUNCTION(BIO_set_data) \
    FUNCTION(BIO_get_data) \
    FUNCTION(BIO_set_init) \
    FUNCTION(BIO_set_flags) \
    FUNCTION(BIO_clear_flags) \
    FUNCTION(PEM_read_bio_PrivateKey) \
    FUNCTION(EVP_PKEY_free) \
    FUNCTION(X509_verify_cert_error_string)

typedef struct tls_library {
#define TLS_FUNCTION_MEMBER(name) __typeof__(&name) name;
    TLS_FUNCTION_LIST(TLS_FUNCTION_MEMBER)
#undef TLS_FUNCTION_MEMBER
} tls_library_t;

/** Open it by file name or path; the first that opens is kept. ERR_INVALID with the reason: TLS was asked for and cannot be. */
quoit_status_t tls_library_open(const char *path, const tls_library_t **library);
/** The same table, for OpenSSL's calls back to us, once it is open. */
const tls_library_t *tls_library_get(void);

#endif
