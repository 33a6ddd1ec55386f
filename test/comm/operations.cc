// SPDX-License-Identifier: Apache-2.0
#include "operations.h"

#include "../reduce/reference.h"
#include "test/support/bytes.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <new>

namespace comm_test {

static const char *const names[] = {"allreduce", "reduce", "broadcast", "allgather", "allgatherv", "reduce_scatter", "reduce_scatterv",
                                    "alltoall", "alltoallv", "gather", "gatherv", "scatter", "scatterv", "barrier"};

const char *name_of(Collective collective) { return names[static_cast<int>(collective)]; }

bool reduces(Collective collective)
{
    return collective == Collective::Allreduce || collective == Collective::Reduce || collective == Collective::ReduceScatter ||
           collective == Collective::ReduceScatterv;
}

bool is_rooted(Collective collective)
{
    switch (collective) {
    case Collective::Reduce:
    case Collective::Broadcast:
    case Collective::Gather:
    case Collective::Gatherv:
    case Collective::Scatter:
    case Collective::Scatterv: return true;
    default: return false;
    }
}

bool has_parts(Collective collective)
{
    switch (collective) {
    case Collective::Allgatherv:
    case Collective::ReduceScatterv:
    case Collective::Alltoallv:
    case Collective::Gatherv:
    case Collective::Scatterv: return true;
    default: return false;
    }
}

std::string Case::describe() const
{
    std::string text = std::string(name_of(collective)) + " " + quoit_dtype_name(dtype);
    if (reduces(collective)) text += std::string(" ") + quoit_op_name(op);
    if (counts.empty()) {
        text += " count " + std::to_string(count);
    } else {
        text += " counts";
        for (size_t each : counts) text += " " + std::to_string(each);
    }
    if (is_rooted(collective)) text += " root " + std::to_string(root);
    return text + (in_place ? " in place" : "") + " values " + std::to_string(values) + " shared " + std::to_string(shared);
}

std::vector<size_t> uneven_counts(std::mt19937_64 &random, Collective collective, int size, size_t limit)
{
    size_t parts = static_cast<size_t>(size);
    std::vector<size_t> counts(collective == Collective::Alltoallv ? parts * parts : parts);
    for (size_t &each : counts) each = random() % 4 == 0 ? 0 : random() % (limit + 1);
    return counts;
}

// ------------------------------------------------------------------ buffers

enum { GUARD = 64 };

unsigned char *Operation::Block::data() { return memory.data() + GUARD; }

Room::Room(size_t size, unsigned char byte, quoit_comm_t *comm) : size_(size), comm_(comm)
{
    void *memory = nullptr;
    if (comm && quoit_memory_alloc(comm, size, &memory) != QUOIT_OK) throw std::bad_alloc();
    if (!comm) memory = ::operator new(size);
    bytes_ = std::unique_ptr<unsigned char[], Put>(static_cast<unsigned char *>(memory), Put{comm != nullptr});
    memset(memory, byte, size);
}

Room Room::copy() const
{
    Room made(size_, 0, comm_);
    memcpy(made.bytes_.get(), bytes_.get(), size_);
    return made;
}

void Room::Put::operator()(unsigned char *bytes) const
{
    if (shared)
        quoit_memory_free(bytes);
    else
        ::operator delete(bytes);
}

void Operation::Block::make(size_t size, quoit_comm_t *comm)
{
    bytes = size;
    memory = Room(size + 2 * GUARD, 0xa5, comm);
}

bool Operation::Block::guards_hold() const
{
    const unsigned char *start = data();
    return test_bytes::all_are(start - GUARD, GUARD, 0xa5) && test_bytes::all_are(start + bytes, GUARD, 0xa5);
}

// ------------------------------------------------------------------ values

static void put_real(quoit_dtype_t dtype, int value, unsigned char *to)
{
    switch (dtype) {
    case QUOIT_F64: {
        double real = value;
        memcpy(to, &real, 8);
        return;
    }
    case QUOIT_F32: {
        float real = static_cast<float>(value);
        memcpy(to, &real, 4);
        return;
    }
    default: {
        uint32_t code = reference::encode(dtype, value);
        memcpy(to, &code, quoit_dtype_size(dtype)); // little-endian
    }
    }
}

// Element number `choice` (0..3) of a dtype.
static void put_element(quoit_dtype_t dtype, bool product, unsigned choice, unsigned char *to)
{
    static const int any[] = {-1, 0, 1, 2}, few[] = {-1, 0, 1, 1}, factors[] = {1, 2, 1, -1};
    int value = product ? factors[choice] : dtype == QUOIT_F8_E5M2 ? few[choice] : any[choice];
    int64_t integer = value;
    switch (dtype) {
    case QUOIT_F8_E4M3FNUZ:
    case QUOIT_F8_E5M2FNUZ: *to = static_cast<unsigned char>(0x30 + choice); return;
    case QUOIT_BOOL: *to = choice & 1; return;
    case QUOIT_C64:
        put_real(QUOIT_F32, value, to);
        put_real(QUOIT_F32, any[choice ^ 1], to + 4);
        return;
    case QUOIT_C128:
        put_real(QUOIT_F64, value, to);
        put_real(QUOIT_F64, any[choice ^ 1], to + 8);
        return;
    case QUOIT_F64:
    case QUOIT_F32:
    case QUOIT_F16:
    case QUOIT_BF16:
    case QUOIT_F8_E4M3:
    case QUOIT_F8_E5M2: put_real(dtype, value, to); return;
    default: memcpy(to, &integer, quoit_dtype_size(dtype));
    }
}

// Bytes that are made once and kept while the ranks that need them come by; the oldest go first.
class Kept {
  public:
    using Key = std::array<uint64_t, 7>;
    using Bytes = std::vector<unsigned char>;

