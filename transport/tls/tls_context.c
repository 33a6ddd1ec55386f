/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context: the settings, the files they name, and OpenSSL's SSL_CTX made from them. Nothing that a file of keys holds goes into a text.
 */
#include "base/log.h"
#include "transport/tls/tls_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RENEW_AFTER ((uint64_t)64 << 30) /* bytes; RFC 8446 5.5: AES-GCM keys are good for 2^24.5 records, some 380 GiB */

/* A PSK's hash is that of its cipher suite, so with psk only suites of SHA-256 can be. */
#define PSK_SUITES "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
#define CERTIFICATE_SUITES PSK_SUITES ":TLS_AES_256_GCM_SHA384"
const unsigned char tls_psk_cipher[2] = {0x13, 0x01};

/* Without one a server that verifies peers takes no PSK; the same on both sides. */
static const unsigned char id_context[] = {'q', 'u', 'o', 'i', 't'};

static const char *const mode_names[TLS_MODES] = {"off", "psk", "certificates"};

typedef struct wish {
    const char *room; /* begins the texts */
    tls_mode_t mode;
    const char *key_file, *certificate, *private_key, *ca, *library; /* NULL where not set */
} wish_t;

/* ---------------------------------------------------------------- settings */

static const char *filled(const quoit_transport_environment_t *environment, const char *name)
{
    const char *text = environment->setting(name);
    return text != NULL && text[0] != 0 ? text : NULL;
}

static quoit_status_t need(const wish_t *wish, const char *value, const char *name, const char *what)
{
    if (value != NULL) return QUOIT_OK;
    return error_set(QUOIT_ERR_INVALID, "%s: QUOIT_TLS=%s needs QUOIT_%s, %s", wish->room, mode_names[wish->mode], name, what);
}

static quoit_status_t read_settings(const quoit_transport_environment_t *environment, wish_t *wish)
{
    const char *mode = filled(environment, "TLS");
    while (mode != NULL && wish->mode < TLS_MODES && strcmp(mode, mode_names[wish->mode]) != 0) wish->mode++;
    if (wish->mode == TLS_MODES) return error_set(QUOIT_ERR_INVALID, "QUOIT_TLS=%s: expected off, psk or certificates", mode);
    wish->key_file = filled(environment, "TLS_KEY_FILE");
    wish->certificate = filled(environment, "TLS_CERTIFICATE");
    wish->private_key = filled(environment, "TLS_PRIVATE_KEY");
    wish->ca = filled(environment, "TLS_CA");
    wish->library = filled(environment, "TLS_LIBRARY");
    quoit_status_t status = QUOIT_OK;
    if (wish->mode == TLS_PSK) {
        status = need(wish, wish->key_file, "TLS_KEY_FILE", "a file with a key that all ranks have (openssl rand -hex 32)");
    } else if (wish->mode == TLS_CERTIFICATES) {
        status = need(wish, wish->certificate, "TLS_CERTIFICATE", "this process's certificate");
        if (status == QUOIT_OK) status = need(wish, wish->private_key, "TLS_PRIVATE_KEY", "the certificate's key");
        if (status == QUOIT_OK) status = need(wish, wish->ca, "TLS_CA", "the certificates that peers' certificates must come from");
    } else if (wish->key_file != NULL || wish->certificate != NULL || wish->private_key != NULL) {
        log_warn(wish->room, "keys for TLS are set, but QUOIT_TLS is off: what goes between hosts is plain text");
    }
    return status;
}

/* ---------------------------------------------------------------- files of keys */

static quoit_status_t check_owner(const wish_t *wish, const char *name, const char *path, int fd)
{
    struct stat file;
    if (fstat(fd, &file) != 0) return error_set_errno(QUOIT_ERR_INVALID, errno, "%s: QUOIT_%s=%s", wish->room, name, path);
    if (!S_ISREG(file.st_mode)) return error_set(QUOIT_ERR_INVALID, "%s: QUOIT_%s=%s is no regular file", wish->room, name, path);
    if (file.st_uid != geteuid() && file.st_uid != 0)
        return error_set(QUOIT_ERR_INVALID, "%s: QUOIT_%s=%s belongs to user %u; it must be yours (user %u) or root's", wish->room, name, path,
                         (unsigned)file.st_uid, (unsigned)geteuid());
    if (file.st_mode & 077)
        return error_set(QUOIT_ERR_INVALID, "%s: QUOIT_%s=%s can be reached by others (mode %04o): a key that they know is none; chmod 600 %s",
                         wish->room, name, path, (unsigned)file.st_mode & 07777u, path);
    return QUOIT_OK;
}

