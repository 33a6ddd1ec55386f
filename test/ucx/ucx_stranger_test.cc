/* SPDX-License-Identifier: Apache-2.0 */
/* Those who connect and are no peers, and peers that stand still: they disturb nobody. */
#include "ucx_harness.h"

#include <cstring>
#include <random>

#include <sys/socket.h>

using namespace ucx_test;

namespace {

/* A program that speaks UCX but is no Quoit. */
class Stray {
public:
    Stray(Node &server, const ucx_library_t *library) : ucx(library)
    {
        ucp_params_t parameters = {};
        parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
        parameters.features = UCP_FEATURE_AM;
        EXPECT_EQ(UCS_OK, ucx->ucp_init_version(UCX_API_MAJOR, UCX_API_MINOR, &parameters, nullptr, &context));
        ucp_worker_params_t worker_parameters = {};
        EXPECT_EQ(UCS_OK, ucx->ucp_worker_create(context, &worker_parameters, &worker));
        ucp_ep_params_t ep_parameters = {};
        ip_name_t name = server.listens_on();
        ep_parameters.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                                   UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
        ep_parameters.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
        ep_parameters.sockaddr.addr = &name.any;
        ep_parameters.sockaddr.addrlen = ip_name_size(&name);
        ep_parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
        ep_parameters.err_handler.cb = [](void *self, ucp_ep_h, ucs_status_t) { static_cast<Stray *>(self)->closed = true; };
        ep_parameters.err_handler.arg = this;
        EXPECT_EQ(UCS_OK, ucx->ucp_ep_create(worker, &ep_parameters, &ep));
    }
    ~Stray()
    {
        ucp_request_param_t parameters = {};
        parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
        void *request = ucx->ucp_ep_close_nbx(ep, &parameters);
        for (int i = 0; i < 1000; i++) ucx->ucp_worker_progress(worker);
        if (UCS_PTR_IS_PTR(request)) ucx->ucp_request_free(request);
        ucx->ucp_worker_destroy(worker);
        ucx->ucp_cleanup(context);
    }
    Stray(const Stray &) = delete;

    void say(unsigned id, const std::string &new_header, const std::string &new_body)
    {
        header = new_header;
        body = new_body;
        ucp_request_param_t parameters = {};
        parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        parameters.flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY;
        void *request = ucx->ucp_am_send_nbx(ep, id, header.data(), header.size(), body.data(), body.size(), &parameters);
        if (UCS_PTR_IS_PTR(request)) ucx->ucp_request_free(request);
    }
    void progress() { ucx->ucp_worker_progress(worker); }

    const ucx_library_t *ucx;
    ucp_context_h context = nullptr;
    ucp_worker_h worker = nullptr;
    ucp_ep_h ep = nullptr;
    std::string header, body;
    bool closed = false;
};

std::string header_of(uint8_t type, uint64_t sequence)
{
    std::string header("Qu\1\0\0\0\0\0", 8);
    header[3] = (char)type;
    header.append(reinterpret_cast<const char *>(&sequence), sizeof sequence);
    return header;
}

struct Pair {
    Node a{1}, b{2};
    quoit_endpoint_t *to_b = nullptr, *to_a = nullptr;

    Pair()
    {
        EXPECT_EQ(QUOIT_OK, a.status) << a.text;
        EXPECT_EQ(QUOIT_OK, b.status) << b.text;
        to_b = a.connect(b.id, b.address);
        EXPECT_TRUE(run({&a, &b}, [&] { return transport_ucx.endpoint_status(to_b) == QUOIT_OK && table_count(b.inner()->base.peers) == 1; }));
        to_a = b.connect(a.id, a.address);
        EXPECT_TRUE(run({&a, &b}, [&] { return transport_ucx.endpoint_status(to_a) == QUOIT_OK; }));
    }
};

} // namespace

TEST(UcxStranger, AUcxProgramThatIsNoPeerIsClosedAndDisturbsNobody)
{
    Pair pair;
    const uint64_t seed = 4711;
    std::mt19937_64 random(seed);
    std::string noise(200, '\0');
    for (auto &byte : noise) byte = (char)random();
    struct {
        const char *what;
        unsigned id;
        std::string header, body;
    } const cases[] = {
        {"no header of ours", 81, "what is this?", noise},
        {"our header, then noise", 81, header_of(1, 0), noise},
        {"a goodbye before a proof", 81, header_of(2, 0), ""},
        {"more than a handshake", 81, header_of(1, 0), std::string(5000, 'x')},
        {"a type there is none of", 81, header_of(77, 0), noise},
    };
    uint64_t number = 0;
    for (const auto &one : cases) {
        Stray stray(pair.b, pair.b.inner()->ucx);
        stray.say(one.id, one.header, one.body);
        EXPECT_TRUE(run({&pair.a, &pair.b}, [&] {
            stray.progress();
            return stray.closed;
        })) << one.what << " was not closed, seed " << seed;
        EXPECT_EQ(0, pair.b.inner()->stranger_count) << one.what;
        expect_message(pair.a, pair.to_b, pair.b, pair.to_a, number++);
    }
    EXPECT_EQ(0, pair.a.closed + pair.b.closed);
}