    std::shared_ptr<const Bytes> find(const Key &key, size_t size, const std::function<Bytes()> &make)
    {
        std::shared_ptr<Entry> entry = find_entry(key, size);
        std::call_once(entry->made, [&] { entry->bytes = make(); });
        return {entry, &entry->bytes};
    }

  private:
    struct Entry {
        explicit Entry(size_t its_size) : size(its_size) {}
        const size_t size;
        std::once_flag made;
        Bytes bytes;
    };

    std::shared_ptr<Entry> find_entry(const Key &key, size_t size)
    {
        std::lock_guard lock(mutex_);
        for (auto &[known, entry] : entries_)
            if (known == key) return entry;
        entries_.emplace_front(key, std::make_shared<Entry>(size));
        total_ += size;
        while (entries_.size() > 100 || (total_ > (64 << 20) && entries_.size() > 1)) {
            total_ -= entries_.back().second->size;
            entries_.pop_back();
        }
        return entries_.front().second;
    }

    std::mutex mutex_;
    std::deque<std::pair<Key, std::shared_ptr<Entry>>> entries_;
    size_t total_ = 0;
};

static Kept &kept()
{
    static Kept all;
    return all;
}

Operation::Known Operation::input(int from, int part, size_t count) const
{
    uint64_t product = reduces(case_.collective) && case_.op == QUOIT_PROD;
    return kept().find({0, case_.dtype, product, case_.values, static_cast<uint64_t>(from), static_cast<uint64_t>(part), count}, count * width_,
                       [&] { return make_input(from, part, count); });
}

Operation::Known Operation::reduced(int part, size_t count) const
{
    return kept().find({1, case_.dtype, case_.op, case_.values, static_cast<uint64_t>(size_), static_cast<uint64_t>(part), count}, count * width_,
                       [&] { return make_reduced(part, count); });
}

// Elements of the table, chosen by `key`. Hidden from ThreadSanitizer, which would be told of each: nobody else sees these bytes before they
// are copied into a buffer as a whole.
template <size_t width> __attribute__((no_sanitize("thread"))) static void spread(unsigned char *to, size_t count, const unsigned char (*table)[16], uint64_t key)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t mixed = (key + i) * 0xbf58476d1ce4e5b9u;
        __builtin_memcpy(to + i * width, table[(mixed >> 60) & 3], width);
    }
}

