// SPDX-License-Identifier: Apache-2.0
// Joining plans with buffers: lengths of chunks, parts, and where operands lie.
#include <gtest/gtest.h>

#include "world.h"

namespace plantest {
namespace {

TEST(Parts, CoverAndAlign)
{
    Random random(3);
    for (int i = 0; i < 20000; i++) {
        size_t width = size_t{1} << random.below(5), count = random.below(i % 2 ? 100 : 100000);
        int parts = 1 + static_cast<int>(random.below(70));
        size_t before = 0, largest = 0, smallest = SIZE_MAX;
        for (int part = 0; part < parts; part++) {
            size_t begin = plan_part_begin(count, width, parts, part), end = plan_part_begin(count, width, parts, part + 1);
            ASSERT_EQ(begin, before);
            ASSERT_LE(begin, end);
            ASSERT_TRUE(begin * width % 64 == 0 || begin == count) << begin << " of " << count << " width " << width;
            before = end;
            if (end == count) continue;
            largest = std::max(largest, end - begin);
            smallest = std::min(smallest, end - begin);
        }
        ASSERT_EQ(before, count);
        if (largest > 0) {
            ASSERT_LE((largest - smallest) * width, 64u) << count << " in " << parts;
        }
    }
    EXPECT_EQ(plan_part_begin(SIZE_MAX / 2, 1, 64, 64), SIZE_MAX / 2);
}

plan_binding_t bind(plan_collective_t collective, plan_algorithm_t algorithm, bool small, const std::vector<int> &host_of, size_t count,
                    size_t width, const tuning_t &tuning, Plan *plan, int rank = 0)
{
    Case one;
    one.host_of = host_of;
    one.collective = collective;
    one.algorithm = algorithm;
    one.small = small;
    Topology topology = make_topology(host_of);
    EXPECT_EQ(create_plan(one, topology.get(), rank, plan), QUOIT_OK) << error_text();
    plan_binding_t binding{};
    binding.plan = plan->get();
    binding.width = width;
    binding.ranks = one.ranks();
    binding.send.count = binding.recv.count = count;
    plan_bind(&binding, &tuning);
    return binding;
}

tuning_t usual_tuning()
{
    tuning_t tuning{};
    tuning.slot_size = 256 << 10;
    tuning.net_chunk_size = 512 << 10;
    tuning.small_limit = 16 << 10;
    tuning.net_depth = 4;
    tuning.allreduce = -1;
    return tuning;
}

TEST(Bind, ChunksOfEachAlgorithm)
{
    tuning_t tuning = usual_tuning();
    std::vector<int> host(4, 0), spread{0, 0, 1, 1};
    Plan plan;
    plan_binding_t binding = bind(COLLECTIVE_ALLREDUCE, ALGORITHM_FLAT, true, host, 4096, 4, tuning, &plan);
    EXPECT_EQ(binding.chunk, 4096u);
    EXPECT_EQ(binding.chunks, 1u);
    EXPECT_EQ(plan_slot_bytes(&binding), size_t{PLAN_SMALL_SLOT});
    binding = bind(COLLECTIVE_ALLREDUCE, ALGORITHM_WINDOW, false, host, 1 << 20, 4, tuning, &plan);
    EXPECT_EQ(binding.chunk, 65536u);
    EXPECT_EQ(binding.chunks, 16u);
    binding = bind(COLLECTIVE_REDUCE_SCATTER, ALGORITHM_WINDOW, false, host, 1 << 20, 4, tuning, &plan);
    EXPECT_EQ(binding.chunk, 16384u);
    binding = bind(COLLECTIVE_ALLREDUCE, ALGORITHM_TWO_LEVEL, false, spread, 1 << 20, 4, tuning, &plan);
    EXPECT_EQ(binding.chunk, 131072u);
    binding = bind(COLLECTIVE_ALLREDUCE, ALGORITHM_RING, false, spread, 1 << 20, 4, tuning, &plan);
    EXPECT_EQ(binding.chunk, 4u * 131072u) << "a message has one net chunk";
    binding = bind(COLLECTIVE_ALLREDUCE, ALGORITHM_RING, false, spread, 100, 4, tuning, &plan);
    EXPECT_EQ(binding.chunk, 112u) << "scratch is not larger than the data";
    EXPECT_EQ(binding.chunks, 1u);
}

TEST(Bind, EmptyAndOdd)
{
    tuning_t tuning = usual_tuning();
    Plan plan;
    plan_binding_t binding = bind(COLLECTIVE_ALLREDUCE, ALGORITHM_WINDOW, false, {0, 0}, 0, 8, tuning, &plan);
    EXPECT_EQ(binding.chunks, 1u);
    tuning.slot_size = 1;
    binding = bind(COLLECTIVE_ALLREDUCE, ALGORITHM_WINDOW, false, {0, 0}, 5, 16, tuning, &plan);
    EXPECT_EQ(binding.chunk, 1u) << "at least one element";
    EXPECT_EQ(binding.chunks, 5u);
    binding = bind(COLLECTIVE_BARRIER, ALGORITHM_FLAT, true, {0, 0}, 0, 0, usual_tuning(), &plan);
    EXPECT_EQ(binding.chunks, 1u) << "a barrier may have elements of no width";
}

TEST(Bind, SlotsOfManyRanksStaySmall)
{
    Plan plan;
    for (int ranks : {16, 100, 1000, 8000}) {
        std::vector<int> host_of;
        for (int rank = 0; rank < ranks; rank++) host_of.push_back(rank / 8);
        plan_binding_t binding = bind(COLLECTIVE_ALLGATHER, ALGORITHM_TWO_LEVEL, false, host_of, 1 << 20, 4, usual_tuning(), &plan, 5);
        EXPECT_LE(plan_slot_bytes(&binding), size_t{8} << 20) << ranks;
        EXPECT_GE(binding.chunk * 4, std::min<size_t>(16 << 10, (size_t{8} << 20) / static_cast<size_t>(ranks) / 2)) << ranks;
    }
}

// Ranks that know different blocks must agree on the length of a chunk.
TEST(Bind, ChunkOfPartlyKnownBlocks)
{
    tuning_t tuning = usual_tuning();
    for (plan_collective_t collective : {COLLECTIVE_GATHER, COLLECTIVE_SCATTER, COLLECTIVE_ALLTOALL}) {
        Plan plan;
        size_t first = bind(collective, ALGORITHM_DIRECT, false, {0, 0, 1}, 3, 4, tuning, &plan).chunk;
        EXPECT_EQ(bind(collective, ALGORITHM_DIRECT, false, {0, 0, 1}, 1 << 22, 4, tuning, &plan, 1).chunk, first);
    }
}

TEST(Locate, BlocksAndParts)
{
    Plan plan;
    tuning_t tuning = usual_tuning();
    tuning.slot_size = 1024;
    plan_binding_t binding = bind(COLLECTIVE_REDUCE_SCATTER, ALGORITHM_WINDOW, false, {0, 0}, 1000, 4, tuning, &plan);
    ASSERT_EQ(binding.chunk, 128u);
    std::vector<float> send(2000), recv(1000);
    binding.send.base = reinterpret_cast<char *>(send.data());
    binding.send.stride = 1000;
    binding.recv.base = reinterpret_cast<char *>(recv.data());
    plan_operand_t operand{};
    operand.space = SPACE_SEND;
    operand.block = 1;
    operand.parts = operand.count = 1;
    plan_piece_t piece;
    plan_locate(&binding, 7, &operand, &piece);
    EXPECT_EQ(piece.data, reinterpret_cast<char *>(send.data() + 1000 + 7 * 128));
    EXPECT_EQ(piece.count, 1000u - 7 * 128);
    operand.parts = 2;
    operand.first = 1;
    plan_locate(&binding, 7, &operand, &piece);
    EXPECT_EQ(piece.data, reinterpret_cast<char *>(send.data() + 1000 + 7 * 128 + 48));
    operand.space = SPACE_SLOT;
    operand.place = 1;
    plan_locate(&binding, 0, &operand, &piece);
    EXPECT_EQ(piece.data, nullptr);
    EXPECT_EQ(piece.offset, (128u + 64u) * 4);
    EXPECT_EQ(piece.count, 64u);
    plan_locate(&binding, 99, &operand, &piece);
    EXPECT_EQ(piece.count, 0u) << "beyond the last chunk there is nothing";
    quoit_part_t parts[] = {{send.data(), 5}, {nullptr, 0}};
    binding.send.parts = parts;
    operand.space = SPACE_SEND;
    plan_locate(&binding, 0, &operand, &piece);
    EXPECT_EQ(piece.data, nullptr);
    EXPECT_TRUE(plan_skips(&operand, &piece));
}

} // namespace
} // namespace plantest