/* Its bytes, at most `capacity` of them; the caller wipes them. */
static quoit_status_t read_secret(const wish_t *wish, const char *name, const char *path, char *bytes, size_t capacity, size_t *length)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) return error_set_errno(QUOIT_ERR_INVALID, errno, "%s: cannot read QUOIT_%s=%s", wish->room, name, path);
    quoit_status_t status = check_owner(wish, name, path, fd);
    size_t total = 0;
    while (status == QUOIT_OK) {
        ssize_t got = read(fd, bytes + total, capacity - total);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = error_set_errno(QUOIT_ERR_INVALID, errno, "%s: cannot read QUOIT_%s=%s", wish->room, name, path);
        if (got <= 0) break;
        total += (size_t)got;
        if (total == capacity)
            status = error_set(QUOIT_ERR_INVALID, "%s: QUOIT_%s=%s is longer than any key", wish->room, name, path);
    }
    close(fd);
    if (status == QUOIT_OK) *length = total;
    return status;
}

static int digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool parse_key(const char *text, size_t length, tls_context_t *context)
{
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == '\r' || text[length - 1] == ' ')) length--;
    if (length < 2 * TLS_KEY_LEAST || length > 2 * TLS_KEY_CAPACITY || length % 2 != 0) return false;
    for (size_t i = 0; i < length; i += 2) {
        int high = digit(text[i]), low = digit(text[i + 1]);
        if (high < 0 || low < 0) return false;
        context->key[i / 2] = (uint8_t)(high << 4 | low);
    }
    context->key_length = length / 2;
    return true;
}

static quoit_status_t load_psk(tls_context_t *context, const wish_t *wish)
{
    char text[4 * TLS_KEY_CAPACITY];
    size_t length = 0;
    quoit_status_t status = read_secret(wish, "TLS_KEY_FILE", wish->key_file, text, sizeof text, &length);
    if (status == QUOIT_OK && !parse_key(text, length, context))
        status = error_set(QUOIT_ERR_INVALID,
                           "%s: QUOIT_TLS_KEY_FILE=%s does not hold %d to %d hexadecimal digits and nothing else; passwords can be guessed: make "
                           "a key with openssl rand -hex 32",
                           wish->room, wish->key_file, 2 * TLS_KEY_LEAST, 2 * TLS_KEY_CAPACITY);
    explicit_bzero(text, sizeof text);
    return status;
}

/* ---------------------------------------------------------------- the pre-shared key, as OpenSSL asks for it */

static SSL_SESSION *psk_session(SSL *ssl)
{
    const tls_library_t *library = tls_library_get();
    const tls_session_t *session = library->SSL_get_ex_data(ssl, 0);
    const SSL_CIPHER *cipher = library->SSL_CIPHER_find(ssl, tls_psk_cipher);
    SSL_SESSION *made = library->SSL_SESSION_new();
    if (made != NULL && cipher != NULL && library->SSL_SESSION_set_cipher(made, cipher) == 1 &&
        library->SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) == 1 &&
        library->SSL_SESSION_set1_id_context(made, id_context, sizeof id_context) == 1 &&
        library->SSL_SESSION_set1_master_key(made, session->context->key, session->context->key_length) == 1)
        return made;
    library->SSL_SESSION_free(made);
    return NULL;
}

/* Client. A hash is named when the server has chosen a suite already; ours are all of one hash. */
static int psk_use(SSL *ssl, const EVP_MD *hash, const unsigned char **identity, size_t *length, SSL_SESSION **session)
{
    (void)hash;
    *identity = (const unsigned char *)TLS_PSK_IDENTITY;
    *length = strlen(TLS_PSK_IDENTITY);
    *session = psk_session(ssl);
    return *session != NULL;
}

/* Server. Without a session OpenSSL looks for another way, and there is none. */
static int psk_find(SSL *ssl, const unsigned char *identity, size_t length, SSL_SESSION **session)
{
    bool known = length == strlen(TLS_PSK_IDENTITY) && memcmp(identity, TLS_PSK_IDENTITY, length) == 0;
    *session = known ? psk_session(ssl) : NULL;
    return !known || *session != NULL;
}

/* ---------------------------------------------------------------- certificates */

static quoit_status_t refused(const tls_context_t *context, const wish_t *wish, const char *name, const char *path)
{
    const char *reason = context->library->ERR_reason_error_string(context->library->ERR_peek_error());
    error_set(QUOIT_ERR_INVALID, "%s: QUOIT_%s=%s: %s", wish->room, name, path, reason != NULL ? reason : "OpenSSL does not accept it");
    context->library->ERR_clear_error();
    return QUOIT_ERR_INVALID;
}

/* Never ask at the terminal. */
static int no_password(char *buffer, int size, int writing, void *user)
{
    (void)buffer, (void)size, (void)writing;
    *(bool *)user = true;
    return -1;
}