static void spread(unsigned char *to, size_t count, size_t width, const unsigned char (*table)[16], uint64_t key)
{
    switch (width) {
    case 1: return spread<1>(to, count, table, key);
    case 2: return spread<2>(to, count, table, key);
    case 4: return spread<4>(to, count, table, key);
    case 8: return spread<8>(to, count, table, key);
    default: return spread<16>(to, count, table, key);
    }
}

Operation::Bytes Operation::make_input(int from, int part, size_t count) const
{
    unsigned char table[4][16];
    for (unsigned choice = 0; choice < 4; choice++)
        put_element(case_.dtype, reduces(case_.collective) && case_.op == QUOIT_PROD, choice, table[choice]);
    uint64_t key = (case_.values * 1000003 + static_cast<uint64_t>(from)) * 1000003 + static_cast<uint64_t>(part + 1);
    key *= 0x9e3779b97f4a7c15u;
    Bytes bytes(count * width_);
    spread(bytes.data(), count, width_, table, key);
    return bytes;
}

static void factor_of(int rank, double factor[2])
{
    static const double factors[3][2] = {{1, 0}, {-1, 0}, {0, 1}};
    memcpy(factor, factors[rank % 3], sizeof factors[0]);
}

Operation::Bytes Operation::make_reduced(int part, size_t count) const
{
    std::vector<Known> inputs;
    std::vector<const unsigned char *> sources;
    for (int rank = 0; rank < size_; rank++) {
        Known own = input(rank, part, count);
        double factor[2];
        factor_of(rank, factor);
        if (case_.op == QUOIT_PREMUL_SUM) own = std::make_shared<Bytes>(reference::scale(case_.dtype, own->data(), count, factor));
        inputs.push_back(std::move(own));
    }
    for (const Known &each : inputs) sources.push_back(each->data());
    if (count == 0) return {};
    return reference::reduce(case_.dtype, case_.op, sources, count, case_.op == QUOIT_AVG ? size_ : 0);
}

// ------------------------------------------------------------------ layout

// Elements of a rank's own single block: what it sends in a gather, receives in a scatter or reduce_scatter.
size_t Operation::count_of(int rank) const { return case_.counts.empty() ? case_.count : case_.counts[static_cast<size_t>(rank)]; }

// The reference keeps tables that it makes at first use: made before threads share them.
static void prepare_reference()
{
    static const bool prepared = [] {
        for (quoit_dtype_t dtype : {QUOIT_F16, QUOIT_BF16, QUOIT_F8_E4M3, QUOIT_F8_E5M2}) (void)reference::encode(dtype, 1);
        return true;
    }();
    (void)prepared;
}

Operation::Operation(const Case &one, quoit_comm_t *comm, Elsewhere *elsewhere)
    : case_(one), comm_(comm), elsewhere_(elsewhere), rank_(quoit_comm_rank(comm)), size_(quoit_comm_size(comm)), width_(quoit_dtype_size(one.dtype)),
      in_place_(one.in_place)
{
    prepare_reference();
    factor_of(rank_, factor_);
    lay_out();
    for (const Block &each : send_) send_before_.push_back(std::make_shared<Bytes>(each.data(), each.data() + each.bytes));
    put();
    for (Block &each : send_) send_parts_.push_back({each.bytes ? each.at : nullptr, each.bytes / width_});
    for (Block &each : recv_) recv_parts_.push_back({each.bytes ? each.at : nullptr, each.bytes / width_});
}

void Operation::put()
{
    for (auto *side : {&send_, &recv_})
        for (Block &each : *side)
            each.at = elsewhere_ ? static_cast<unsigned char *>(elsewhere_->put(each.data() - GUARD, each.bytes + 2 * GUARD)) + GUARD : each.data();
}

std::string Operation::take()
{
    size_t number = 0;
    std::string wrong;
    for (auto *side : {&send_, &recv_})
        for (Block &each : *side)
            if (elsewhere_ && wrong.empty()) wrong = elsewhere_->take(number++, each.data() - GUARD, each.bytes + 2 * GUARD);
    return wrong;
}

