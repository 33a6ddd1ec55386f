// SPDX-License-Identifier: Apache-2.0
// A rank that publishes nonsense in the memory that it shares with its host mates: sections, large slots and inputs that end before they
// should. Nobody reads beyond what is mapped, and all ranks are told who did it.
#include "operations.h"
#include "ranks.h"

#include <gtest/gtest.h>

using namespace comm_test;

namespace {

struct Lie {
    test_lie_t what;
    size_t count;         // floats of the operation that meets it
    const char *expected; // in the text
};

const char *const names[] = {"SectionShort", "SectionOutside", "SectionUnaligned", "SmallShort", "SmallNone", "SlotsShort", "SlotsNone", "InputShort", "InputNone"};

std::string name_of_lie(const testing::TestParamInfo<Lie> &info) { return names[info.param.what]; }

void PrintTo(const Lie &lie, std::ostream *out) { *out << names[lie.what]; }

class Lies : public testing::TestWithParam<Lie> {};

// Rank 1 lies. The two others find it, or one does and tells the other; rank 1 is told.
TEST_P(Lies, AreToldToAll)
{
    const Lie &lie = GetParam();
    bool of_section = lie.what <= LIE_SMALL_NONE;
    run_ranks({.host_of = {0, 0, 0}}, [&](Rank &self) {
        int members[] = {0, 1, 2};
        quoit_comm_t *group = nullptr;
        std::vector<float> send(lie.count, 1), recv(lie.count);
        ASSERT_EQ(quoit_comm_create_group(self.comm, members, 3, "liars", nullptr, &group), QUOIT_OK);
        auto sum = [&] { return quoit_allreduce(group, send.data(), recv.data(), lie.count, QUOIT_F32, QUOIT_SUM, nullptr, nullptr); };
        EXPECT_EQ(of_section ? QUOIT_OK : sum(), QUOIT_OK) << "else the lie would prove nothing: " << quoit_last_error();
        self.meet();
        EXPECT_TRUE(self.rank != 1 || test_comm_lie(group, lie.what)) << "it shares no memory";
        self.meet();
        quoit_call_t call = QUOIT_CALL_INIT;
        call.timeout_ms = 20000;
        quoit_status_t status = quoit_allreduce(group, send.data(), recv.data(), lie.count, QUOIT_F32, QUOIT_SUM, &call, nullptr);
        if (self.rank == 1 && status == QUOIT_OK) status = quoit_barrier(group, &call, nullptr); /* what the others published was good */
        EXPECT_EQ(status, QUOIT_ERR_PROTOCOL) << quoit_last_error();
        std::string text = quoit_last_error();
        EXPECT_NE(text.find("rank 1 ("), std::string::npos) << "not told who lies: " << text;
        EXPECT_NE(text.find(lie.expected), std::string::npos) << text;
        self.meet();
        quoit_comm_destroy(group);
        Case plain;
        plain.count = 100000;
        EXPECT_EQ(perform(plain, self.comm, true), "") << "the parent lives";
    });
}

INSTANTIATE_TEST_SUITE_P(All, Lies,
                         testing::Values(Lie{LIE_SECTION_SHORT, 100, "published a section of 64 bytes"}, Lie{LIE_SECTION_OUTSIDE, 100, "outside of an arena"},
                                         Lie{LIE_SECTION_UNALIGNED, 100, "at a multiple of 64"},
                                         Lie{LIE_SMALL_SHORT, 100, "published small slots of 64 bytes"}, Lie{LIE_SMALL_NONE, 100, "published small slots"},
                                         Lie{LIE_SLOTS_SHORT, 1 << 18, "published large slots of 64 bytes"},
                                         Lie{LIE_SLOTS_NONE, 1 << 18, "published large slots"}, Lie{LIE_INPUT_SHORT, 1 << 18, "an input of 64 bytes"},
                                         Lie{LIE_INPUT_NONE, 1 << 18, "published an input"}),
                         name_of_lie);

} // namespace
