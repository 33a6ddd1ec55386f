// SPDX-License-Identifier: Apache-2.0
// Groups of a communicator's ranks, wrong arguments, and what is given back.
#include "operations.h"
#include "ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <numeric>
#include <thread>
#include <unistd.h>

using namespace comm_test;

namespace {

using Hosts = std::vector<int>;

std::string sum(quoit_comm_t *comm, size_t count = 50)
{
    Case one;
    one.count = count;
    return perform(one, comm, true);
}

// Many groups, made in another order on each rank, without a word between them, with members coming at different times.
TEST(Groups, ManyInAnyOrder)
{
    const int count = 300;
    for (const Hosts &host_of : {Hosts{0, 0, 0}, Hosts{0, 0, 1, 1}}) {
        run_ranks({.host_of = host_of}, [&](Rank &self) {
            struct Group {
                std::vector<int> members;
                std::string name;
                quoit_comm_t *comm = nullptr;
            };
            std::vector<Group> groups(count);
            for (int i = 0; i < count; i++) {
                std::vector<int> all(static_cast<size_t>(self.size));
                std::iota(all.begin(), all.end(), 0);
                for (size_t k = all.size(); k > 1; k--) std::swap(all[k - 1], all[self.random() % k]);
                all.resize(1 + self.random() % all.size());
                groups[static_cast<size_t>(i)] = {all, "group " + std::to_string(i), nullptr};
            }
            std::vector<size_t> order(groups.size());
            std::iota(order.begin(), order.end(), 0);
            std::mt19937 own(static_cast<unsigned>(seed()) + static_cast<unsigned>(self.rank));
            std::shuffle(order.begin(), order.end(), own);
            for (size_t which : order) {
                Group &group = groups[which];
                if (std::find(group.members.begin(), group.members.end(), self.rank) == group.members.end()) continue;
                ASSERT_EQ(quoit_comm_create_group(self.comm, group.members.data(), static_cast<int>(group.members.size()), group.name.c_str(), nullptr,
                                                  &group.comm),
                          QUOIT_OK)
                    << quoit_last_error();
                EXPECT_EQ(quoit_comm_size(group.comm), static_cast<int>(group.members.size()));
                EXPECT_EQ(group.members[static_cast<size_t>(quoit_comm_rank(group.comm))], self.rank);
            }
            if (self.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
            for (int round = 0; round < 2; round++) /* collectives in the same order everywhere, blocking */
                for (Group &group : groups) {
                    if (!group.comm) continue;
                    std::string wrong = sum(group.comm);
                    EXPECT_EQ(wrong, "") << group.name;
                    if (!wrong.empty()) return;
                }
            std::vector<std::unique_ptr<Operation>> operations;
            std::vector<quoit_request_t *> requests;
            for (size_t which : order) { /* in another order on each rank, not blocking */
                Group &group = groups[which];
                if (!group.comm) continue;
                Case one;
                one.count = which % 7 ? 40 : 9000;
                operations.push_back(std::make_unique<Operation>(one, group.comm));
                requests.push_back(nullptr);
                ASSERT_EQ(operations.back()->issue(&requests.back()), QUOIT_OK) << quoit_last_error();
            }
            for (size_t i = 0; i < requests.size(); i++) {
                EXPECT_EQ(quoit_request_wait(requests[i], -1), QUOIT_OK) << quoit_request_error(requests[i]);
                EXPECT_EQ(operations[i]->check(), "");
                quoit_request_free(requests[i]);
            }
            std::shuffle(order.begin(), order.end(), own);
            for (size_t which : order) quoit_comm_destroy(groups[which].comm);
            EXPECT_EQ(sum(self.comm), "");
            self.meet();
            test_engine_state_t state;
            test_engine_look(self.engine, &state);
            EXPECT_EQ(state.comms, 1);
            EXPECT_EQ(state.running, 0);
            EXPECT_EQ(state.transfers, 0);
            EXPECT_EQ(state.sections, 0) << "windows of destroyed groups were not given back";
            EXPECT_EQ(state.orphan_bytes, 0u);
            self.meet();
        });
    }
}

// A member that never makes the group: the others' windows go all the same once the group has failed. Coming late, it is told.
TEST(Groups, AMemberThatNeverCame)
{
    run_ranks({.host_of = {0, 0, 0}}, [&](Rank &self) {
        int members[] = {0, 1, 2};
        quoit_comm_t *group = nullptr, *other = nullptr;
        test_engine_state_t state;
        if (self.rank != 2) {
            ASSERT_EQ(quoit_comm_create_group(self.comm, members, 3, "lonely", nullptr, &group), QUOIT_OK);
            if (self.rank == 0) quoit_comm_abort(group, "nobody comes");
            EXPECT_NE(sum(group), "");
            quoit_comm_destroy(group);
        }
        self.meet();
        ASSERT_EQ(quoit_comm_create_group(self.comm, members, 3, "next", nullptr, &other), QUOIT_OK); /* looks what can go */
        test_engine_look(self.engine, &state);
        EXPECT_EQ(state.sections, 0) << "rank " << self.rank;
        self.meet();
        if (self.rank == 2) {
            ASSERT_EQ(quoit_comm_create_group(self.comm, members, 3, "lonely", nullptr, &group), QUOIT_OK);
            EXPECT_NE(sum(group).find("nobody comes"), std::string::npos) << sum(group);
            quoit_comm_destroy(group);
        }
        EXPECT_EQ(sum(other), "");
        quoit_comm_destroy(other);
    });
}

// The same in a group that is well: what nobody has called has left nothing to read, so nothing is kept. Coming late, the member is told.
TEST(Groups, AMemberThatNeverCameAndNothingWasCalled)
{
    int rounds = has_sanitizer() ? 800 : 1500; /* more than a directory has entries */
    run_ranks({.host_of = {0, 0, 0}}, [&](Rank &self) {
        int members[] = {0, 1, 2};
        quoit_comm_t *group = nullptr;
        test_engine_state_t state;
        for (int round = 0; round < rounds && self.rank != 2; round++) {
            std::string name = "lonely " + std::to_string(round);
            ASSERT_EQ(quoit_comm_create_group(self.comm, members, 3, name.c_str(), nullptr, &group), QUOIT_OK) << name << ": " << quoit_last_error();
            quoit_comm_destroy(group);
        }
        self.meet();
        test_engine_look(self.engine, &state);
        EXPECT_EQ(state.sections, 0) << "rank " << self.rank;
        self.meet();
        if (self.rank == 2) {
            std::string name = "lonely " + std::to_string(rounds - 1);
            ASSERT_EQ(quoit_comm_create_group(self.comm, members, 3, name.c_str(), nullptr, &group), QUOIT_OK);
            std::string text = sum(group);
            EXPECT_NE(text.find("has destroyed its communicator or ended"), std::string::npos) << text;
            quoit_comm_destroy(group);
        }
        EXPECT_EQ(sum(self.comm), "");
        test_engine_look(self.engine, &state);
        EXPECT_EQ(state.sections, 0) << "rank " << self.rank;
        self.meet();
    });
}

// What was broadcast before a member came is kept for it, of the newest groups: not without bounds.
TEST(Groups, AMemberThatComesAfterTheRootHasLeft)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        const int count = 300;
        int members[] = {0, 1};
        test_engine_state_t state;
        auto name = [](int round) { return "broadcast " + std::to_string(round); };
        auto broadcast = [&](int round, bool last) {
            quoit_comm_t *group = nullptr;
            int value = self.rank == 0 ? round : -1;
            ASSERT_EQ(quoit_comm_create_group(self.comm, members, 2, name(round).c_str(), nullptr, &group), QUOIT_OK) << quoit_last_error();
            quoit_status_t status = quoit_broadcast(group, &value, 1, QUOIT_I32, 0, nullptr, nullptr);
            EXPECT_EQ(status, last ? QUOIT_OK : QUOIT_ERR_PEER) << round << ": " << quoit_last_error();
            EXPECT_EQ(value, last ? round : -1);
            quoit_comm_destroy(group);
        };
        for (int round = 0; round < count && self.rank == 0; round++) broadcast(round, true);
        self.meet();
        test_engine_look(self.engine, &state);
        if (self.rank == 0) {
            EXPECT_GT(state.sections, 50);
            EXPECT_LT(state.sections, 200) << "windows are kept without bounds";
        }
        self.meet();
        for (int round : {count - 1, count - 50}) /* kept */
            if (self.rank == 1) broadcast(round, true);
        if (self.rank == 1) broadcast(0, false);
        EXPECT_EQ(sum(self.comm), "");
        self.meet();
    });
}

