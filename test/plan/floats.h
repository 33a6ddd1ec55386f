// SPDX-License-Identifier: Apache-2.0
// Reductions of float values by the plans of all ranks in the simulator, beside the exact sum: for tests that bound the error instead
// of expecting certain bits. Values are rounded to the dtype first, so the model knows what the ranks really hold.
#pragma once

#include "world.h"

namespace plantest {

struct Sum {
    std::vector<int> host_of;
    plan_collective_t collective = COLLECTIVE_ALLREDUCE;
    plan_algorithm_t algorithm = ALGORITHM_RING;
    bool small = false, in_place = false;
    quoit_dtype_t dtype = QUOIT_F32;
    quoit_wire_t wire = QUOIT_WIRE_DEFAULT;
    bool residual = false;     // wanted
    quoit_op_t op = QUOIT_SUM; // SUM, AVG, PREMUL_SUM (factors 1, 0.5, -2, 1, ...)
    size_t count = 0;          // of the vector, or of each block
    int root = 0;
    tuning_t tuning = small_tuning();
    int ranks() const { return static_cast<int>(host_of.size()); }
    std::string describe() const;
};

struct SumResult {
    std::string error;                              // of plans or simulator
    std::vector<std::vector<unsigned char>> output; // of each rank; empty where it has none
    std::vector<std::vector<double>> value;         // the same as numbers
    std::vector<uint64_t> sent, received;           // by host
    std::vector<std::vector<float>> residual;       // of each rank, when wanted
    plan_t *plan = nullptr;                         // of rank 0; valid as long as `plans`
    std::vector<Plan> plans;
    // By output element (of the vector, or block after block): exact result, and the sum of the magnitudes of what was added.
    std::vector<double> exact, weight;
};

// value(rank, index) over the vector, or over all blocks.
SumResult run_sum(const Sum &sum, const std::function<double(int, size_t)> &value, uint64_t seed);
// Each value is within bound(weight of its element) of the exact one, and an allreduce leaves the same bits on all ranks. `drawn` names the
// values in messages.
void check_sum(const Sum &sum, const SumResult &result, const std::function<double(double)> &bound, const std::string &drawn);
bool sum_fits(const Sum &sum);
double factor_of(int rank);

// Largest relative error of rounding a normal number to dtype, and the smallest step of its subnormal ones.
double unit_of(quoit_dtype_t dtype);
double step_of(quoit_dtype_t dtype);

} // namespace plantest
