/* SPDX-License-Identifier: Apache-2.0 */
/* What the bytes of a link cost, by count: messages of UCX, and copies on their way; and messages of UCX that overtake each other, or whose memory we keep. */
#include "ucx_harness.h"

#include <deque>
#include <memory>

using namespace ucx_test;

namespace {

const size_t LARGE = (size_t)4 << 20;

ucx_library_t library; /* UCX, but for the calls that are watched */

std::string pattern(size_t length, size_t seed)
{
    std::string bytes(length, 0);
    for (size_t i = 0; i < length; i++) bytes[i] = (char)((i * 31 + i / 4093 + seed) % 251);
    return bytes;
}

/* What a worker's callback is told, kept for later. */
struct Held {
    std::string header, data;
    ucp_am_recv_param_t parameters;
};

/* Between UCX and the transport: which messages are handed on, when, and whether their memory may be kept. */
struct Between {
    ucp_am_handler_param_t real = {};
    ucs_status_t (*set_handler)(ucp_worker_h, const ucp_am_handler_param_t *) = nullptr;
    void (*release)(ucp_worker_h, void *) = nullptr;
    bool swaps = false, lends = false; /* of two messages the second comes first; memory is the transport's until it releases it */
    std::unique_ptr<Held> held;
    std::map<void *, std::unique_ptr<std::string>> lent;
    size_t swapped = 0, kept = 0;
    bool asked_to_keep = false; /* by the flags of the handler */