TEST(Groups, SameNameAgain)
{
    for (const Hosts &host_of : {Hosts{0, 0, 0}, Hosts{0, 0, 1, 1}}) {
        run_ranks({.host_of = host_of}, [&](Rank &self) {
            std::vector<int> all(static_cast<size_t>(self.size));
            std::iota(all.begin(), all.end(), 0);
            unsigned long first = 0, last = 0;
            int rounds = has_thread_sanitizer() ? 200 : 1000;
            for (int round = 0; round < rounds; round++) {
                quoit_comm_t *group = nullptr;
                ASSERT_EQ(quoit_comm_create_group(self.comm, all.data(), self.size, "again", nullptr, &group), QUOIT_OK) << "round " << round << ": " << quoit_last_error();
                std::string wrong = sum(group, round % 10 ? 10 : 100000);
                EXPECT_EQ(wrong, "") << "round " << round;
                quoit_comm_destroy(group);
                if (!wrong.empty()) return;
                if (round == 20) {
                    ASSERT_EQ(test_engine_arena_probe(self.engine, &first), QUOIT_OK) << quoit_last_error();
                }
            }
            EXPECT_EQ(sum(self.comm), "");
            self.meet();
            test_engine_state_t state;
            test_engine_look(self.engine, &state);
            EXPECT_EQ(state.sections, 0);
            EXPECT_EQ(state.comms, 1);
            ASSERT_EQ(test_engine_arena_probe(self.engine, &last), QUOIT_OK) << quoit_last_error();
            EXPECT_LT(last, first + (16 << 20)) << "shared memory grows";
            self.meet();
        });
    }
}

