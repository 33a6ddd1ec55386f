/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a listener with TLS does with the first bytes of a connection: any bytes at all, the words of a sound client of TLS of which some
 * are changed on their way, and any bytes inside a sound connection of TLS, where Quoit's handshake should come. A real transport listens;
 * the client is this file, which has the key where the input says so. Nobody here knows the job's secret: so whatever comes, nobody gets
 * in, the listener keeps nothing of it, and what it logs is printable. A client of which nothing was changed always stands.
 */
#include "fuzz.h"

#include "base/settings.h"
#include "transport/registry.h"
#include "transport/tcp/tcp.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROUNDS = 12, PART = 4096 };
enum { RAW, CHANGED, INSIDE, WAYS };

static quoit_transport_t *transport;
static ip_name_t listens_at;
static tls_context_t *client; /* with the same key */
static char key_path[32];

static void on_log(int level, const char *room, const char *text)
{
    (void)level;
    fuzz_check_text(room, 64);
    fuzz_check_text(text, ERROR_TEXT_CAPACITY);
}

static void on_error(const char *text) { error_set(QUOIT_ERR_INTERNAL, "%s", text); }

static const char *on_setting(const char *name)
{
    static const char *const settings[][2] = {{"TLS", "psk"}, {"INTERFACE", "lo"}, {"IP_FAMILY", "4"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (strcmp(name, settings[i][0]) == 0) return settings[i][1];
    return strcmp(name, "TLS_KEY_FILE") == 0 ? key_path : NULL;
}

/* ------------------------------------------------------------------ OpenSSL's memory */

/*
 * A handshake takes and gives back some thousand small pieces, in which a sanitizer's allocator spends half of an execution. They come from
 * lists of pieces here. What is as large as a record, where bytes of the peer and of our BIO go, stays the sanitizer's.
 */
enum { SMALLEST = 32, SIZES = 7, POOL = 1 << 20, PIECE_HEADER = 16 };

typedef union piece {
    union piece *next;            /* while it is free */
    struct { size_t bytes; int size; } held; /* size: which list; SIZES: from malloc */
    uint8_t header[PIECE_HEADER]; /* what follows is aligned as malloc's */
} piece_t;

static piece_t *pieces[SIZES];

/* LeakSanitizer's, where it is linked: what only OpenSSL's pieces point to is no leak. */
extern void __lsan_register_root_region(const void *begin, size_t bytes) __attribute__((weak));

static void *take_piece(size_t bytes, const char *file, int line)
{
    static uint8_t *pool;
    static size_t left;
    int size = 0;
    (void)file, (void)line;
    if (bytes == 0) return NULL;
    while (size < SIZES && (size_t)SMALLEST << size < bytes) size++;
    size_t whole = PIECE_HEADER + (size < SIZES ? (size_t)SMALLEST << size : bytes);
    piece_t *piece = size < SIZES ? pieces[size] : malloc(whole);
    if (size < SIZES && piece != NULL) {
        pieces[size] = piece->next;
    } else if (size < SIZES) {
        if (left < whole) {
            pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            fuzz_check(pool != MAP_FAILED);
            left = POOL;
            if (__lsan_register_root_region) __lsan_register_root_region(pool, POOL);
        }
        piece = (piece_t *)(void *)pool;
        pool += whole;
        left -= whole;
    }
    if (piece == NULL) return NULL;
    piece->held.bytes = bytes;
    piece->held.size = size;
    return piece + 1;
}

static void give_piece(void *pointer, const char *file, int line)
{
    (void)file, (void)line;
    if (pointer == NULL) return;
    piece_t *piece = (piece_t *)pointer - 1;
    int size = piece->held.size;
    if (size == SIZES) {
        free(piece);
        return;
    }
    piece->next = pieces[size];
    pieces[size] = piece;
}

static void *resize_piece(void *pointer, size_t bytes, const char *file, int line)
{
    void *other = take_piece(bytes, file, line);
    size_t before = pointer != NULL ? ((piece_t *)pointer - 1)->held.bytes : 0;
    if (other != NULL && before > 0) memcpy(other, pointer, before < bytes ? before : bytes);
    if (other != NULL || bytes == 0) give_piece(pointer, file, line);
    return other;
}

/* Before OpenSSL has taken any. The library is loaded at run time, as by transport/tls; without it this target does nothing. */
static void lend_memory(void)
{
    typedef int set_functions_t(void *(*)(size_t, const char *, int), void *(*)(void *, size_t, const char *, int), void (*)(void *, const char *, int));
    void *library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    set_functions_t *set = NULL;
    if (library != NULL) *(void **)&set = dlsym(library, "CRYPTO_set_mem_functions");
    if (set != NULL) (void)set(take_piece, resize_piece, give_piece);
}

/* ------------------------------------------------------------------ a listener, and connections to it */

/* False in a build without TLS. */
static bool open_transport(void)
{
    static const char key[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    uint8_t bytes[QUOIT_ADDRESS_CAPACITY];
    size_t length = sizeof bytes;
    ip_address_t address;
    int file = memfd_create("fuzz-key", MFD_CLOEXEC);
    fuzz_check(file >= 0 && fchmod(file, 0600) == 0 && write(file, key, strlen(key)) == (ssize_t)strlen(key));
    snprintf(key_path, sizeof key_path, "/proc/self/fd/%d", file);
    quoit_transport_environment_t environment = {.struct_size = sizeof environment, .self = {1, 2}, .doorbell = -1, .host = "here", .log = on_log,
                                                 .setting = on_setting, .error = on_error};
    quoit_status_t status = transport_tcp.open(&environment, &transport);
    if (status == QUOIT_ERR_INVALID && strstr(error_text(), "not built in")) return false;
    fuzz_check(status == QUOIT_OK && tls_context_create(&environment, "client", &client) == QUOIT_OK && client != NULL);
    fuzz_check(transport_tcp.listen(transport, bytes, &length) == QUOIT_OK && ip_address_parse(bytes, length, &address) == QUOIT_OK);
    listens_at = address.names[0];
    return true;
}

static void pump(void)
{
    quoit_event_t event;
    transport_tcp.disarm(transport); /* without connections it asks the kernel only now and then; but always after a sleep */
    for (int i = 0; i < 3 && transport_tcp.progress(transport) > 0; i++) {}
    fuzz_check(!transport_tcp.next_event(transport, &event)); /* nobody has proved anything */
}

/*
 * The end of such a connection is a reset, and each comes from another address of this host: a million of them would use up all ports
 * otherwise, where the listener is the first to close.
 */
static int dial(void)
{
    static uint32_t number;
    struct linger linger = {.l_onoff = 1};
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f010001 + number++ % 50000)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    fuzz_check(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    fuzz_check(setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one) == 0); /* a port of this address, not of all */
    fuzz_check(bind(fd, (struct sockaddr *)&own, sizeof own) == 0);
    if (connect(fd, &listens_at.any, ip_name_size(&listens_at)) != 0) {
        error_set_errno(QUOIT_ERR_SYSTEM, errno, "connect");
        fuzz_check(!"connected");
    }
    fuzz_check(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    pump();
    return fd;
}

static void say(int fd, const void *bytes, size_t length)
{
    (void)!send(fd, bytes, length, MSG_NOSIGNAL); /* it may have been turned away already */
    pump();
}

static void raw(int fd, fuzz_input_t *input)
{
    while (fuzz_left(input) > 0) {
        size_t length, most = fuzz_byte(input);
        const uint8_t *part = fuzz_take(input, most < 255 ? most + 1 : PART, &length);
        say(fd, part, length);
    }
}

/* What is to be read at `from` goes to `to`, with the next change of the input if it meets these bytes. True when it did. */
static bool carry(fuzz_input_t *input, int from, int to)
{
    uint8_t bytes[PART];
    ssize_t got = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0) return false;
    bool changes = input != NULL && fuzz_left(input) > 0;
    size_t at = changes ? (size_t)fuzz_number(input, 2) % (size_t)got : 0;
    uint8_t flip = changes ? fuzz_byte(input) : 0;
    bytes[at] ^= flip;
    (void)!send(to, bytes, (size_t)got, MSG_NOSIGNAL | MSG_DONTWAIT);
    return flip != 0;
}

/* A client of TLS, through a relay. Then what is left of the input inside. */
static void speak(int fd, fuzz_input_t *input, bool changing)
{
    int ends[2];
    bool changed = false;
    fuzz_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    tls_session_t *session = tls_session_create(client, ends[0], false);
    fuzz_check(session != NULL);
    int error = EAGAIN;
    for (int round = 0; round < ROUNDS && error == EAGAIN; round++) {
        error = tls_session_handshake(session);
        changed = carry(changing ? input : NULL, ends[1], fd) || changed;
        pump();
        changed = carry(changing ? input : NULL, fd, ends[1]) || changed;
    }
    fuzz_check(changed || error == 0);
    if (error == EPROTO) fuzz_check_text(tls_session_cause(session), ERROR_TEXT_CAPACITY);
    while (error == 0 && fuzz_left(input) > 0) {
        size_t length, done = 0;
        const uint8_t *part = fuzz_take(input, (size_t)fuzz_byte(input) + 1, &length);
        struct iovec iov = {.iov_base = (void *)(uintptr_t)part, .iov_len = length};
        if (length == 0) break;
        error = tls_session_send(session, &iov, 1, &done);
        if (error == 0) error = tls_session_flush(session);
        carry(NULL, ends[1], fd);
        pump();
    }
    tls_session_destroy(session);
    close(ends[0]);
    close(ends[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool opened, absent;
    fuzz_input_t input = fuzz_input(data, size);
    if (!opened) {
        opened = true;
        setenv("QUOIT_LOG", "error", 1); /* what is turned away is told, and not here */
        fuzz_check(settings_load() == QUOIT_OK);
        lend_memory();
        absent = !open_transport();
        (void)fuzz_descriptors_are_back();
    }
    if (absent) return 0;
    const tcp_transport_t *inner = (const tcp_transport_t *)transport;
    int way = fuzz_byte(&input) % WAYS, fd = dial();
    if (way == RAW) raw(fd, &input);
    else speak(fd, &input, way == CHANGED);
    close(fd);
    for (int i = 0; i < 100 && (inner->stranger_count > 0 || !fuzz_descriptors_are_back()); i++) pump();
    fuzz_check(inner->stranger_count == 0 && fuzz_descriptors_are_back());
    fuzz_check(table_count(inner->base.peers) == 0);
    return 0;
}

void fuzz_seeds(void)
{
    static const char http[] = "\0\377GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    uint8_t hello[2 + HANDSHAKE_CAPACITY] = {RAW, 255}, inside[2 + HANDSHAKE_CAPACITY] = {INSIDE, 255};
    handshake_t side;
    size_t length;
    fuzz_check(handshake_connect(&side, 9, (quoit_process_id_t){3, 4}, (quoit_process_id_t){1, 2}, 1, 0, "no secret", 9) == QUOIT_OK);
    const void *out = handshake_output(&side, &length);
    memcpy(hello + 2, out, length);
    memcpy(inside + 2, out, length);
    fuzz_seed("plain_hello", hello, 2 + length);
    fuzz_seed("http", http, sizeof http - 1);
    fuzz_seed("record_of_tls", "\0\377\26\3\1\0\5\1\0\0\1\3\25\3\3\0\2\2\50", 19);
    fuzz_seed("record_without_end", "\0\377\26\3\3\100\0\1\0\77\374\3\3", 13);
    fuzz_seed("nothing", "\0", 1);
    fuzz_seed("client_unchanged", "\1", 1);
    fuzz_seed("client_changed", "\1\14\0\1", 4);
    fuzz_seed("server_changed", "\1\0\0\0\40\0\1", 7);
    fuzz_seed("identity_changed", "\1\300\0\377", 4);
    fuzz_seed("hello_inside", inside, 2 + length);
    fuzz_seed("noise_inside", "\2\17what is this now?", 19);
}
