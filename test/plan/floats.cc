// SPDX-License-Identifier: Apache-2.0
#include "floats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "test/reduce/reference.h"

namespace plantest {
namespace {

void put(quoit_dtype_t dtype, unsigned char *at, double value)
{
    float single = static_cast<float>(value);
    uint32_t code = 0;
    switch (dtype) {
    case QUOIT_F64: std::memcpy(at, &value, 8); return;
    case QUOIT_F32: std::memcpy(at, &single, 4); return;
    default:
        code = reference::encode(dtype, value);
        std::memcpy(at, &code, quoit_dtype_size(dtype)); // little-endian
    }
}

double get(quoit_dtype_t dtype, const unsigned char *at)
{
    double value = 0;
    float single = 0;
    uint32_t code = 0;
    switch (dtype) {
    case QUOIT_F64: std::memcpy(&value, at, 8); return value;
    case QUOIT_F32: std::memcpy(&single, at, 4); return static_cast<double>(single);
    default: std::memcpy(&code, at, quoit_dtype_size(dtype)); return reference::decode(dtype, code);
    }
}

plan_request_t request_of(const Sum &sum, const topology_t *topology, int rank)
{
    plan_request_t request{};
    request.collective = sum.collective;
    request.algorithm = sum.algorithm;
    request.rank = rank;
    request.root = sum.root;
    request.premul = sum.op == QUOIT_PREMUL_SUM;
    request.wire = plan_wire(topology, sum.collective, sum.algorithm, sum.dtype, sum.op, sum.wire);
    request.share = plan_share(topology, sum.algorithm, sum.dtype, sum.op, request.wire);
    request.small = sum.small;
    return request;
}

// What a rank's side has: the whole vector or all blocks, or one block, or nothing.
size_t side_count(const Sum &sum, int rank, bool send)
{
    bool scatters = sum.collective == COLLECTIVE_REDUCE_SCATTER;
    if (send) return scatters ? sum.count * sum.host_of.size() : sum.count;
    if (sum.collective == COLLECTIVE_REDUCE && rank != sum.root) return 0;
    return sum.count;
}

} // namespace

double factor_of(int rank)
{
    static const double factors[] = {1.0, 0.5, -2.0};
    return factors[rank % 3];
}

double unit_of(quoit_dtype_t dtype)
{
    switch (dtype) {
    case QUOIT_F32: return 0x1p-24;
    case QUOIT_F16: return 0x1p-11;
    case QUOIT_BF16: return 0x1p-8;
    case QUOIT_F8_E4M3: return 0x1p-4;
    case QUOIT_F8_E5M2: return 0x1p-3;
    default: return 0x1p-53;
    }
}

double step_of(quoit_dtype_t dtype)
{
    switch (dtype) {
    case QUOIT_F16: return 0x1p-24;
    case QUOIT_F8_E4M3: return 0x1p-9;
    case QUOIT_F8_E5M2: return 0x1p-16;
    default: return 0x1p-133;
    }
}

std::string Sum::describe() const
{
    std::ostringstream text;
    text << plan_collective_name(collective) << " " << plan_algorithm_name(algorithm) << (small ? " small" : "") << " " << quoit_dtype_name(dtype)
         << " " << quoit_op_name(op) << " wire " << quoit_wire_name(wire) << (in_place ? " in place" : "") << " root " << root << " count " << count << " chunk "
         << tuning.net_chunk_size << " depth " << tuning.net_depth << " hosts";
    for (int host : host_of) text << " " << host;
    return text.str();
}

bool sum_fits(const Sum &sum)
{
    Topology topology = make_topology(sum.host_of);
    plan_request_t request = request_of(sum, topology.get(), 0);
    plan_t *made = nullptr;
    if (plan_create(topology.get(), &sum.tuning, &request, &made) != QUOIT_OK) return false;
    plan_destroy(made);
    return true;
}

SumResult run_sum(const Sum &sum, const std::function<double(int, size_t)> &value, uint64_t seed)
{
    SumResult result;
    const int ranks = sum.ranks();
    const size_t width = quoit_dtype_size(sum.dtype);
    Topology topology = make_topology(sum.host_of);
    std::vector<std::vector<unsigned char>> send(sum.host_of.size());
    std::vector<plan_binding_t> bindings(sum.host_of.size());
    std::vector<double> factors;
    size_t total = side_count(sum, 0, true);
    result.output.resize(sum.host_of.size());
    result.value.resize(sum.host_of.size());
    result.sent.resize(static_cast<size_t>(topology->hosts));
    result.received.resize(static_cast<size_t>(topology->hosts));
    result.exact.assign(total, 0);
    result.weight.assign(total, 0);
    for (int rank = 0; rank < ranks; rank++) {
        size_t at = static_cast<size_t>(rank);
        plan_request_t request = request_of(sum, topology.get(), rank);
        plan_t *made = nullptr;
        if (plan_create(topology.get(), &sum.tuning, &request, &made) != QUOIT_OK || plan_validate(made, topology.get()) != QUOIT_OK) {
            result.plans.emplace_back(made);
            result.error = error_text();
            return result;
        }
        result.plans.emplace_back(made);
        double factor = sum.op == QUOIT_PREMUL_SUM ? factor_of(rank) : 1.0;
        factors.push_back(factor);
        factors.push_back(0.0);
        send[at].assign(total * width + 1, 0);
        for (size_t i = 0; i < total; i++) {
            put(sum.dtype, send[at].data() + i * width, value(rank, i));
            double held = get(sum.dtype, send[at].data() + i * width) * factor;
            if (sum.op == QUOIT_AVG) held /= ranks;
            result.exact[i] += held;
            result.weight[i] += std::fabs(held);
        }
        result.output[at].assign(side_count(sum, rank, false) * width + 1, 0);
        plan_binding_t &binding = bindings[at];
        binding = {};
        binding.plan = made;
        binding.width = width;
        binding.ranks = ranks;
        bool scatters = sum.collective == COLLECTIVE_REDUCE_SCATTER;
        binding.send.base = reinterpret_cast<char *>(send[at].data());
        binding.send.count = sum.count;
        binding.send.stride = scatters ? sum.count : 0;
        binding.recv.base = reinterpret_cast<char *>(result.output[at].data());
        binding.recv.count = sum.count;
        if (sum.in_place && !scatters && side_count(sum, rank, false)) binding.recv.base = binding.send.base;
        plan_bind(&binding, &sum.tuning);
    }
    result.plan = result.plans[0].get();
    simulation_t simulation{};
    simulation.topology = topology.get();
    simulation.tuning = &sum.tuning;
    simulation.dtype = sum.dtype;
    simulation.op = sum.op;
    simulation.factor = reinterpret_cast<const double(*)[2]>(factors.data());
    simulation.binding = bindings.data();
    simulation.seed = seed;
    result.residual.assign(sum.host_of.size(), std::vector<float>(sum.count, 0));
    std::vector<float *> residuals;
    for (std::vector<float> &each : result.residual) residuals.push_back(each.data());
    simulation.residual = sum.residual ? residuals.data() : nullptr;
    simulation.sent = result.sent.data();
    simulation.received = result.received.data();
    if (simulate_run(&simulation) != QUOIT_OK) {
        result.error = error_text();
        return result;
    }
    for (int rank = 0; rank < ranks; rank++) {
        size_t at = static_cast<size_t>(rank), count = side_count(sum, rank, false);
        if (sum.in_place && bindings[at].recv.base == bindings[at].send.base) result.output[at] = send[at];
        result.output[at].resize(count * width);
        for (size_t i = 0; i < count; i++) result.value[at].push_back(get(sum.dtype, result.output[at].data() + i * width));
    }
    return result;
}

/* The dtype without infinities: what is beyond its largest number becomes that, as in PyTorch. */
static double within(quoit_dtype_t dtype, double value) { return dtype == QUOIT_F8_E4M3 ? std::clamp(value, -448.0, 448.0) : value; }

void check_sum(const Sum &sum, const SumResult &result, const std::function<double(double)> &bound, const std::string &drawn)
{
    bool scatters = sum.collective == COLLECTIVE_REDUCE_SCATTER;
    for (int rank = 0; rank < sum.ranks(); rank++) {
        const std::vector<double> &value = result.value[static_cast<size_t>(rank)];
        if (sum.collective == COLLECTIVE_ALLREDUCE) {
            ASSERT_EQ(result.output[static_cast<size_t>(rank)], result.output[0]) << "rank " << rank << ", " << drawn << ", " << sum.describe();
        }
        for (size_t i = 0; i < value.size(); i++) {
            size_t at = (scatters ? static_cast<size_t>(rank) * sum.count : 0) + i;
            ASSERT_LE(std::fabs(value[i] - within(sum.dtype, result.exact[at])), bound(result.weight[at]))
                << "rank " << rank << " element " << i << ": " << value[i] << " for " << result.exact[at] << ", " << drawn << ", " << sum.describe();
        }
    }
}

} // namespace plantest