// The others have ended an operation, and one of them fails before the next: a slower rank, for which all has come, ends the first one as they did.
TEST(Groups, ALateRankEndsWhatTheOthersHaveEnded)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}, Hosts{0, 1, 2}, Hosts{0, 0, 1}}) {
        SCOPED_TRACE(name_of(host_of));
        EXPECT_TRUE(run_ranks({.host_of = host_of}, [&](Rank &self) {
            const bool late = self.rank == self.size - 1;
            std::vector<uint8_t> bytes(3000, self.rank == 0 ? 7 : 0);
            auto broadcast = [&] { return quoit_broadcast(self.comm, bytes.data(), bytes.size(), QUOIT_U8, 0, nullptr, nullptr); };
            EXPECT_TRUE(late || broadcast() == QUOIT_OK) << quoit_last_error();
            self.meet();
            EXPECT_TRUE(self.rank != 0 || quoit_comm_abort(self.comm, "the test says so") == QUOIT_OK);
            self.meet();
            if (late) {
                usleep(50000); // what was sent, and the word of the end behind it, lie here unread
                EXPECT_EQ(broadcast(), QUOIT_OK) << quoit_last_error();
                EXPECT_EQ(bytes, std::vector<uint8_t>(bytes.size(), 7));
                EXPECT_EQ(quoit_barrier(self.comm, nullptr, nullptr), QUOIT_ERR_ABORTED);
            }
            self.meet();
        }));
    }
}

