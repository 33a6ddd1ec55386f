/* SPDX-License-Identifier: Apache-2.0 */
/* Two channels joined by pipes in memory that take and give random amounts of bytes, from a seed. */
#ifndef QUOIT_TEST_CHANNEL_HARNESS_H
#define QUOIT_TEST_CHANNEL_HARNESS_H

#include "test/support/bytes.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

extern "C" {
#include "base/status.h"
#include "transport/framing/channel.h"
}

namespace channel_test {

using Random = std::mt19937_64;

inline size_t below(Random &random, size_t limit) { return limit == 0 ? 0 : (size_t)(random() % limit); }

/* One direction of a pipe. */
struct Stream {
    std::string bytes;
    size_t capacity = 1 << 16;
    bool ended = false;  /* nothing more will come */
    bool broken = false; /* writing fails */
};

struct PipeEnd {
    Stream *out, *in;
    Random *random;
    bool whole = false; /* no random portions */
    std::string room = {}; /* what pipe_place gave */
};

inline size_t portion(PipeEnd *end, size_t most)
{
    if (end->whole || most <= 1) return most;
    switch (below(*end->random, 4)) {
    case 0: return 1 + below(*end->random, most < 80 ? most : 80);
    case 1: return 1 + below(*end->random, most);
    default: return most;
    }
}

inline quoit_status_t pipe_write(void *pointer, const struct iovec *iov, int count, size_t *written)
{
    auto *end = static_cast<PipeEnd *>(pointer);
    if (end->out->broken) return error_set(QUOIT_ERR_PEER, "pipe broken");
    size_t room = end->out->capacity - end->out->bytes.size(), total = 0;
    if (room == 0 || (!end->whole && below(*end->random, 6) == 0)) return QUOIT_ERR_AGAIN;
    room = portion(end, room);
    for (int i = 0; i < count && total < room; i++) {
        size_t part = std::min(iov[i].iov_len, room - total);
        end->out->bytes.append(static_cast<const char *>(iov[i].iov_base), part);
        total += part;
    }
    if (total == 0) return QUOIT_ERR_AGAIN;
    *written = total;
    return QUOIT_OK;
}

inline quoit_status_t pipe_read(void *pointer, const struct iovec *iov, int count, size_t *got)
{
    auto *end = static_cast<PipeEnd *>(pointer);
    Stream *in = end->in;
    if (in->bytes.empty()) return in->ended ? QUOIT_ERR_CLOSED : QUOIT_ERR_AGAIN;
    if (!end->whole && below(*end->random, 6) == 0) return QUOIT_ERR_AGAIN;
    size_t most = portion(end, in->bytes.size()), total = 0;
    for (int i = 0; i < count && total < most; i++) {
        size_t part = std::min(iov[i].iov_len, most - total);
        memcpy(iov[i].iov_base, in->bytes.data() + total, part);
        total += part;
    }
    if (total == 0) return QUOIT_ERR_AGAIN;
    in->bytes.erase(0, total);
    *got = total;
    return QUOIT_OK;
}

/* As a pipe of memory, some of whose bytes lie in another piece. */
inline const unsigned char *pipe_peek(void *pointer, size_t length)
{
    auto *end = static_cast<PipeEnd *>(pointer);
    if (end->in->bytes.size() < length || (!end->whole && below(*end->random, 4) == 0)) return nullptr;
    return reinterpret_cast<const unsigned char *>(end->in->bytes.data());
}

inline bool pipe_skip(void *pointer, size_t length)
{
    auto *end = static_cast<PipeEnd *>(pointer);
    end->in->bytes.erase(0, length);
    return !end->in->bytes.empty();
}

inline unsigned char *pipe_place(void *pointer, size_t length)
{
    auto *end = static_cast<PipeEnd *>(pointer);
    if (end->out->broken || end->out->capacity - end->out->bytes.size() < length || (!end->whole && below(*end->random, 4) == 0)) return nullptr;
    end->room.resize(length);
    return reinterpret_cast<unsigned char *>(end->room.data());
}

inline void pipe_commit(void *pointer, size_t length)
{
    auto *end = static_cast<PipeEnd *>(pointer);
    end->out->bytes.append(end->room, 0, length);
}

inline const pipe_ops_t test_pipe_ops = {pipe_write, pipe_read, nullptr, nullptr, nullptr, nullptr};
inline const pipe_ops_t test_memory_ops = {pipe_write, pipe_read, pipe_peek, pipe_skip, pipe_place, pipe_commit};

/* Memory that one side lends, a place in `slots` each. */
struct Pool {
    static constexpr size_t piece = 2048;
    struct Slot {
        std::string bytes;
        bool out = false, unasked = false;
    };
    std::vector<Slot> slots;
    const Pool *other = nullptr;
    size_t lent = 0, wrong = 0; /* loans that came back twice, or never were */