    ucs_status_t hand_on(const Held &message)
    {
        ucp_am_recv_param_t parameters = message.parameters;
        auto copy = std::make_unique<std::string>(message.data); /* goes with this call, unless it is lent */
        void *data = copy->data();
        parameters.recv_attr &= ~(uint64_t)UCP_AM_RECV_ATTR_FLAG_DATA;
        if (lends) {
            parameters.recv_attr |= UCP_AM_RECV_ATTR_FLAG_DATA;
            lent[data] = std::move(copy);
        }
        ucs_status_t status = real.cb(real.arg, message.header.data(), message.header.size(), data, message.data.size(), &parameters);
        EXPECT_TRUE(lends || status == UCS_OK) << "memory was kept that may not be";
        if (status == UCS_INPROGRESS) kept++;
        else lent.erase(data);
        return UCS_OK;
    }
    void let_go()
    {
        std::unique_ptr<Held> message = std::move(held);
        if (message) hand_on(*message);
    }
};

Between *between;

ucs_status_t received(void *, const void *header, size_t header_length, void *data, size_t length, const ucp_am_recv_param_t *parameters)
{
    auto message = std::make_unique<Held>(Held{std::string((const char *)header, header_length), std::string((const char *)data, length), *parameters});
    if (between->swaps && !between->held) {
        between->held = std::move(message);
        return UCS_OK;
    }
    if (between->held) between->swapped++;
    between->hand_on(*message);
    between->let_go();
    return UCS_OK;
}

ucs_status_t set_handler(ucp_worker_h worker, const ucp_am_handler_param_t *parameters)
{
    ucp_am_handler_param_t ours = *parameters;
    between->real = *parameters;
    between->asked_to_keep = parameters->flags & UCP_AM_FLAG_PERSISTENT_DATA;
    ours.cb = received;
    return between->set_handler(worker, &ours);
}

void release(ucp_worker_h, void *data) { EXPECT_EQ(1u, between->lent.erase(data)) << "memory was released that was not lent"; }

/* From now on what `node` receives goes by way of `way`. */
void intercept(Node &node, Between *way)
{
    between = way;
    library = *node.inner()->ucx;
    way->set_handler = library.ucp_worker_set_am_recv_handler;
    library.ucp_worker_set_am_recv_handler = set_handler;
    library.ucp_am_data_release = release;
    node.inner()->ucx = &library;
    ASSERT_EQ(QUOIT_OK, ucx_link_listen_messages(node.inner()));
}

/* Messages of many lengths from a to b; those that are held are let go between two calls of progress when nothing else moves. */
void expect_messages(Node &a, quoit_endpoint_t *to_b, Node &b, quoit_endpoint_t *to_a, Between *way)
{
    const size_t lengths[] = {1, 100, 5000, 40000, 65408, 65536, 300000, 1000003, 64, 200000};
    std::deque<std::string> sent, got;
    std::deque<quoit_transfer_t> sends, recvs;
    for (size_t length : lengths) {
        uint64_t number = sent.size();
        sent.push_back(pattern(length, number));
        got.push_back(std::string(length, '-'));
        sends.emplace_back();
        recvs.emplace_back();
        ASSERT_EQ(QUOIT_OK, transport_ucx.recv(to_a, {1, number}, got.back().data(), length, &recvs.back()));
        ASSERT_EQ(QUOIT_OK, transport_ucx.send(to_b, {1, number}, sent.back().data(), length, &sends.back()));
    }
    auto done = [&] {
        for (auto &transfer : recvs)
            if (transfer.status == QUOIT_IN_PROGRESS) return false;
        for (auto &transfer : sends)
            if (transfer.status == QUOIT_IN_PROGRESS) return false;
        return true;
    };
    uint64_t deadline = clock_deadline(LIMIT_MS);
    while (!done() && clock_now() < deadline)
        if (a.progress() + b.progress() == 0) {
            way->let_go();
            sched_yield();
        }
    ASSERT_TRUE(done());
    for (size_t i = 0; i < sent.size(); i++) {
        EXPECT_EQ(QUOIT_OK, recvs[i].status);
        EXPECT_TRUE(sent[i] == got[i]) << "message " << i << " of " << sent[i].size() << " bytes";
    }
}

std::map<ucp_mem_h, const void *> mapped; /* registered memory */
size_t maps;
ucs_status_t (*mem_map)(ucp_context_h, const ucp_mem_map_params_t *, ucp_mem_h *);
ucs_status_t (*mem_unmap)(ucp_context_h, ucp_mem_h);
void *(*am_send)(ucp_ep_h, unsigned, const void *, size_t, const void *, size_t, const ucp_request_param_t *);
size_t unregistered; /* bytes of messages that were sent without a handle of their memory */

ucs_status_t watched_map(ucp_context_h context, const ucp_mem_map_params_t *parameters, ucp_mem_h *memory)
{
    ucs_status_t status = mem_map(context, parameters, memory);
    if (status == UCS_OK) mapped[*memory] = parameters->address;
    maps++;
    return status;
}

ucs_status_t watched_unmap(ucp_context_h context, ucp_mem_h memory)
{
    EXPECT_EQ(1u, mapped.erase(memory));
    return mem_unmap(context, memory);
}

void *watched_send(ucp_ep_h ep, unsigned id, const void *header, size_t header_length, const void *data, size_t length, const ucp_request_param_t *parameters)
{
    bool registered = parameters->op_attr_mask & UCP_OP_ATTR_FIELD_MEMH && mapped[parameters->memh] == data;
    if (!registered) unregistered += length;
    return am_send(ep, id, header, header_length, data, length, parameters);
}

class UcxMessages : public testing::Test {
  protected:
    void SetUp() override { ASSERT_EQ(QUOIT_OK, a.status) << a.text; }
    void join()
    {
        to_b = a.connect(b.id, b.address);
        to_a = b.connect(a.id, a.address);
        ASSERT_TRUE(run({&a, &b}, [&] { return transport_ucx.endpoint_status(to_b) == QUOIT_OK && transport_ucx.endpoint_status(to_a) == QUOIT_OK; })) << error_text();
    }
    Between way; /* outlives the nodes, whose last messages come by it */
    Node a{1}, b{2};
    quoit_endpoint_t *to_b = nullptr, *to_a = nullptr;
};

} // namespace

/* UCX's messages are full whatever frames are in them; the receiver reads all where UCX has it, and has copied none aside. */
TEST_F(UcxMessages, LargeOnesAreFullAndAreReadWhereTheyCome)
{
    ASSERT_NO_FATAL_FAILURE(join());
    uint64_t messages = a.inner()->counts.messages, answers = b.inner()->counts.messages;
    uint64_t in_place = b.inner()->counts.in_place, aside = b.inner()->counts.aside;
    expect_message(a, to_b, b, to_a, 1, LARGE);
    messages = a.inner()->counts.messages - messages;
    answers = b.inner()->counts.messages - answers;
    /* One may be begun by the announcement alone, and one ends with the last frame. */
    EXPECT_LE(messages, LARGE / UCX_MESSAGE_SIZE + 3) << "messages of UCX for " << LARGE << " bytes";
    EXPECT_LE(answers, 2u) << "a grant is all there is to answer";
    EXPECT_GE(b.inner()->counts.in_place - in_place, LARGE);
    EXPECT_EQ(b.inner()->counts.aside - aside, 0u);
}