TEST(Groups, Split)
{
    for (const Hosts &host_of : {Hosts{0, 0, 0, 0, 0}, Hosts{0, 1, 0, 1, 2}}) {
        run_ranks({.host_of = host_of}, [&](Rank &self) {
            for (int round = 0; round < 3; round++) {
                quoit_comm_t *part = reinterpret_cast<quoit_comm_t *>(1);
                int colour = self.rank == 2 ? -3 : self.rank % 2; /* 0: ranks 0 and 4; 1: ranks 1 and 3 */
                ASSERT_EQ(quoit_comm_split(self.comm, colour, -self.rank, nullptr, &part), QUOIT_OK) << quoit_last_error();
                if (self.rank == 2) {
                    EXPECT_EQ(part, nullptr);
                    continue;
                }
                ASSERT_NE(part, nullptr);
                EXPECT_EQ(quoit_comm_size(part), 2);
                EXPECT_EQ(quoit_comm_rank(part), self.rank >= 3 ? 0 : 1) << "ordered by key, downwards";
                EXPECT_EQ(sum(part), "");
                quoit_comm_destroy(part);
                EXPECT_EQ(round, round);
            }
            quoit_comm_t *same = nullptr; /* equal keys: by rank; a group of a group */
            ASSERT_EQ(quoit_comm_split(self.comm, 5, 0, nullptr, &same), QUOIT_OK) << quoit_last_error();
            EXPECT_EQ(quoit_comm_rank(same), self.rank);
            quoit_comm_t *deeper = nullptr;
            ASSERT_EQ(quoit_comm_split(same, self.rank < 2, 0, nullptr, &deeper), QUOIT_OK) << quoit_last_error();
            quoit_comm_destroy(same); /* before its child */
            EXPECT_EQ(sum(deeper), "");
            quoit_comm_destroy(deeper);
        });
    }
}