    size_t out() const
    {
        return (size_t)std::count_if(slots.begin(), slots.end(), [](const Slot &slot) { return slot.out; });
    }
};

inline loan_t pool_lend(void *context, const void *data, size_t length, bool unasked, uint64_t *place)
{
    auto *own = static_cast<Pool *>(context);
    bool granted = false;
    for (size_t i = 0; i < own->slots.size(); i++) {
        Pool::Slot &slot = own->slots[i];
        granted = granted || (slot.out && !slot.unasked);
        if (slot.out) continue;
        slot = {std::string(static_cast<const char *>(data), length), true, unasked};
        *place = i;
        own->lent++;
        return LOAN_MADE;
    }
    return granted ? LOAN_LATER : LOAN_NONE;
}

inline const void *pool_borrow(void *context, uint64_t place, size_t length)
{
    const Pool *other = static_cast<Pool *>(context)->other;
    if (place < other->slots.size() && other->slots[place].bytes.size() == length) return other->slots[place].bytes.data();
    error_set(QUOIT_ERR_PROTOCOL, "no loan of %zu bytes at %llu", length, (unsigned long long)place);
    return nullptr;
}

inline void pool_take(void *to, const void *from, size_t length, uint64_t whole)
{
    if (length <= whole) memcpy(to, from, length); /* else what comes is not what was sent */
}

inline void pool_give_back(void *context, uint64_t place)
{
    auto *other = const_cast<Pool *>(static_cast<Pool *>(context)->other);
    other->wrong += !other->slots[place].out;
    other->slots[place].out = false;
}

inline const lend_ops_t test_lend_ops = {Pool::piece, pool_lend, pool_borrow, pool_take, pool_give_back, 0};

using test_bytes::pattern;

struct Options {
    int pipes = 1;
    size_t eager_limit = 1024, eager_pool = 65536, segment_size = 4096, capacity = 1 << 14;
    bool whole = false;
    bool open = true;
    bool rails = false;
    int loans = -1; /* of each side; -1: none can be made, and none borrowed */
    size_t lend_least = 0;
    bool in_memory = false; /* frames are written at once where that is possible */
};

/* The two channels, sides 0 and 1. */
class Couple {
public:
    Couple(uint64_t seed, const Options &options) : random(seed), options_(options)
    {
        channel_config_t config = {options.in_memory ? &test_memory_ops : &test_pipe_ops, options.eager_limit, options.eager_pool, options.segment_size};
        config.rails = options.rails;
        config.in_memory = options.in_memory;
        lend_ops_ = test_lend_ops;
        lend_ops_.least = options.lend_least;
        config.lend = options.loans >= 0 ? &lend_ops_ : nullptr;
        streams_.resize((size_t)options.pipes * 2);
        ends_.resize((size_t)options.pipes * 2);
        for (int i = 0; i < options.pipes; i++) {
            Stream *a = &streams_[2 * i], *b = &streams_[2 * i + 1];
            a->capacity = b->capacity = options.capacity;
            ends_[2 * i] = {a, b, &random, options.whole};
            ends_[2 * i + 1] = {b, a, &random, options.whole};
        }
        for (int side = 0; side < 2; side++) {
            pool[side].slots.resize((size_t)std::max(0, options.loans));
            pool[side].other = &pool[!side];
            config.lend_context = &pool[side];
            if (channel_create(&config, side ? "peer A" : "peer B", &channel[side]) != QUOIT_OK) abort();
        }
        if (options.open) open(0), open(1);
    }
    ~Couple()
    {
        for (auto *one : channel) {
            error_set(QUOIT_ERR_CLOSED, "end of the test");
            channel_fail(one, QUOIT_ERR_CLOSED);
            channel_destroy(one);
        }
    }
    Couple(const Couple &) = delete;

