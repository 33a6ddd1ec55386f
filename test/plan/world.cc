// SPDX-License-Identifier: Apache-2.0
// See world.h. Inputs are functions of (seed, rank, block, index); outputs are compared with the same functions summed naively.
#include "world.h"
#include "test/support/built.h"

#include <cstring>
#include <sstream>

extern "C" {
#include "base/hash.h"
}

namespace plantest {

namespace {

constexpr size_t GUARD = 64;
constexpr unsigned char GUARD_BYTE = 0x5c;

bool rooted_output(plan_collective_t collective) { return collective == COLLECTIVE_REDUCE || collective == COLLECTIVE_GATHER; }

bool rooted_input(plan_collective_t collective) { return collective == COLLECTIVE_BROADCAST || collective == COLLECTIVE_SCATTER; }

bool reduces(plan_collective_t collective)
{
    return collective == COLLECTIVE_ALLREDUCE || collective == COLLECTIVE_REDUCE || collective == COLLECTIVE_REDUCE_SCATTER;
}

bool is_float(quoit_dtype_t dtype) { return dtype == QUOIT_F32 || dtype == QUOIT_F64 || dtype == QUOIT_BF16; }

uint16_t to_bf16(double value) // round to nearest, ties to even
{
    float single = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &single, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void put(quoit_dtype_t dtype, unsigned char *at, double value, int64_t integer)
{
    float single = static_cast<float>(value);
    uint16_t half = to_bf16(value);
    switch (dtype) {
    case QUOIT_F64: std::memcpy(at, &value, sizeof value); break;
    case QUOIT_F32: std::memcpy(at, &single, sizeof single); break;
    case QUOIT_BF16: std::memcpy(at, &half, sizeof half); break;
    case QUOIT_I64: std::memcpy(at, &integer, sizeof integer); break;
    default: std::memcpy(at, &integer, quoit_dtype_size(dtype)); break;
    }
}

double get(quoit_dtype_t dtype, const unsigned char *at)
{
    double value = 0;
    float single;
    uint16_t half;
    uint32_t bits;
    switch (dtype) {
    case QUOIT_F64: std::memcpy(&value, at, sizeof value); break;
    case QUOIT_F32:
        std::memcpy(&single, at, sizeof single);
        value = static_cast<double>(single);
        break;
    case QUOIT_BF16:
        std::memcpy(&half, at, sizeof half);
        bits = static_cast<uint32_t>(half) << 16;
        std::memcpy(&single, &bits, sizeof single);
        value = static_cast<double>(single);
        break;
    default: break;
    }
    return value;
}

int64_t combine(quoit_op_t op, int64_t a, int64_t b)
{
    switch (op) {
    case QUOIT_PROD: return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case QUOIT_MIN: return a < b ? a : b;
    case QUOIT_MAX: return a > b ? a : b;
    case QUOIT_BAND: return a & b;
    case QUOIT_BOR: return a | b;
    case QUOIT_BXOR: return a ^ b;
    default: return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    }
}

} // namespace

uint64_t Random::next()
{
    state_ = hash_mix(state_);
    return state_ >> 11;
}

std::vector<int> Random::grouping(int ranks)
{
    std::vector<int> host_of(static_cast<size_t>(ranks));
    size_t hosts = 1 + below(static_cast<size_t>(ranks)), shape = below(3);
    for (int rank = 0; rank < ranks; rank++) {
        size_t at = static_cast<size_t>(rank);
        host_of[at] = static_cast<int>(shape == 0 ? below(hosts) : shape == 1 ? at % hosts : at * hosts / host_of.size());
    }
    return host_of;
}

void for_each_grouping(int ranks, const std::function<void(const std::vector<int> &)> &visit)
{
    std::vector<int> host_of(static_cast<size_t>(ranks), 0);
    std::function<void(size_t, int)> place = [&](size_t rank, int hosts) {
        if (rank == host_of.size()) return visit(host_of);
        for (int host = 0; host <= hosts; host++) {
            host_of[rank] = host;
            place(rank + 1, host == hosts ? hosts + 1 : hosts);
        }
    };
    place(0, 0);
}

bool long_run() { return built_long_run(); }

tuning_t small_tuning()
{
    tuning_t tuning{};
    tuning.slot_size = 512;
    tuning.net_chunk_size = 512;
    tuning.small_limit = 256;
    tuning.eager_limit = 128;
    tuning.net_depth = 3;
    tuning.allreduce = -1;
    return tuning;
}

Topology make_topology(const std::vector<int> &host_of, const std::vector<uint64_t> &reach)
{
    topology_t *topology = nullptr;
    const uint64_t *words = reach.empty() ? nullptr : reach.data();
    if (topology_create(static_cast<int>(host_of.size()), host_of.data(), words, &topology) != QUOIT_OK) return nullptr;
    return Topology(topology);
}

std::string Case::describe() const
{
    std::ostringstream text;
    text << plan_collective_name(collective) << " " << plan_algorithm_name(algorithm) << (small ? " small" : "") << " root " << root
         << " " << quoit_dtype_name(dtype) << " " << quoit_op_name(op) << (premul ? " premul" : "") << (in_place ? " in place" : "")
         << (parts ? " parts" : "") << (wire ? " wire " : "") << (wire ? quoit_wire_name(wire) : "") << " data seed " << data_seed << " slot " << tuning.slot_size << " net chunk "
         << tuning.net_chunk_size << " depth " << tuning.net_depth << "\n  hosts";
    for (int host : host_of) text << " " << host;
    for (size_t i = 0; i < reach.size(); i++) text << (i ? " " : "\n  reach ") << reach[i];
    text << "\n  counts";
    for (size_t i = 0; i < counts.size() && i < 64; i++) text << " " << counts[i];
    return text.str();
}

quoit_status_t create_plan(const Case &one, const topology_t *topology, int rank, Plan *plan)
{
    plan_request_t request{};
    request.collective = one.collective;
    request.algorithm = one.algorithm;
    request.rank = rank;
    request.root = one.root;
    request.premul = one.premul;
    request.wire = plan_wire(topology, one.collective, one.algorithm, one.dtype, one.op, one.wire);
    request.share = plan_share(topology, one.algorithm, one.dtype, one.op, request.wire);
    request.small = one.small;
    plan_t *made = nullptr;
    quoit_status_t status = plan_create(topology, &one.tuning, &request, &made);
    if (status == QUOIT_OK) plan->reset(made);
    return status;
}

bool plan_fits(const Case &one)
{
    Topology topology = make_topology(one.host_of, one.reach);
    Plan plan;
    return create_plan(one, topology.get(), 0, &plan) == QUOIT_OK;
}

World::World(const Case &one)
    : case_(one), ranks_(one.ranks()), width_(quoit_dtype_size(one.dtype)), topology_(make_topology(one.host_of, one.reach))
{
    uniform_ = one.collective == COLLECTIVE_ALLREDUCE || one.collective == COLLECTIVE_REDUCE ||
               one.collective == COLLECTIVE_BROADCAST || one.collective == COLLECTIVE_BARRIER;
    sent.resize(static_cast<size_t>(topology_->hosts));
    received.resize(static_cast<size_t>(topology_->hosts));
    for (int rank = 0; rank < ranks_; rank++) {
        Plan plan;
        if (create_plan(one, topology_.get(), rank, &plan) != QUOIT_OK) {
            error = error_text();
            return;
        }
        plans_.push_back(std::move(plan));
        static const double factors[] = {1.0, 0.5, 2.0};
        factor_.push_back(one.premul ? factors[rank % 3] : 1.0);
        factor_.push_back(0.0);
    }
    lay_out();
    bind();
}

std::string World::validate() const
{
    for (const Plan &plan : plans_)
        if (plan_validate(plan.get(), topology_.get()) != QUOIT_OK) return error_text();
    return "";
}

bool World::has_side(int rank, bool send) const
{
    if (case_.collective == COLLECTIVE_BARRIER) return false;
    if (rank == case_.root) return true;
    return send ? !rooted_input(case_.collective) : !rooted_output(case_.collective);
}

size_t World::block_count(int rank, bool send, int block) const
{
    const std::vector<size_t> &counts = case_.counts;
    if (!has_side(rank, send)) return SIZE_MAX;
    if (uniform_) return block == 0 ? counts[0] : SIZE_MAX;
    bool own = block == rank;
    size_t at = static_cast<size_t>(block);
    switch (case_.collective) {
    case COLLECTIVE_ALLTOALL: {
        size_t from = static_cast<size_t>(send ? rank : block), to = static_cast<size_t>(send ? block : rank);
        return counts[from * static_cast<size_t>(ranks_) + to];
    }
    case COLLECTIVE_ALLGATHER:
    case COLLECTIVE_GATHER: return !send || own ? counts[at] : SIZE_MAX;
    default: return send || own ? counts[at] : SIZE_MAX;
    }
}

// Several blocks: one allocation each, or all in one, `counts` elements apart (then all counts are equal).
void World::lay_out_side(int rank, bool send)
{
    Side &side = (send ? send_ : recv_)[static_cast<size_t>(rank)];
    int blocks = uniform_ ? 1 : ranks_;
    side.blocks.resize(static_cast<size_t>(blocks));
    int present = 0;
    for (int block = 0; block < blocks; block++) {
        size_t count = block_count(rank, send, block);
        if (count == SIZE_MAX) continue;
        present++;
        side.blocks[static_cast<size_t>(block)].bytes = count * width_;
    }
    bool together = !uniform_ && present == ranks_ && ranks_ > 1 && !case_.parts;
    if (together) {
        Block &first = side.blocks[0];
        first.memory.assign(first.bytes * static_cast<size_t>(ranks_) + 2 * GUARD, GUARD_BYTE);
        return;
    }
    for (Block &block : side.blocks) block.memory.assign(block.bytes + 2 * GUARD, GUARD_BYTE);
    if (uniform_ || present < ranks_ || (ranks_ == 1 && !case_.parts)) return;
    for (Block &block : side.blocks) side.part.push_back({block.bytes ? block.data() : nullptr, block.bytes / width_});
}

unsigned char *World::block_data(int rank, bool send, int block)
{
    Side &side = (send ? send_ : recv_)[static_cast<size_t>(rank)];
    if (uniform_) return side.blocks[0].data();
    Block &own = side.blocks[static_cast<size_t>(block)];
    if (!own.memory.empty()) return own.data();
    return side.blocks[0].data() + static_cast<size_t>(block) * side.blocks[0].bytes;
}

void World::lay_out()
{
    send_.resize(static_cast<size_t>(ranks_));
    recv_.resize(static_cast<size_t>(ranks_));
    for (int rank = 0; rank < ranks_; rank++) {
        lay_out_side(rank, true);
        lay_out_side(rank, false);
    }
}

void World::bind()
{
    bindings_.resize(static_cast<size_t>(ranks_));
    for (int rank = 0; rank < ranks_; rank++) {
        plan_binding_t &binding = bindings_[static_cast<size_t>(rank)];
        binding.plan = plan(rank);
        binding.width = width_;
        binding.ranks = ranks_;
        for (bool send : {true, false}) {
            plan_side_t &to = send ? binding.send : binding.recv;
            Side &side = (send ? send_ : recv_)[static_cast<size_t>(rank)];
            to = plan_side_t{};
            if (!has_side(rank, send)) {
                if (uniform_) to.count = case_.counts.empty() ? 0 : case_.counts[0];
                continue;
            }
            size_t all = block_count(rank, send, rank == 0 && ranks_ > 1 ? 1 : 0);
            bool single = !uniform_ && ranks_ > 1 && all == SIZE_MAX;
            to.count = block_count(rank, send, single ? rank : 0);
            if (!side.part.empty()) {
                to.parts = side.part.data();
                to.count = 0;
                continue;
            }
            to.base = reinterpret_cast<char *>(block_data(rank, send, single ? rank : 0));
            to.stride = uniform_ || single ? 0 : to.count;
        }
        if (case_.in_place && has_side(rank, true) && has_side(rank, false)) {
            // The smaller side lies inside the larger one, and its own memory is not used.
            bool send_inside = uniform_ || case_.collective == COLLECTIVE_ALLGATHER || case_.collective == COLLECTIVE_GATHER;
            int block = uniform_ ? 0 : rank;
            plan_side_t &inner = send_inside ? binding.send : binding.recv;
            if (ranks_ > 1 || !inner.parts) inner.base = reinterpret_cast<char *>(block_data(rank, !send_inside, block));
        }
        plan_bind(&binding, &case_.tuning);
    }
}

double World::value(int rank, int block, size_t index) const
{
    uint64_t hash = hash_combine(case_.data_seed, hash_combine(static_cast<uint64_t>(rank * 1000 + block), index));
    if (case_.wide) return (static_cast<double>(hash % 2000001) - 1000000.0) / 777.0;
    if (case_.op == QUOIT_PROD) return hash % 2 ? 1.0 : 2.0;
    return static_cast<double>(hash % 41) - 20.0;
}

int64_t World::integer(int rank, int block, size_t index) const
{
    uint64_t hash = hash_combine(case_.data_seed, hash_combine(static_cast<uint64_t>(rank * 1000 + block), index));
    return static_cast<int64_t>(hash);
}

// Of output block `block`, whoever has it.
double World::expected(int block, size_t index) const
{
    double result = 0;
    for (int from = 0; from < ranks_; from++) {
        double scaled = value(from, uniform_ ? 0 : block, index) * factor_[static_cast<size_t>(from) * 2];
        result = from == 0 ? scaled
                 : case_.op == QUOIT_PROD ? result * scaled
                 : case_.op == QUOIT_MIN ? (scaled < result ? scaled : result)
                 : case_.op == QUOIT_MAX ? (scaled > result ? scaled : result)
                                         : result + scaled;
    }
    return case_.op == QUOIT_AVG ? result / ranks_ : result;
}

int64_t World::expected_integer(int block, size_t index) const
{
    int64_t result = integer(0, uniform_ ? 0 : block, index);
    for (int from = 1; from < ranks_; from++) result = combine(case_.op, result, integer(from, uniform_ ? 0 : block, index));
    return case_.op == QUOIT_AVG ? result / ranks_ : result;
}

void World::fill()
{
    for (int rank = 0; rank < ranks_; rank++) {
        for (Side *side : {&send_[static_cast<size_t>(rank)], &recv_[static_cast<size_t>(rank)]})
            for (Block &block : side->blocks) std::fill(block.memory.begin(), block.memory.end(), GUARD_BYTE);
        if (!has_side(rank, true)) continue;
        for (int block = 0; block < (uniform_ ? 1 : ranks_); block++) {
            size_t count = block_count(rank, true, block);
            if (count == SIZE_MAX) continue;
            plan_side_t &side = bindings_[static_cast<size_t>(rank)].send;
            unsigned char *base = side.parts ? static_cast<unsigned char *>(side.parts[block].data)
                                             : reinterpret_cast<unsigned char *>(side.base) + static_cast<size_t>(block) * side.stride * width_;
            for (size_t i = 0; i < count; i++) put(case_.dtype, base + i * width_, value(rank, block, i), integer(rank, block, i));
        }
    }
}

const std::vector<unsigned char> &World::right_block(int block, size_t count)
{
    right_.resize(static_cast<size_t>(ranks_));
    std::vector<unsigned char> &right = right_[static_cast<size_t>(block)];
    for (size_t i = right.size() / width_; i < count; i++) {
        unsigned char bytes[16];
        put(case_.dtype, bytes, is_float(case_.dtype) ? expected(block, i) : 0, expected_integer(block, i));
        right.insert(right.end(), bytes, bytes + width_);
    }
    return right;
}

std::string World::check_block(int rank, int block)
{
    size_t count = block_count(rank, false, block);
    if (count == SIZE_MAX) return "";
    plan_side_t &side = bindings_[static_cast<size_t>(rank)].recv;
    const unsigned char *base = side.parts ? static_cast<unsigned char *>(side.parts[block].data)
                                           : reinterpret_cast<unsigned char *>(side.base) + static_cast<size_t>(block) * side.stride * width_;
    for (size_t i = 0; i < count; i++) {
        unsigned char right[16];
        if (reduces(case_.collective)) {
            std::memcpy(right, right_block(block, count).data() + i * width_, width_);
            double error = case_.wide ? get(case_.dtype, base + i * width_) - get(case_.dtype, right) : 1;
            if (error < 0.05 && error > -0.05) continue;
        } else {
            int from = case_.collective == COLLECTIVE_BROADCAST || case_.collective == COLLECTIVE_SCATTER ? case_.root : block;
            int part = uniform_ ? 0 : case_.collective == COLLECTIVE_ALLTOALL ? rank : block;
            put(case_.dtype, right, value(from, part, i), integer(from, part, i));
        }
        if (std::memcmp(base + i * width_, right, width_) == 0) continue;
        return "rank " + std::to_string(rank) + " block " + std::to_string(block) + " element " + std::to_string(i) + " of " +
               std::to_string(count) + " is wrong";
    }
    return "";
}

// Nothing written around the blocks, and inputs as they were (unless they are outputs too).
std::string World::check_guards(int rank)
{
    for (const Side *side : {&send_[static_cast<size_t>(rank)], &recv_[static_cast<size_t>(rank)]}) {
        for (const Block &block : side->blocks) {
            for (size_t i = 0; i < GUARD && !block.memory.empty(); i++)
                if (block.memory[i] != GUARD_BYTE || block.memory[block.memory.size() - 1 - i] != GUARD_BYTE)
                    return "rank " + std::to_string(rank) + ": a byte beside a buffer was written";
        }
    }
    if (case_.in_place || !has_side(rank, true)) return "";
    for (int block = 0; block < (uniform_ ? 1 : ranks_); block++) {
        size_t count = block_count(rank, true, block);
        if (count == SIZE_MAX) continue;
        unsigned char *data = block_data(rank, true, block), right[16];
        for (size_t i = 0; i < count; i++) {
            put(case_.dtype, right, value(rank, block, i), integer(rank, block, i));
            if (std::memcmp(data + i * width_, right, width_) != 0) return "rank " + std::to_string(rank) + ": the input was changed";
        }
    }
    return "";
}

std::string World::check()
{
    for (int rank = 0; rank < ranks_; rank++) {
        for (int block = 0; block < (uniform_ ? 1 : ranks_); block++) {
            std::string wrong = check_block(rank, block);
            if (!wrong.empty()) return wrong;
        }
        std::string wrong = check_guards(rank);
        if (!wrong.empty()) return wrong;
    }
    return "";
}

std::string World::run(uint64_t seed)
{
    if (!error.empty()) return error;
    fill();
    simulation_t simulation{};
    simulation.topology = topology_.get();
    simulation.tuning = &case_.tuning;
    simulation.dtype = case_.dtype;
    simulation.op = case_.op;
    simulation.factor = reinterpret_cast<const double(*)[2]>(factor_.data());
    simulation.binding = bindings_.data();
    simulation.seed = seed;
    simulation.alpha = alpha;
    simulation.beta = beta;
    simulation.sent = sent.data();
    simulation.received = received.data();
    if (simulate_run(&simulation) != QUOIT_OK) return error_text();
    messages = simulation.messages;
    seconds = simulation.seconds;
    return check();
}

std::vector<unsigned char> World::output(int rank) const
{
    const plan_side_t &side = bindings_[static_cast<size_t>(rank)].recv;
    const auto *base = reinterpret_cast<const unsigned char *>(side.base);
    return {base, base + case_.counts[0] * width_};
}

} // namespace plantest