// A message sent before the receiver has made the group waits for it.
TEST(Groups, MessageBeforeTheGroupExists)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}}) {
        run_ranks({.host_of = host_of}, [&](Rank &self) {
            int members[] = {1, 0}, value = self.rank == 0 ? 42 : 0;
            quoit_comm_t *group = nullptr;
            if (self.rank == 1) {
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                EXPECT_EQ(sum(self.comm), ""); /* takes in what has come */
            }
            ASSERT_EQ(quoit_comm_create_group(self.comm, members, 2, "late", nullptr, &group), QUOIT_OK) << quoit_last_error();
            if (self.rank == 0) {
                ASSERT_EQ(quoit_send(group, &value, 1, QUOIT_I32, 0, 7, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
                EXPECT_EQ(sum(self.comm), "");
            } else {
                ASSERT_EQ(quoit_recv(group, &value, 1, QUOIT_I32, 1, 7, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
                EXPECT_EQ(value, 42);
            }
            quoit_comm_destroy(group);
        });
    }
}

// ------------------------------------------------------------------ wrong arguments

void expect(quoit_status_t status, quoit_status_t wanted, std::initializer_list<const char *> parts, int line)
{
    EXPECT_EQ(status, wanted) << "line " << line << ": " << quoit_last_error();
    for (const char *part : parts) EXPECT_NE(std::string(quoit_last_error()).find(part), std::string::npos) << "line " << line << ": '" << quoit_last_error() << "' lacks '" << part << "'";
}
#define EXPECT_INVALID(call, ...) expect(call, QUOIT_ERR_INVALID, {__VA_ARGS__}, __LINE__)

TEST(Arguments, OfOperations)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        quoit_comm_t *comm = self.comm;
        float data[8] = {}, out[8] = {};
        quoit_part_t parts[2] = {{data, 1}, {nullptr, 3}}, good[2] = {{out, 1}, {out + 1, 1}};
        const auto f32 = QUOIT_F32;
        EXPECT_INVALID(quoit_allreduce(nullptr, data, out, 1, f32, QUOIT_SUM, nullptr, nullptr), "allreduce", "communicator is NULL");
        EXPECT_INVALID(quoit_allreduce(comm, nullptr, out, 4, f32, QUOIT_SUM, nullptr, nullptr), "allreduce", "send", "4");
        EXPECT_INVALID(quoit_allreduce(comm, data, nullptr, 4, f32, QUOIT_SUM, nullptr, nullptr), "recv", "4");
        EXPECT_INVALID(quoit_allreduce(comm, data, out, SIZE_MAX / 2, f32, QUOIT_SUM, nullptr, nullptr), "too many");
        EXPECT_INVALID(quoit_allreduce(comm, data, out, 1, static_cast<quoit_dtype_t>(99), QUOIT_SUM, nullptr, nullptr), "99", "dtype");
        EXPECT_INVALID(quoit_allreduce(comm, data, out, 1, static_cast<quoit_dtype_t>(-1), QUOIT_SUM, nullptr, nullptr), "-1", "dtype");
        EXPECT_LT(quoit_allreduce(comm, data, out, 1, f32, static_cast<quoit_op_t>(77), nullptr, nullptr), 0);
        EXPECT_NE(std::string(quoit_last_error()).find("77"), std::string::npos) << quoit_last_error();
        EXPECT_LT(quoit_allreduce(comm, data, out, 1, f32, static_cast<quoit_op_t>(-1), nullptr, nullptr), 0);
        expect(quoit_allreduce(comm, data, out, 1, f32, QUOIT_BAND, nullptr, nullptr), QUOIT_ERR_UNSUPPORTED, {"not supported: op band on float32"}, __LINE__);
        for (int root : {-1, 2, INT_MAX}) {
            std::string text = std::to_string(root);
            EXPECT_INVALID(quoit_reduce(comm, data, out, 1, f32, QUOIT_SUM, root, nullptr, nullptr), "reduce", "root", text.c_str(), "0 to 1");
            EXPECT_INVALID(quoit_broadcast(comm, data, 1, f32, root, nullptr, nullptr), "broadcast", "root", text.c_str());
            EXPECT_INVALID(quoit_gather(comm, data, out, 1, f32, root, nullptr, nullptr), "gather", "root", text.c_str());
            EXPECT_INVALID(quoit_gatherv(comm, data, 1, good, f32, root, nullptr, nullptr), "gather", "root", text.c_str());
            EXPECT_INVALID(quoit_scatter(comm, data, out, 1, f32, root, nullptr, nullptr), "scatter", "root", text.c_str());
            EXPECT_INVALID(quoit_scatterv(comm, good, out, 1, f32, root, nullptr, nullptr), "scatter", "root", text.c_str());
        }
        const size_t half = SIZE_MAX / 16 + 1; /* a block of so many fits the addresses, two do not */
        EXPECT_INVALID(quoit_allgather(comm, data, out, half, f32, nullptr, nullptr), "allgather", "recv", "2 times", "too many");
        EXPECT_INVALID(quoit_reduce_scatter(comm, data, out, half, f32, QUOIT_SUM, nullptr, nullptr), "reduce_scatter", "send", "too many");
        EXPECT_INVALID(quoit_alltoall(comm, data, out, half, f32, nullptr, nullptr), "alltoall", "send", "too many");
        EXPECT_INVALID(quoit_gather(comm, data, out, half, f32, self.rank, nullptr, nullptr), "gather", "recv", "too many");
        EXPECT_INVALID(quoit_scatter(comm, data, out, half, f32, self.rank, nullptr, nullptr), "scatter", "send", "too many");
        EXPECT_INVALID(quoit_broadcast(comm, nullptr, 1, f32, 0, nullptr, nullptr), "buffer");
        EXPECT_INVALID(quoit_allgatherv(comm, nullptr, good, f32, nullptr, nullptr), "allgatherv: send");
        EXPECT_INVALID(quoit_allgather(comm, nullptr, out, 1, f32, nullptr, nullptr), "send");
        EXPECT_INVALID(quoit_allgather(comm, data, nullptr, 1, f32, nullptr, nullptr), "recv");
        EXPECT_INVALID(quoit_allgatherv(comm, data, nullptr, f32, nullptr, nullptr), "allgatherv", "NULL");
        EXPECT_INVALID(quoit_allgatherv(comm, data, parts, f32, nullptr, nullptr), "recv[1]", "3");
        EXPECT_INVALID(quoit_reduce_scatter(comm, nullptr, out, 1, f32, QUOIT_SUM, nullptr, nullptr), "send");
        EXPECT_INVALID(quoit_reduce_scatterv(comm, parts, out, f32, QUOIT_SUM, nullptr, nullptr), "send[1]", "3");
        EXPECT_INVALID(quoit_alltoall(comm, data, data, 1, f32, nullptr, nullptr), "same buffer");
        EXPECT_INVALID(quoit_alltoallv(comm, good, parts, f32, nullptr, nullptr), "recv[1]");
        EXPECT_INVALID(quoit_alltoallv(comm, nullptr, good, f32, nullptr, nullptr), "send");
        quoit_part_t uneven[2] = {{data, 2}, {data + 2, 2}};
        expect(quoit_alltoallv(comm, uneven, good, f32, nullptr, nullptr), QUOIT_ERR_MISMATCH, {"2", "1"}, __LINE__);
        for (int peer : {-2, 2, INT_MIN}) {
            EXPECT_INVALID(quoit_send(comm, data, 1, f32, peer, 0, nullptr, nullptr), "send", std::to_string(peer).c_str());
            EXPECT_INVALID(quoit_recv(comm, data, 1, f32, peer, 0, nullptr, nullptr), "recv", std::to_string(peer).c_str());
        }
        EXPECT_INVALID(quoit_send(comm, data, 1, f32, QUOIT_ANY_SOURCE, 0, nullptr, nullptr), "send", "-1");
        EXPECT_INVALID(quoit_send(comm, nullptr, 1, f32, 0, 0, nullptr, nullptr), "buffer");
        quoit_call_t call = QUOIT_CALL_INIT;
        call.struct_size = 3;
        EXPECT_INVALID(quoit_barrier(comm, &call, nullptr), "struct_size", "3");
        call = QUOIT_CALL_INIT;
        call.timeout_ms = -7;
        EXPECT_INVALID(quoit_allreduce(comm, data, out, 1, f32, QUOIT_SUM, &call, nullptr), "timeout_ms", "-7");
        call = QUOIT_CALL_INIT;
        call.device = 12345;
        EXPECT_INVALID(quoit_allreduce(comm, data, out, 1, f32, QUOIT_SUM, &call, nullptr), "12345");
        quoit_request_t *request = nullptr;
        EXPECT_INVALID(quoit_allreduce(comm, nullptr, out, 4, f32, QUOIT_SUM, nullptr, &request), "send");
        EXPECT_EQ(request, nullptr) << "outputs are written on success only";
        EXPECT_INVALID(quoit_comm_set_timeout(nullptr, 1), "NULL");
        EXPECT_INVALID(quoit_comm_set_timeout(comm, 0), "0");
        EXPECT_INVALID(quoit_comm_set_timeout(comm, -5), "-5");
        EXPECT_INVALID(quoit_comm_abort(nullptr, "x"), "NULL");
        EXPECT_INVALID(quoit_comm_error(nullptr, nullptr, 0), "NULL");
        char *text = nullptr;
        EXPECT_INVALID(quoit_comm_describe(nullptr, QUOIT_FORMAT_TEXT, &text), "NULL");
        EXPECT_INVALID(quoit_comm_describe(comm, QUOIT_FORMAT_TEXT, nullptr), "NULL");
        EXPECT_INVALID(quoit_explain_allreduce(comm, 1, static_cast<quoit_dtype_t>(99), &text), "99");
        EXPECT_INVALID(quoit_explain_allreduce(comm, SIZE_MAX / 2, f32, &text), "too many");
        EXPECT_EQ(quoit_comm_rank(nullptr), -1);
        EXPECT_EQ(quoit_comm_size(nullptr), 0);
        quoit_comm_destroy(nullptr);
        /* NULL buffers are fine where nothing is moved. */
        EXPECT_EQ(quoit_allreduce(comm, nullptr, nullptr, 0, f32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
        EXPECT_EQ(quoit_broadcast(comm, nullptr, 0, f32, 1, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
        EXPECT_EQ(quoit_alltoall(comm, nullptr, nullptr, 0, f32, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
        EXPECT_EQ(sum(comm), "") << "wrong calls must not disturb the order";
        EXPECT_EQ(quoit_comm_error(comm, nullptr, 0), QUOIT_OK);
    });
}

TEST(Arguments, OfGroupsAndCreation)
{
    run_ranks({.host_of = {0, 0, 0}}, [&](Rank &self) {
        quoit_comm_t *made = nullptr;
        int good[] = {0, 1, 2}, twice[] = {0, 1, 1}, beyond[] = {0, 1, 3}, negative[] = {0, -1}, others[] = {(self.rank + 1) % 3};
        EXPECT_INVALID(quoit_comm_create_group(nullptr, good, 3, "g", nullptr, &made), "NULL");
        EXPECT_INVALID(quoit_comm_create_group(self.comm, nullptr, 3, "g", nullptr, &made), "3");
        EXPECT_INVALID(quoit_comm_create_group(self.comm, good, 0, "g", nullptr, &made), "0");
        EXPECT_INVALID(quoit_comm_create_group(self.comm, good, -1, "g", nullptr, &made), "-1");
        EXPECT_INVALID(quoit_comm_create_group(self.comm, good, 4, "g", nullptr, &made), "4", "3");
        EXPECT_INVALID(quoit_comm_create_group(self.comm, twice, 3, "g", nullptr, &made), "rank 1", "twice");
        EXPECT_INVALID(quoit_comm_create_group(self.comm, beyond, 3, "g", nullptr, &made), "rank 3", "0 to 2");
        EXPECT_INVALID(quoit_comm_create_group(self.comm, negative, 2, "g", nullptr, &made), "rank -1");
        EXPECT_INVALID(quoit_comm_create_group(self.comm, others, 1, "g", nullptr, &made), "rank", "not in");
        EXPECT_INVALID(quoit_comm_create_group(self.comm, good, 3, "g", nullptr, nullptr), "NULL");
        quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
        config.struct_size = 1;
        EXPECT_INVALID(quoit_comm_create_group(self.comm, good, 3, "g", &config, &made), "struct_size");
        config = QUOIT_COMM_CONFIG_INIT;
        config.timeout_ms = -1;
        EXPECT_INVALID(quoit_comm_create_group(self.comm, good, 3, "g", &config, &made), "timeout_ms", "-1");
        EXPECT_EQ(made, nullptr);
        ASSERT_EQ(quoit_comm_create_group(self.comm, good, 3, "g", nullptr, &made), QUOIT_OK) << quoit_last_error();
        EXPECT_EQ(sum(made), "") << "refused calls must not count as creations of this name";
        quoit_comm_destroy(made);
    });
    engine_t *engine = nullptr;
    quoit_comm_t *comm = nullptr;
    ASSERT_EQ(engine_create(&engine), QUOIT_OK);
    MemoryStore memory;
    quoit_store_t *store = memory.open();
    EXPECT_INVALID(comm_create_on(engine, store, 2, 2, nullptr, &comm), "2");
    EXPECT_INVALID(comm_create_on(engine, store, -1, 2, nullptr, &comm), "-1");
    EXPECT_INVALID(comm_create_on(engine, store, 0, 0, nullptr, &comm), "0");
    EXPECT_INVALID(comm_create_on(engine, nullptr, 0, 2, nullptr, &comm), "store");
    EXPECT_INVALID(comm_create_on(engine, store, 0, 1, nullptr, nullptr), "NULL");
    EXPECT_EQ(comm, nullptr);
    quoit_store_close(store);
    engine_release(engine);
}

TEST(Arguments, AfterAFailure)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        std::vector<int> members = {0, 1};
        quoit_comm_t *group = nullptr;
        ASSERT_EQ(quoit_comm_create_group(self.comm, members.data(), 2, "doomed", nullptr, &group), QUOIT_OK);
        ASSERT_EQ(quoit_barrier(group, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
        self.meet();
        ASSERT_EQ(quoit_comm_abort(group, "enough"), QUOIT_OK);
        EXPECT_EQ(quoit_comm_abort(group, "again"), QUOIT_OK);
        char text[512] = "";
        EXPECT_EQ(quoit_comm_error(group, text, sizeof text), QUOIT_ERR_ABORTED);
        EXPECT_NE(strstr(text, "enough"), nullptr) << text;
        float value = 0, result = 0;
        quoit_request_t *request = nullptr;
        EXPECT_EQ(quoit_allreduce(group, &value, &result, 1, QUOIT_F32, QUOIT_SUM, nullptr, &request), QUOIT_ERR_ABORTED);
        EXPECT_EQ(request, nullptr);
        EXPECT_EQ(quoit_recv(group, &value, 1, QUOIT_F32, 0, 0, nullptr, nullptr), QUOIT_ERR_ABORTED);
        EXPECT_NE(strstr(quoit_last_error(), "enough"), nullptr) << quoit_last_error();
        quoit_comm_t *child = nullptr;
        EXPECT_EQ(quoit_comm_create_group(group, members.data(), 2, "child", nullptr, &child), QUOIT_ERR_ABORTED);
        quoit_comm_destroy(group);
        EXPECT_EQ(sum(self.comm), "");
    });
}

// Two jobs between the same processes: each pair keeps its own, while all four meet in one after another, and leave it at different times. A rank
// that comes back while its goodbye to the job before is still on its way, or a window of that job still waits for it, is taken for new.
TEST(Groups, JobsComeAndGoBesideOthers)
{
    for (const Hosts &host_of : {Hosts{0, 0, 0, 0}, Hosts{0, 0, 1, 1}}) {
        const int rounds = long_run() ? 40 : 8;
        std::vector<MemoryStore> meetings(static_cast<size_t>(rounds) + 2);
        run_engines({.host_of = host_of}, [&](Rank &self, MemoryStore &) {
            quoit_store_t *store = meetings[static_cast<size_t>(self.rank % 2)].open();
            quoit_comm_t *pair = nullptr;
            ASSERT_EQ(comm_create_on(self.engine, store, self.rank / 2, 2, nullptr, &pair), QUOIT_OK) << quoit_last_error();
            quoit_store_close(store);
            for (int round = 0; round < rounds; round++) {
                store = meetings[static_cast<size_t>(round) + 2].open();
                quoit_comm_t *all = nullptr;
                EXPECT_EQ(comm_create_on(self.engine, store, self.rank, 4, nullptr, &all), QUOIT_OK)
                    << "rank " << self.rank << ", round " << round << ": " << quoit_last_error();
                quoit_store_close(store);
                if (!all) break;
                EXPECT_EQ(sum(all), "") << "rank " << self.rank << ", round " << round;
                EXPECT_EQ(quoit_barrier(all, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
                usleep(static_cast<useconds_t>((self.rank * 7 + round * 3) % 5 * 1000));
                quoit_comm_destroy(all);
                EXPECT_EQ(sum(pair), "") << "rank " << self.rank << ", round " << round;
            }
            quoit_comm_destroy(pair);
        });
    }
}

} // namespace