    void open(int side)
    {
        std::vector<void *> pipes;
        for (int i = 0; i < options_.pipes; i++) pipes.push_back(&ends_[2 * i + side]);
        channel_open(channel[side], nullptr, pipes.data(), options_.pipes);
    }
    Stream &stream(int side, int pipe) { return streams_[2 * pipe + side]; } /* what `side` writes */

    /* A random step of one side. */
    int step(int side)
    {
        int pipe = (int)below(random, (size_t)options_.pipes);
        size_t budget = 1 + below(random, 1 << 17);
        return below(random, 2) ? channel_read(channel[side], pipe, budget) : channel_write(channel[side], pipe, budget);
    }
    /* Steps until `done` says so; false when `limit` rounds did not suffice. */
    template <typename Done> bool run(Done done, int limit = 200000)
    {
        for (int i = 0; i < limit; i++) {
            if (done()) return true;
            step((int)below(random, 2));
        }
        return done();
    }
    /* Until both sides have nothing more to do for a while. */
    void settle()
    {
        for (int i = 0; i < 400 * options_.pipes; i++) {
            int before = i;
            if (step((int)below(random, 2)) > 0) i = std::max(0, before - 60);
        }
    }

    Random random;
    channel_t *channel[2] = {};
    Pool pool[2];

private:
    lend_ops_t lend_ops_;
    Options options_;
    std::vector<Stream> streams_;
    std::vector<PipeEnd> ends_;
};

/* A message with its buffer; canaries on both sides of a receive's. */
struct Message {
    quoit_transfer_t transfer{};
    std::string bytes;
    size_t length = 0;
    static constexpr size_t margin = 64;

    void *place() { return bytes.data() + margin; }
    void fill(size_t size, char byte)
    {
        length = size;
        bytes.assign(size + 2 * margin, byte);
        memset(bytes.data(), 0x5a, margin);
        memset(bytes.data() + margin + size, 0x5a, margin);
    }
    bool canaries() const
    {
        return test_bytes::all_are(bytes.data(), margin, 0x5a) && test_bytes::all_are(bytes.data() + margin + length, margin, 0x5a);
    }
    std::string content() const { return bytes.substr(margin, length); }
    bool done() const { return transfer.status != QUOIT_IN_PROGRESS; }
};

using MessagePtr = std::unique_ptr<Message>;

inline MessagePtr post_send(channel_t *channel, quoit_key_t key, const std::string &content, uint32_t what = 0)
{
    auto message = std::make_unique<Message>();
    message->fill(content.size(), 0);
    if (!content.empty()) memcpy(message->place(), content.data(), content.size());
    message->transfer.what = what;
    if (channel_send(channel, key, message->place(), content.size(), &message->transfer) != QUOIT_OK) abort();
    return message;
}

inline MessagePtr post_recv(channel_t *channel, quoit_key_t key, size_t length, uint32_t what = 0)
{
    auto message = std::make_unique<Message>();
    message->fill(length, 0x33);
    message->transfer.what = what;
    if (channel_recv(channel, key, message->place(), length, &message->transfer) != QUOIT_OK) abort();
    return message;
}

} // namespace channel_test
#endif