void Operation::lay_out()
{
    quoit_comm_t *memory = case_.shared >> rank_ & 1 ? comm_ : nullptr;
    bool root = rank_ == case_.root;
    auto one_block = [&](std::vector<Block> &side, size_t count) {
        side.resize(1);
        side[0].make(count * width_, memory);
    };
    auto fill = [&](Block &block, size_t at, int part, size_t count) {
        Known bytes = input(rank_, part, count);
        if (count) memcpy(block.data() + at, bytes->data(), bytes->size());
    };
    size_t count = case_.count, n = static_cast<size_t>(size_);
    auto each_part = [&](const std::function<void(int)> &visit) {
        for (int part = 0; part < size_; part++) visit(part);
    };
    switch (case_.collective) {
    case Collective::Allreduce:
    case Collective::Reduce:
        one_block(send_, count);
        fill(send_[0], 0, 0, count);
        if (case_.collective == Collective::Allreduce || root) one_block(recv_, count);
        if (in_place_ && !recv_.empty()) recv_[0].memory = send_[0].memory.copy();
        break;
    case Collective::Broadcast:
        one_block(recv_, count);
        if (root) fill(recv_[0], 0, 0, count);
        break;
    case Collective::Allgather:
        one_block(send_, count);
        one_block(recv_, count * n);
        fill(send_[0], 0, 0, count);
        if (in_place_) fill(recv_[0], static_cast<size_t>(rank_) * count * width_, 0, count);
        break;
    case Collective::Allgatherv:
        one_block(send_, count_of(rank_));
        fill(send_[0], 0, 0, count_of(rank_));
        recv_.resize(n);
        each_part([&](int part) { recv_[static_cast<size_t>(part)].make(count_of(part) * width_, memory); });
        if (in_place_) fill(recv_[static_cast<size_t>(rank_)], 0, 0, count_of(rank_));
        break;
    case Collective::ReduceScatter:
        one_block(send_, count * n);
        each_part([&](int part) { fill(send_[0], static_cast<size_t>(part) * count * width_, part, count); });
        one_block(recv_, count);
        break;
    case Collective::ReduceScatterv:
        send_.resize(n);
        each_part([&](int part) {
            send_[static_cast<size_t>(part)].make(count_of(part) * width_, memory);
            fill(send_[static_cast<size_t>(part)], 0, part, count_of(part));
        });
        one_block(recv_, count_of(rank_));
        break;
    case Collective::Alltoall:
        one_block(send_, count * n);
        one_block(recv_, count * n);
        each_part([&](int part) { fill(send_[0], static_cast<size_t>(part) * count * width_, part, count); });
        break;
    case Collective::Alltoallv:
        send_.resize(n);
        recv_.resize(n);
        each_part([&](int part) {
            size_t to = static_cast<size_t>(part), me = static_cast<size_t>(rank_);
            send_[to].make(case_.counts[me * n + to] * width_, memory);
            fill(send_[to], 0, part, case_.counts[me * n + to]);
            recv_[to].make(case_.counts[to * n + me] * width_, memory);
        });
        break;
    case Collective::Gather:
    case Collective::Gatherv:
        one_block(send_, count_of(rank_));
        fill(send_[0], 0, 0, count_of(rank_));
        if (!root) break;
        if (case_.collective == Collective::Gather) {
            one_block(recv_, count * n);
        } else {
            recv_.resize(n);
            each_part([&](int part) { recv_[static_cast<size_t>(part)].make(count_of(part) * width_, memory); });
        }
        break;
    case Collective::Scatter:
    case Collective::Scatterv:
        one_block(recv_, count_of(rank_));
        if (!root) break;
        if (case_.collective == Collective::Scatter) {
            one_block(send_, count * n);
            each_part([&](int part) { fill(send_[0], static_cast<size_t>(part) * count * width_, part, count); });
        } else {
            send_.resize(n);
            each_part([&](int part) {
                send_[static_cast<size_t>(part)].make(count_of(part) * width_, memory);
                fill(send_[static_cast<size_t>(part)], 0, part, count_of(part));
            });
        }
        break;
    default: break;
    }
}

