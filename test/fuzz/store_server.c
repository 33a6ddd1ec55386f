/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server of a TCP store with three clients that send what they like, in any portions. Whatever comes back is a row of whole replies;
 * a value that one client set, and that was acknowledged, is what another gets.
 */
#include "fuzz.h"

#include "base/store_internal.h"
#include "base/store_server_internal.h"
#include "base/store_wire.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENTS = 3, STEPS = 64 };

typedef struct client {
    int fd;
    uint8_t got[8192]; /* replies, from the beginning of one on */
    size_t length;
    bool ended;
    int replies;
} client_t;

static void take_replies(client_t *client)
{
    while (!client->ended) {
        ssize_t got = recv(client->fd, client->got + client->length, sizeof client->got - client->length, MSG_DONTWAIT);
        if (got < 0) fuzz_check(errno == EAGAIN || errno == ECONNRESET);
        client->ended = got == 0 || (got < 0 && errno == ECONNRESET);
        if (got <= 0) return;
        client->length += (size_t)got;
        store_frame_t frame;
        quoit_status_t status;
        while ((status = store_frame_parse(client->got, client->length, &frame)) == QUOIT_OK) {
            fuzz_check(frame.kind == STORE_REPLY && STORE_FRAME_SIZE + frame.value_length <= sizeof client->got);
            size_t whole = STORE_FRAME_SIZE + frame.value_length;
            if (client->length < whole) break;
            client->replies++;
            client->length -= whole;
            memmove(client->got, client->got + whole, client->length);
        }
        fuzz_check(status == QUOIT_OK || status == QUOIT_ERR_AGAIN);
    }
}

static void say(client_t *client, const void *bytes, size_t length)
{
    if (!client->ended && length > 0) (void)send(client->fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void say_request(client_t *client, store_kind_t kind, uint8_t key, size_t value, int32_t argument)
{
    uint8_t bytes[STORE_FRAME_SIZE + 4 + 256] = {0};
    store_frame_t frame = {.kind = kind, .key_length = kind == STORE_HELLO ? 0 : 4, .value_length = value, .argument = argument};
    store_frame_write(&frame, bytes);
    memcpy(bytes + STORE_FRAME_SIZE, "key0", 4);
    bytes[STORE_FRAME_SIZE + 3] = (uint8_t)('0' + key % 4);
    memset(bytes + STORE_FRAME_SIZE + frame.key_length, key, value);
    say(client, bytes, STORE_FRAME_SIZE + frame.key_length + value);
}

static void step(fuzz_input_t *input, client_t clients[CLIENTS])
{
    uint8_t what = fuzz_byte(input);
    client_t *client = &clients[what >> 6 & 1 ? 2 : what >> 7];
    size_t length;
    const uint8_t *bytes;
    switch (what % 8) {
    case 0: say_request(client, STORE_HELLO, 0, 0, 1); break;
    case 1: say_request(client, STORE_SET, fuzz_byte(input), fuzz_byte(input), 0); break;
    case 2: say_request(client, STORE_GET, fuzz_byte(input), 0, 0); break;
    case 3: say_request(client, STORE_GET, fuzz_byte(input), 0, 60000); break;
    case 4: {
        uint8_t header[STORE_FRAME_SIZE];
        store_frame_t frame = {.kind = (store_kind_t)fuzz_byte(input), .key_length = fuzz_byte(input), .value_length = (size_t)fuzz_number(input, 3), .argument = (int32_t)fuzz_number(input, 2)};
        store_frame_write(&frame, header);
        say(client, header, sizeof header);
        break;
    }
    case 5: shutdown(client->fd, what & 8 ? SHUT_WR : SHUT_RDWR); break;
    default:
        bytes = fuzz_take(input, fuzz_byte(input), &length);
        say(client, bytes, length);
        break;
    }
}

/* Two more clients, after all that: the server still serves. */
static void check_alive(store_server_t *server)
{
    client_t sound = {.fd = -1};
    int fds[2];
    store_address_t from = {.length = sizeof(struct sockaddr_in)};
    ((struct sockaddr_in *)&from.address)->sin_family = AF_INET;
    fuzz_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    store_server_adopt(server, fds[0], &from);
    sound.fd = fds[1];
    say_request(&sound, STORE_HELLO, 0, 0, 1);
    fuzz_check(store_server_step(server, 0));
    say_request(&sound, STORE_SET, 1, 10, 0);
    fuzz_check(store_server_step(server, 0));
    say_request(&sound, STORE_GET, 1, 0, 0);
    fuzz_check(store_server_step(server, 0));
    take_replies(&sound);
    fuzz_check(sound.replies == 3 && !sound.ended);
    close(sound.fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static client_t clients[CLIENTS];
    fuzz_input_t input = fuzz_input(data, size);
    store_server_t *server = NULL;
    store_address_t from = {.length = sizeof(struct sockaddr_in)};
    ((struct sockaddr_in *)&from.address)->sin_family = AF_INET;
    setenv("QUOIT_LOG", "error", 1);
    fuzz_check(store_server_create(&server) == QUOIT_OK);
    for (int i = 0; i < CLIENTS; i++) {
        int fds[2];
        fuzz_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
        clients[i] = (client_t){.fd = fds[1]};
        store_server_adopt(server, fds[0], &from);
    }
    for (int i = 0; i < STEPS && fuzz_left(&input) > 0; i++) {
        step(&input, clients);
        fuzz_check(store_server_step(server, 0));
        for (int c = 0; c < CLIENTS; c++) take_replies(&clients[c]);
    }
    check_alive(server);
    store_server_free(server);
    for (int i = 0; i < CLIENTS; i++) close(clients[i].fd);
    return 0;
}

void fuzz_seeds(void)
{
    fuzz_seed("set_and_get", "\0\1\1\12\200\202\1", 7);
    fuzz_seed("get_waits", "\0\3\1\200\201\1\12", 7);
    fuzz_seed("waiter_leaves", "\0\3\1\5\200\201\1\12", 8);
    fuzz_seed("no_hello", "\1\1\12", 3);
    fuzz_seed("hello_twice", "\0\0", 2);
    fuzz_seed("portions", "\6\5QTST\1\6\13\1\0\0\0\0\0\0\1\0\0\0", 20);
    fuzz_seed("large_announced", "\0\4\2\4\0\0\377\0\0\6\6key0ab", 17);
    fuzz_seed("http", "\6\22GET / HTTP/1.1\r\n\r\n", 20);
}
