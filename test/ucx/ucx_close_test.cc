/* SPDX-License-Identifier: Apache-2.0 */
/* Closing while UCX's own thread has to do with connections that were never finished. */
#include "ucx_harness.h"
#include "test/support/entries.h"

#include <chrono>
#include <cstring>
#include <thread>

#include <sys/socket.h>

using namespace ucx_test;

namespace {

const int CONNECTIONS = 16, ROUNDS = 4;

/* What a client of UCX's connection manager says first: how many bytes of its own follow (none), and a status. */
const char FIRST_WORD[16] = {};

std::vector<int> sockets; /* connected to the listener, silent so far */
ucx_library_t library;    /* UCX, but for the call that is watched */
void (*worker_destroy)(ucp_worker_h);

/* By now the listeners are gone. UCX's thread, were it free, would hear of all of this at once. */
void speak_and_destroy(ucp_worker_h worker)
{
    for (int fd : sockets) (void)!send(fd, FIRST_WORD, sizeof FIRST_WORD, MSG_NOSIGNAL);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    worker_destroy(worker);
}

std::string one_round()
{
    Node node(1);
    if (node.status != QUOIT_OK) return node.text;
    ip_name_t name = node.listens_on();
    for (int i = 0; i < CONNECTIONS; i++) {
        sockets.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (connect(sockets.back(), &name.any, ip_name_size(&name)) != 0) return "cannot connect: " + std::string(strerror(errno));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5)); /* for UCX's thread to accept some */
    library = *node.inner()->ucx;
    worker_destroy = library.ucp_worker_destroy;
    library.ucp_worker_destroy = speak_and_destroy;
    node.inner()->ucx = &library;
    node.close();
    for (int fd : sockets) close(fd);
    sockets.clear();
    return "";
}

} // namespace

TEST(UcxClose, HalfAConnectionThatSpeaksMeanwhileDisturbsNothing)
{
    std::string text = in_child([]() -> std::string {
        int before = 0;
        for (int round = 0; round < ROUNDS; round++) {
            std::string wrong = one_round();
            if (!wrong.empty()) return wrong;
            if (round == 0) before = count_descriptors(); /* UCX keeps some of its first time */
        }
        int after = count_descriptors();
        return after == before ? "" : std::to_string(before) + " descriptors were open after one round, " + std::to_string(after) + " after all";
    });
    EXPECT_EQ("", text);
}

/* Its thread is there for the next. */
TEST(UcxClose, AnEngineBesideOneThatClosesGoesOn)
{
    Node a(1), b(2);
    ASSERT_EQ(QUOIT_OK, a.status) << a.text;
    ASSERT_EQ(QUOIT_OK, b.status) << b.text;
    for (uint64_t number = 10; number < 13; number++) {
        Node other(number);
        ASSERT_EQ(QUOIT_OK, other.status) << other.text;
        std::thread closer([&] { other.close(); });
        quoit_endpoint_t *to_b = a.connect(b.id, b.address);
        EXPECT_TRUE(run({&a, &b}, [&] { return transport_ucx.endpoint_status(to_b) == QUOIT_OK; })) << error_text();
        closer.join();
    }
}