// ------------------------------------------------------------------ the call

quoit_status_t Operation::issue(quoit_request_t **request, int timeout_ms)
{
    quoit_call_t call = QUOIT_CALL_INIT;
    if (elsewhere_) call = elsewhere_->call();
    call.timeout_ms = timeout_ms;
    memcpy(call.factor, factor_, sizeof factor_);
    const void *send = send_.empty() ? nullptr : send_[0].at;
    void *recv = recv_.empty() ? nullptr : recv_[0].at;
    size_t me = static_cast<size_t>(rank_), offset = me * case_.count * width_;
    quoit_dtype_t dtype = case_.dtype;
    switch (case_.collective) {
    case Collective::Allreduce: return quoit_allreduce(comm_, in_place_ ? recv : send, recv, case_.count, dtype, case_.op, &call, request);
    case Collective::Reduce:
        return quoit_reduce(comm_, in_place_ && recv ? recv : send, recv, case_.count, dtype, case_.op, case_.root, &call, request);
    case Collective::Broadcast: return quoit_broadcast(comm_, recv, case_.count, dtype, case_.root, &call, request);
    case Collective::Allgather:
        return quoit_allgather(comm_, in_place_ ? static_cast<char *>(recv) + offset : send, recv, case_.count, dtype, &call, request);
    case Collective::Allgatherv:
        return quoit_allgatherv(comm_, in_place_ ? recv_parts_[me].data : send, recv_parts_.data(), dtype, &call, request);
    case Collective::ReduceScatter:
        if (in_place_) recv = send_[0].at + offset;
        return quoit_reduce_scatter(comm_, send, recv, case_.count, dtype, case_.op, &call, request);
    case Collective::ReduceScatterv:
        if (in_place_) recv = send_parts_[me].data;
        return quoit_reduce_scatterv(comm_, send_parts_.data(), recv, dtype, case_.op, &call, request);
    case Collective::Alltoall: return quoit_alltoall(comm_, send, recv, case_.count, dtype, &call, request);
    case Collective::Alltoallv: return quoit_alltoallv(comm_, send_parts_.data(), recv_parts_.data(), dtype, &call, request);
    case Collective::Gather: return quoit_gather(comm_, send, recv, case_.count, dtype, case_.root, &call, request);
    case Collective::Gatherv:
        return quoit_gatherv(comm_, send, count_of(rank_), rank_ == case_.root ? recv_parts_.data() : nullptr, dtype, case_.root, &call, request);
    case Collective::Scatter: return quoit_scatter(comm_, send, recv, case_.count, dtype, case_.root, &call, request);
    case Collective::Scatterv:
        return quoit_scatterv(comm_, rank_ == case_.root ? send_parts_.data() : nullptr, recv, count_of(rank_), dtype, case_.root, &call, request);
    default: return quoit_barrier(comm_, &call, request);
    }
}

// ------------------------------------------------------------------ checking

std::string Operation::compare(const Block &block, size_t at, const Known &known, const char *what, int part) const
{
    const Bytes &expected = *known;
    if (expected.empty() || memcmp(block.data() + at, expected.data(), expected.size()) == 0) return "";
    size_t i = 0;
    while (block.data()[at + i] == expected[i]) i++;
    char text[160];
    snprintf(text, sizeof text, ": rank %d of %d: %s, part %d: byte %zu of %zu (element %zu) is 0x%02x, expected 0x%02x", rank_, size_, what, part, i,
             expected.size(), i / width_, block.data()[at + i], expected[i]);
    return case_.describe() + text;
}

