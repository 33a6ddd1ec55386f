// SPDX-License-Identifier: Apache-2.0
// A world of simulated ranks: buffers with values known in advance, one plan a rank, and what must be in the outputs afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include "scheduler/simulate.h"
}

namespace plantest {

struct PlanDelete {
    void operator()(plan_t *plan) const { plan_destroy(plan); }
};
using Plan = std::unique_ptr<plan_t, PlanDelete>;

struct TopologyDelete {
    void operator()(topology_t *topology) const { topology_destroy(topology); }
};
using Topology = std::unique_ptr<topology_t, TopologyDelete>;
Topology make_topology(const std::vector<int> &host_of, const std::vector<uint64_t> &reach = {}); // reach: who leads, see topology_create

// Small limits, so that few elements make many chunks.
tuning_t small_tuning();

struct Case {
    std::vector<int> host_of;
    std::vector<uint64_t> reach; // empty: the lowest ranks lead
    plan_collective_t collective = COLLECTIVE_ALLREDUCE;
    plan_algorithm_t algorithm = ALGORITHM_LOCAL;
    bool small = false, premul = false, in_place = false;
    bool parts = false; // blocks in allocations of their own
    int root = 0;
    quoit_dtype_t dtype = QUOIT_I64;
    quoit_op_t op = QUOIT_SUM;
    // Elements. Uniform: counts[0]; alltoall: of the block from rank i to rank j at i * ranks + j; else of rank r's block.
    std::vector<size_t> counts;
    tuning_t tuning = small_tuning();
    quoit_wire_t wire = QUOIT_WIRE_DEFAULT; // where the case is fit for it
    bool wide = false; // values that floats cannot add exactly
    uint64_t data_seed = 1;

    std::string describe() const;
    int ranks() const { return static_cast<int>(host_of.size()); }
};

// The request a rank makes; QUOIT_OK if the algorithm exists and fits.
quoit_status_t create_plan(const Case &one, const topology_t *topology, int rank, Plan *plan);
bool plan_fits(const Case &one);

class World {
  public:
    explicit World(const Case &one);
    World(const World &) = delete;
    World &operator=(const World &) = delete;
    // Change a rank's plan before the run.
    plan_t *plan(int rank) { return plans_[static_cast<size_t>(rank)].get(); }
    const topology_t *topology() const { return topology_.get(); }
    const plan_binding_t &binding(int rank) const { return bindings_[static_cast<size_t>(rank)]; }
    // "" or what plan_validate says about the first wrong plan.
    std::string validate() const;
    // "" or what went wrong: in the simulator, or in the outputs. Buffers are filled anew on each call.
    std::string run(uint64_t seed);
    // Bytes of a rank's outputs after a run.
    std::vector<unsigned char> output(int rank) const;
    std::vector<uint64_t> sent, received; // bytes by host
    uint64_t messages = 0;
    double seconds = 0, alpha = 0, beta = 0;
    std::string error; // plans could not be made

  private:
    struct Block {
        std::vector<unsigned char> memory; // with guards on both sides
        size_t bytes = 0;
        unsigned char *data() { return memory.data() + 64; }
        const unsigned char *data() const { return memory.data() + 64; }
    };
    // One side of one rank: several blocks in one allocation (stride) or each in its own.
    struct Side {
        std::vector<Block> blocks;      // 1, or one a rank
        std::vector<quoit_part_t> part; // empty: stride
    };
    void lay_out();
    void lay_out_side(int rank, bool send);
    void fill();
    void bind();
    bool has_side(int rank, bool send) const;
    size_t block_count(int rank, bool send, int block) const; // elements; SIZE_MAX: no such block
    unsigned char *block_data(int rank, bool send, int block);
    std::string check();
    std::string check_block(int rank, int block);
    std::string check_guards(int rank);
    double value(int rank, int block, size_t index) const;
    double expected(int block, size_t index) const;
    int64_t integer(int rank, int block, size_t index) const;
    int64_t expected_integer(int block, size_t index) const;
    const std::vector<unsigned char> &right_block(int block, size_t count); // of a reduction, computed once

    Case case_;
    int ranks_;
    bool uniform_;
    size_t width_;
    Topology topology_;
    std::vector<Plan> plans_;
    std::vector<Side> send_, recv_;
    std::vector<plan_binding_t> bindings_;
    std::vector<double> factor_; // two a rank
    std::vector<std::vector<unsigned char>> right_;
};

// Seeded choice, the same everywhere.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
    uint64_t next();
    size_t below(size_t limit) { return static_cast<size_t>(next() % limit); }
    std::vector<int> grouping(int ranks); // hosts of all sorts of sizes, ranks mixed
  private:
    uint64_t state_;
};

// All partitions of `ranks` ranks into hosts.
void for_each_grouping(int ranks, const std::function<void(const std::vector<int> &)> &visit);

bool long_run(); // QUOIT_TEST_LONG=1

} // namespace plantest