TEST(UcxStranger, NoiseOnThePortDisturbsNobody)
{
    Pair pair;
    const uint64_t seed = 815;
    std::mt19937_64 random(seed);
    for (uint64_t round = 0; round < 8; round++) {
        ip_name_t name = pair.b.listens_on();
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ASSERT_EQ(0, connect(fd, &name.any, ip_name_size(&name)));
        std::string noise(1 + random() % 300, '\0');
        for (auto &byte : noise) byte = (char)random();
        if (round > 0) {
            EXPECT_GT(send(fd, noise.data(), noise.size(), MSG_NOSIGNAL), 0);
        }
        expect_message(pair.a, pair.to_b, pair.b, pair.to_a, round);
        close(fd);
        expect_message(pair.b, pair.to_a, pair.a, pair.to_b, round);
    }
    EXPECT_EQ(0, pair.a.closed + pair.b.closed) << "seed " << seed;
}

/* A stopped process takes nothing: sends stay under way, nothing blocks, cancel gives the buffers back, close ends in time. */
TEST(UcxStopped, SendsToAStoppedProcessBlockNothing)
{
    int ways[2][2];
    ASSERT_EQ(0, pipe(ways[0]));
    ASSERT_EQ(0, pipe(ways[1]));
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        Node node(2);
        std::string blob = node.address;
        blob.resize(QUOIT_ADDRESS_CAPACITY);
        if (node.status != QUOIT_OK || write(ways[0][1], blob.data(), blob.size()) < 0) _exit(1);
        std::string got(1 << 20, '\0');
        quoit_transfer_t recv = {};
        quoit_endpoint_t *source = nullptr;
        run({&node}, [&] {
            ucx_endpoint_t *endpoint = ucx_endpoint_find(node.inner(), {0x5eed, 1});
            if (!source && endpoint && endpoint->base.life == ENDPOINT_STANDING) {
                source = node.connect({0x5eed, 1}, node.address);
                transport_ucx.recv(source, {1, 1}, got.data(), got.size(), &recv);
            }
            return source && recv.status == QUOIT_OK;
        });
        raise(SIGSTOP);
        _exit(0);
    }
    {
        Node node(1);
        ASSERT_EQ(QUOIT_OK, node.status) << node.text;
        char address[QUOIT_ADDRESS_CAPACITY];
        ASSERT_EQ((ssize_t)sizeof address, read(ways[0][0], address, sizeof address));
        std::string where(address, 16 + 9); /* one IPv4 name */
        quoit_endpoint_t *to = node.connect({0x5eed, 2}, where);
        std::string first(1 << 20, 'x');
        quoit_transfer_t send = {};
        ASSERT_EQ(QUOIT_OK, transport_ucx.send(to, {1, 1}, first.data(), first.size(), &send));
        EXPECT_TRUE(run({&node}, [&] { return send.status == QUOIT_OK; }));
        int status = 0;
        ASSERT_EQ(pid, waitpid(pid, &status, WUNTRACED));
        ASSERT_TRUE(WIFSTOPPED(status));
        std::string small(4000, 'y');
        std::vector<quoit_transfer_t> many(2000);
        for (auto &transfer : many) transport_ucx.send(to, {2, 1}, small.data(), small.size(), &transfer);
        run({&node}, [] { return false; }, 100);
        EXPECT_EQ(QUOIT_IN_PROGRESS, many.back().status);
        EXPECT_EQ(QUOIT_OK, transport_ucx.endpoint_status(to));
        transport_ucx.cancel(node.transport, 2);
        EXPECT_EQ(QUOIT_ERR_ABORTED, many.back().status);
        for (auto &transfer : many) EXPECT_NE(QUOIT_IN_PROGRESS, transfer.status);
        transport_ucx.disconnect(to);
        EXPECT_FALSE(transport_ucx.idle(node.transport));
    }
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    for (auto &way : ways) close(way[0]), close(way[1]);
}