static quoit_status_t load_private_key(tls_context_t *context, const wish_t *wish)
{
    const tls_library_t *library = context->library;
    BIO *bio = NULL;
    EVP_PKEY *key = NULL;
    bool encrypted = false;
    size_t length = 0;
    char *text = malloc(TLS_FILE_CAPACITY);
    if (text == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "%s: no memory for a private key", wish->room);
    quoit_status_t status = read_secret(wish, "TLS_PRIVATE_KEY", wish->private_key, text, TLS_FILE_CAPACITY, &length);
    if (status != QUOIT_OK) goto wipe;
    bio = library->BIO_new_mem_buf(text, (int)length);
    if (bio != NULL) key = library->PEM_read_bio_PrivateKey(bio, NULL, no_password, &encrypted);
    if (encrypted)
        status = error_set(QUOIT_ERR_INVALID, "%s: QUOIT_TLS_PRIVATE_KEY=%s is encrypted, and there is nobody to ask for its password", wish->room,
                           wish->private_key);
    else if (key == NULL || library->SSL_CTX_use_PrivateKey(context->ssl, key) != 1 || library->SSL_CTX_check_private_key(context->ssl) != 1)
        status = refused(context, wish, "TLS_PRIVATE_KEY", wish->private_key);
    library->ERR_clear_error();
    library->EVP_PKEY_free(key);
    library->BIO_free(bio);
wipe:
    explicit_bzero(text, TLS_FILE_CAPACITY);
    free(text);
    return status;
}

static quoit_status_t load_certificates(tls_context_t *context, const wish_t *wish)
{
    const tls_library_t *library = context->library;
    if (library->SSL_CTX_use_certificate_chain_file(context->ssl, wish->certificate) != 1)
        return refused(context, wish, "TLS_CERTIFICATE", wish->certificate);
    if (library->SSL_CTX_load_verify_locations(context->ssl, wish->ca, NULL) != 1) return refused(context, wish, "TLS_CA", wish->ca);
    return load_private_key(context, wish);
}

/* ---------------------------------------------------------------- the context */

static bool set_up(tls_context_t *context)
{
    const tls_library_t *library = context->library;
    bool psk = context->mode == TLS_PSK;
    context->method = tls_bio_method(library);
    context->ssl = library->SSL_CTX_new(library->TLS_method());
    if (context->method == NULL || context->ssl == NULL) return false;
    library->SSL_CTX_set_options(context->ssl, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    library->SSL_CTX_ctrl(context->ssl, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, NULL);
    library->SSL_CTX_ctrl(context->ssl, SSL_CTRL_SET_READ_AHEAD, 1, NULL);
    library->SSL_CTX_set_verify(context->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    if (psk) {
        library->SSL_CTX_set_psk_use_session_callback(context->ssl, psk_use);
        library->SSL_CTX_set_psk_find_session_callback(context->ssl, psk_find);
    }
    return library->SSL_CTX_ctrl(context->ssl, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL) == 1 &&
           library->SSL_CTX_ctrl(context->ssl, SSL_CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION, NULL) == 1 &&
           library->SSL_CTX_set_ciphersuites(context->ssl, psk ? PSK_SUITES : CERTIFICATE_SUITES) == 1 &&
           library->SSL_CTX_set_num_tickets(context->ssl, 0) == 1 &&
           library->SSL_CTX_set_session_id_context(context->ssl, id_context, sizeof id_context) == 1;
}

void tls_context_destroy(tls_context_t *context)
{
    if (context == NULL) return;
    context->library->SSL_CTX_free(context->ssl);
    context->library->BIO_meth_free(context->method);
    explicit_bzero(context, sizeof *context);
    free(context);
}

quoit_status_t tls_context_create(const quoit_transport_environment_t *environment, const char *room, tls_context_t **result)
{
    wish_t wish = {.room = room};
    const tls_library_t *library;
    quoit_status_t status = read_settings(environment, &wish);
    if (status != QUOIT_OK) return status;
    if (wish.mode == TLS_OFF) {
        *result = NULL;
        return QUOIT_OK;
    }
    status = tls_library_open(wish.library != NULL ? wish.library : "libssl.so.3", &library);
    if (status != QUOIT_OK) return error_prefix(status, "%s: QUOIT_TLS=%s", room, mode_names[wish.mode]);
    tls_context_t *context = calloc(1, sizeof *context);
    if (context == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "%s: no memory for TLS", room);
    context->library = library;
    context->mode = wish.mode;
    context->renew_after = RENEW_AFTER;
    library->ERR_clear_error();
    if (!set_up(context)) {
        const char *reason = library->ERR_reason_error_string(library->ERR_peek_error());
        status = error_set(QUOIT_ERR_INVALID, "%s: OpenSSL cannot be set up for TLS 1.3: %s", room, reason != NULL ? reason : "it says no reason");
        library->ERR_clear_error();
    } else {
        status = wish.mode == TLS_PSK ? load_psk(context, &wish) : load_certificates(context, &wish);
    }
    if (status != QUOIT_OK) {
        tls_context_destroy(context);
        return status;
    }
    log_info(room, "connections between hosts are TLS 1.3, QUOIT_TLS=%s", mode_names[wish.mode]);
    *result = context;
    return QUOIT_OK;
}

const char *tls_context_mode(const tls_context_t *context) { return mode_names[context->mode]; }