std::string Operation::check_blocks()
{
    size_t n = static_cast<size_t>(size_), me = static_cast<size_t>(rank_), count = case_.count;
    bool root = rank_ == case_.root;
    std::string wrong;
    for (int part = 0; part < size_ && wrong.empty(); part++) {
        size_t p = static_cast<size_t>(part), at = p * count * width_;
        switch (case_.collective) {
        case Collective::Allgather: wrong = compare(recv_[0], at, input(part, 0, count), "gathered", part); break;
        case Collective::Allgatherv: wrong = compare(recv_[p], 0, input(part, 0, count_of(part)), "gathered", part); break;
        case Collective::Alltoall: wrong = compare(recv_[0], at, input(part, rank_, count), "received", part); break;
        case Collective::Alltoallv: wrong = compare(recv_[p], 0, input(part, rank_, case_.counts[p * n + me]), "received", part); break;
        case Collective::Gather:
            if (root) wrong = compare(recv_[0], at, input(part, 0, count), "gathered", part);
            break;
        case Collective::Gatherv:
            if (root) wrong = compare(recv_[p], 0, input(part, 0, count_of(part)), "gathered", part);
            break;
        default: break;
        }
    }
    switch (case_.collective) {
    case Collective::Allreduce: return compare(recv_[0], 0, reduced(0, count), "reduced", 0);
    case Collective::Reduce: return root ? compare(recv_[0], 0, reduced(0, count), "reduced", 0) : "";
    case Collective::Broadcast: return compare(recv_[0], 0, input(case_.root, 0, count), "broadcast", 0);
    case Collective::ReduceScatter:
        return in_place_ ? compare(send_[0], me * count * width_, reduced(rank_, count), "reduced", rank_)
                         : compare(recv_[0], 0, reduced(rank_, count), "reduced", rank_);
    case Collective::ReduceScatterv:
        return compare(in_place_ ? send_[me] : recv_[0], 0, reduced(rank_, count_of(rank_)), "reduced", rank_);
    case Collective::Scatter:
    case Collective::Scatterv: return compare(recv_[0], 0, input(case_.root, rank_, count_of(rank_)), "scattered", rank_);
    default: return wrong;
    }
}

// What is sent stays as it was, except where the result belongs.
std::string Operation::check_inputs()
{
    bool scatters = case_.collective == Collective::ReduceScatter || case_.collective == Collective::ReduceScatterv;
    for (size_t i = 0; i < send_.size(); i++) {
        Known known = send_before_[i];
        if (in_place_ && scatters) {
            Bytes before = *known;
            bool whole = case_.collective == Collective::ReduceScatterv;
            size_t at = whole ? 0 : static_cast<size_t>(rank_) * case_.count * width_;
            size_t length = whole ? (i == static_cast<size_t>(rank_) ? send_[i].bytes : 0) : case_.count * width_;
            if (length) memcpy(before.data() + at, send_[i].data() + at, length);
            known = std::make_shared<Bytes>(std::move(before));
        }
        std::string wrong = compare(send_[i], 0, known, "the input changed", static_cast<int>(i));
        if (!wrong.empty()) return wrong;
    }
    return "";
}

std::string Operation::check()
{
    std::string lost = take();
    if (!lost.empty()) return case_.describe() + ": " + lost;
    for (const auto *side : {&send_, &recv_})
        for (const Block &each : *side)
            if (!each.guards_hold()) return case_.describe() + ": rank " + std::to_string(rank_) + " wrote beside a buffer";
    std::string wrong = check_blocks();
    return wrong.empty() ? check_inputs() : wrong;
}

std::vector<unsigned char> Operation::result() const
{
    Bytes all;
    for (const Block &each : recv_) all.insert(all.end(), each.data(), each.data() + each.bytes);
    return all;
}

std::string perform(const Case &one, quoit_comm_t *comm, bool blocking, Elsewhere *elsewhere)
{
    Operation operation(one, comm, elsewhere);
    quoit_request_t *request = nullptr;
    quoit_status_t status = operation.issue(blocking ? nullptr : &request);
    if (status == QUOIT_OK && elsewhere) elsewhere->fetch();
    if (status == QUOIT_OK && !blocking) status = quoit_request_wait(request, -1);
    std::string wrong = status == QUOIT_OK ? operation.check() : one.describe() + ": " + quoit_last_error();
    quoit_request_free(request);
    return wrong;
}

} // namespace comm_test