/* A hundred small ones that are sent before anything moves are one message of UCX. */
TEST_F(UcxMessages, SmallOnesShareOne)
{
    ASSERT_NO_FATAL_FAILURE(join());
    const size_t COUNT = 100;
    uint64_t messages = a.inner()->counts.messages;
    std::deque<uint64_t> got;
    std::deque<quoit_transfer_t> sends, recvs;
    for (uint64_t i = 0; i < COUNT; i++) {
        got.push_back(~i);
        sends.emplace_back();
        recvs.emplace_back();
        ASSERT_EQ(QUOIT_OK, transport_ucx.recv(to_a, {1, i}, &got.back(), sizeof i, &recvs.back()));
        ASSERT_EQ(QUOIT_OK, transport_ucx.send(to_b, {1, i}, &i, sizeof i, &sends.back()));
    }
    ASSERT_TRUE(run({&a, &b}, [&] { return recvs.back().status != QUOIT_IN_PROGRESS; }));
    for (uint64_t i = 0; i < COUNT; i++) EXPECT_EQ(i, got[i]);
    EXPECT_EQ(a.inner()->counts.messages - messages, 1u);
}

TEST_F(UcxMessages, OnesThatOvertakeEachOtherAreReadInOrder)
{
    ASSERT_NO_FATAL_FAILURE(join());
    intercept(b, &way);
    EXPECT_FALSE(way.asked_to_keep) << "UCX copies what may be kept, always";
    way.swaps = true;
    uint64_t aside = b.inner()->counts.aside; /* of the handshake */
    expect_messages(a, to_b, b, to_a, &way);
    EXPECT_GT(way.swapped, 3u);
    EXPECT_GT(b.inner()->counts.aside - aside, 10000u) << "nothing had to wait";
    way.swaps = false;
    way.let_go();
}

/* Where the memory is the network's, and lent: what must wait stays there, and is given back. */
TEST_F(UcxMessages, MemoryThatIsLentIsGivenBack)
{
    ASSERT_NO_FATAL_FAILURE(join());
    intercept(b, &way);
    way.lends = true;
    uint64_t aside = b.inner()->counts.aside; /* of the handshake */
    expect_messages(a, to_b, b, to_a, &way);
    EXPECT_EQ(0u, way.kept) << "all came in order";
    way.swaps = true;
    expect_messages(a, to_b, b, to_a, &way);
    EXPECT_GT(way.kept, 3u);
    EXPECT_TRUE(way.lent.empty()) << way.lent.size() << " were not released";
    EXPECT_EQ(b.inner()->counts.aside, aside);
    way.swaps = false;
    way.let_go();
}

/* What a newer UCX sends from where it lies is registered once, not with each message, and no longer than the memory is there. */
TEST_F(UcxMessages, MemoryIsRegisteredOnceAndGivenBack)
{
    library = *a.inner()->ucx;
    if (library.minor < UCX_MINOR_PROTOCOLS) library.minor = UCX_MINOR_PROTOCOLS; /* an older one can do it, and gains nothing */
    mem_map = library.ucp_mem_map;
    mem_unmap = library.ucp_mem_unmap;
    am_send = library.ucp_am_send_nbx;
    library.ucp_mem_map = watched_map;
    library.ucp_mem_unmap = watched_unmap;
    library.ucp_am_send_nbx = watched_send;
    a.inner()->ucx = &library;
    maps = unregistered = 0;
    ASSERT_NO_FATAL_FAILURE(join());
    for (uint64_t number = 0; number < 20; number++) expect_message(a, to_b, b, to_a, number, 1000000);
    EXPECT_EQ(unregistered, 0u);
    EXPECT_GT(maps, 0u);
    EXPECT_LE(maps, (size_t)UCX_IN_FLIGHT + 2) << "one for each message that can be under way, and for flushing";
    a.close();
    EXPECT_TRUE(mapped.empty()) << mapped.size() << " are registered still";
}
