/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One transport's data path, to be run under callgrind by budget_test.cc: two transports of this process, driven by one thread. For each
 * size some rounds of one message; what the library executes between post and end is collected, and written with the name of size and
 * round. Before each call of progress the machine is given time, so that whatever moves beside this thread (the kernel, UCX's thread, the
 * fake device's) has moved: then a round takes the same calls each time.
 *
 *   budget_path TRANSPORT [FAKE_LIBIBVERBS]
 *   budget_path operation                     an allreduce of 16 bytes on one rank: what an operation costs where nothing moves
 */
#include "base/clock.h"
#include "base/hmac.h"
#include "quoit/quoit.h"
#include "transport/registry.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

enum { ROUNDS = 8, LARGEST = 256 << 10, LIMIT_MS = 60000, PAUSE_US = 1000 };

typedef struct budget_side {
    quoit_process_id_t id;
    quoit_transport_t *transport;
    quoit_endpoint_t *endpoint;
    char address[QUOIT_ADDRESS_CAPACITY];
    size_t length;
} budget_side_t;

static const quoit_transport_ops_t *budget_ops;
static budget_side_t budget_side[2];
static int (*budget_is_quiet)(void); /* NULL: nobody tells */
static unsigned char budget_bytes[2][LARGEST];

static void budget_fail(const char *what)
{
    fprintf(stderr, "budget_path: %s: %s\n", what, error_text());
    exit(1);
}

static void budget_check(quoit_status_t status, const char *what)
{
    if (status != QUOIT_OK) budget_fail(what);
}

/* The fake device says when it is done; of the rest nobody does. */
static void budget_rest(void)
{
    uint64_t deadline = clock_deadline(LIMIT_MS);
    usleep(PAUSE_US);
    while (budget_is_quiet != NULL && !budget_is_quiet() && clock_now() < deadline) usleep(PAUSE_US);
}

static void budget_progress(void)
{
    quoit_event_t event;
    budget_rest();
    for (int i = 0; i < 2; i++) {
        if (i > 0 && budget_is_quiet != NULL) budget_rest(); /* what the first has posted */
        CALLGRIND_TOGGLE_COLLECT;
        budget_ops->progress(budget_side[i].transport);
        CALLGRIND_TOGGLE_COLLECT;
        while (budget_ops->next_event(budget_side[i].transport, &event)) {}
    }
}

static void budget_open(const char *name)
{
    budget_ops = transport_registry_find(name);
    if (budget_ops == NULL) budget_fail("no such transport");
    for (int i = 0; i < 2; i++) {
        budget_side_t *side = &budget_side[i];
        quoit_transport_environment_t environment;
        budget_check(random_bytes(&side->id, sizeof side->id), "random bytes");
        transport_environment_init(&environment, side->id, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "here");
        budget_check(budget_ops->open(&environment, &side->transport), "open");
        side->length = sizeof side->address;
        budget_check(budget_ops->listen(side->transport, side->address, &side->length), "listen");
        budget_check(budget_ops->trust(side->transport, 7, "secret", 6), "trust");
    }
    for (int i = 0; i < 2; i++) {
        budget_side_t *other = &budget_side[1 - i];
        quoit_peer_t peer = {other->id, 7, other->address, other->length, "the other side", LIMIT_MS};
        budget_check(budget_ops->connect(budget_side[i].transport, &peer, &budget_side[i].endpoint), "connect");
    }
    uint64_t deadline = clock_deadline(LIMIT_MS);
    for (;;) {
        quoit_status_t first = budget_ops->endpoint_status(budget_side[0].endpoint), second = budget_ops->endpoint_status(budget_side[1].endpoint);
        if (first == QUOIT_OK && second == QUOIT_OK) return;
        if ((first != QUOIT_OK && first != QUOIT_IN_PROGRESS) || (second != QUOIT_OK && second != QUOIT_IN_PROGRESS)) budget_fail("connecting");
        if (clock_now() > deadline) budget_fail("no connection in time");
        budget_progress();
    }
}

static void budget_message(size_t size, uint64_t number)
{
    quoit_transfer_t sent = {.what = 0}, got = {.what = 0};
    quoit_key_t key = {1, number};
    uint64_t deadline = clock_deadline(LIMIT_MS);
    CALLGRIND_TOGGLE_COLLECT;
    quoit_status_t first = budget_ops->recv(budget_side[1].endpoint, key, budget_bytes[1], size, &got);
    quoit_status_t second = budget_ops->send(budget_side[0].endpoint, key, budget_bytes[0], size, &sent);
    CALLGRIND_TOGGLE_COLLECT;
    budget_check(first, "recv");
    budget_check(second, "send");
    while (sent.status == QUOIT_IN_PROGRESS || got.status == QUOIT_IN_PROGRESS) {
        if (clock_now() > deadline) budget_fail("a message hangs");
        budget_progress();
    }
    budget_check(sent.status, "a send");
    budget_check(got.status, "a recv");
}

/* Arguments, number, hash of all calls, history, journal, plan, deadline: the way of every operation, but for its bytes. */
static int budget_operation(void)
{
    quoit_comm_t *comm = NULL;
    float in[4] = {1, 2, 3, 4}, out[4];
    budget_check(quoit_comm_create(NULL, 0, 1, NULL, &comm), "a communicator");
    for (int round = 0; round < ROUNDS; round++) {
        CALLGRIND_ZERO_STATS;
        CALLGRIND_TOGGLE_COLLECT;
        quoit_status_t status = quoit_allreduce(comm, in, out, 4, QUOIT_F32, QUOIT_SUM, NULL, NULL);
        CALLGRIND_TOGGLE_COLLECT;
        budget_check(status, "an allreduce");
        CALLGRIND_DUMP_STATS_AT("16 bytes");
    }
    quoit_comm_destroy(comm);
    puts("done");
    return 0;
}

int main(int count, char **arguments)
{
    static const size_t sizes[] = {8, LARGEST};
    uint64_t number = 0;
    if (count != 2 && count != 3) return 2;
    if (strcmp(arguments[1], "operation") == 0) return budget_operation();
    void *symbol = count == 3 ? dlsym(dlopen(arguments[2], RTLD_NOW), "fake_verbs_is_quiet") : NULL;
    memcpy(&budget_is_quiet, &symbol, sizeof symbol);
    budget_open(arguments[1]);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int round = 0; round < ROUNDS; round++) {
            char name[64];
            CALLGRIND_ZERO_STATS;
            budget_message(sizes[i], ++number);
            snprintf(name, sizeof name, "%zu bytes", sizes[i]);
            CALLGRIND_DUMP_STATS_AT(name);
            for (int rest = 0; rest < 3; rest++) budget_progress(); /* credit, goodbyes of grants: not this message's way */
        }
    }
    for (int i = 0; i < 2; i++) budget_ops->close(budget_side[i].transport);
    puts("done");
    return 0;
}
