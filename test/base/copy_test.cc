// SPDX-License-Identifier: Apache-2.0
/** Both forms of a copy against memcpy: every short length at every place within a line, longer ones at some, and nothing written outside. */
extern "C" {
#include "base/copy.h"
#include "base/cpu.h"
}

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr size_t LINE = 64, GUARD = 64;
constexpr unsigned seed = 20261130;

using Copy = std::function<void(void *to, const void *from, size_t bytes)>;

struct Form {
    std::string name;
    Copy copy;
};

std::vector<Form> forms()
{
    std::vector<Form> all = {{"plain copy", [](void *to, const void *from, size_t bytes) { copy_bytes(to, from, bytes, false); }},
                             {"streamed copy", [](void *to, const void *from, size_t bytes) { copy_bytes(to, from, bytes, true); }}};
    for (const char *isa : {"avx512", "avx2", "sse2", "plain"})
        if (copy_bytes_with(isa, nullptr, nullptr, 0))
            all.push_back({isa, [isa](void *to, const void *from, size_t bytes) { copy_bytes_with(isa, to, from, bytes); }});
    return all;
}

class CopyBytes : public testing::Test {
protected:
    static constexpr size_t MOST = 300000;
    CopyBytes() : from_(MOST + 2 * LINE), to_(MOST + 2 * LINE + 2 * GUARD)
    {
        std::mt19937 random(seed);
        for (auto &byte : from_) byte = static_cast<unsigned char>(random());
    }

    // Empty: all is as memcpy would have it, and what lies around it is as it was.
    std::string wrong(const Form &form, size_t bytes, size_t to_offset, size_t from_offset)
    {
        unsigned char *base = to_.data() + (LINE - reinterpret_cast<uintptr_t>(to_.data()) % LINE) % LINE, *to = base + GUARD + to_offset;
        const unsigned char *from = from_.data() + (LINE - reinterpret_cast<uintptr_t>(from_.data()) % LINE) % LINE + from_offset;
        std::memset(to - GUARD, 0xa5, bytes + 2 * GUARD);
        form.copy(to, from, bytes);
        const char *what = bytes > 0 && std::memcmp(to, from, bytes) != 0 ? "other bytes" : nullptr;
        for (size_t i = 0; i < GUARD; i++)
            if (to[-1 - static_cast<ptrdiff_t>(i)] != 0xa5 || to[bytes + i] != 0xa5) what = "it wrote outside";
        if (!what) return "";
        return form.name + ", " + std::to_string(bytes) + " bytes to " + std::to_string(to_offset) + " from " + std::to_string(from_offset) + " of a line, seed " +
               std::to_string(seed) + ": " + what;
    }

private:
    std::vector<unsigned char> from_, to_;
};

// Four vectors are four lines where vectors are widest; a head may come before them.
TEST_F(CopyBytes, EveryShortLengthAtEveryPlace)
{
    for (const Form &form : forms())
        for (size_t bytes = 0; bytes <= 4 * LINE + 1; bytes++)
            for (size_t offset = 0; offset < LINE; offset++) {
                ASSERT_EQ(wrong(form, bytes, offset, 0), "");
                ASSERT_EQ(wrong(form, bytes, offset, (offset * 7 + bytes) % LINE), "");
            }
}

TEST_F(CopyBytes, LongOnesAtSomePlaces)
{
    std::mt19937 random(seed + 1);
    for (const Form &form : forms())
        for (size_t bytes : {size_t(4095), size_t(4096), size_t(32768), size_t(65537), MOST})
            for (int i = 0; i < 6; i++) ASSERT_EQ(wrong(form, bytes, i == 0 ? 0 : random() % LINE, i == 1 ? 0 : random() % LINE), "");
}

TEST(Copy, ChoosesOneThatIsHere)
{
    EXPECT_TRUE(copy_bytes_with(copy_isa(), nullptr, nullptr, 0)) << copy_isa();
    EXPECT_FALSE(copy_bytes_with("abacus", nullptr, nullptr, 0));
}

TEST(Copy, PaysPastAPartOfTheLastCache)
{
    EXPECT_GT(copy_pays_past(), size_t(0));
    EXPECT_LT(copy_pays_past(), cpu_cache_size());
}

} // namespace
