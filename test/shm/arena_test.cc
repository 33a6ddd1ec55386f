/* SPDX-License-Identifier: Apache-2.0 */
/** The arena's allocator against a model, and what it takes from the system and gives back. */
#include "shm_harness.h"

#include <sys/stat.h>

extern "C" {
#include "transport/shm/shm_arena.h"
}

using namespace shm_test;

namespace {

constexpr size_t SIZE = 64 << 20;

struct Arena {
    shm_arena_t *arena = nullptr;
    explicit Arena(size_t size = SIZE) { EXPECT_EQ(shm_arena_create(size, &arena), QUOIT_OK) << error_text(); }
    ~Arena() { shm_arena_destroy(arena); }
    size_t taken() const
    {
        struct stat file;
        EXPECT_EQ(fstat(shm_arena_descriptor(arena), &file), 0);
        return static_cast<size_t>(file.st_blocks) * 512;
    }
};

struct Piece {
    unsigned char *data;
    size_t length;
    unsigned char mark;
};

bool all_are(const unsigned char *data, size_t length, unsigned char value)
{
    return length == 0 || (data[0] == value && memcmp(data, data + 1, length - 1) == 0);
}

size_t random_length(std::mt19937_64 &random)
{
    switch (random() % 4) {
    case 0: return 1 + random() % 256;
    case 1: return 1 + random() % 8192;
    case 2: return 1 + random() % (256 << 10);
    default: return 1 + random() % (3 << 20);
    }
}

void run_model(uint64_t seed, int steps)
{
    std::mt19937_64 random(seed);
    Arena arena;
    std::map<unsigned char *, Piece> pieces; /* by address, so that neighbours can be compared */
    size_t refused = 0;
    for (int step = 0; step < steps; step++) {
        if (random() % 5 < 3 || pieces.empty()) {
            Piece piece = {nullptr, random_length(random), static_cast<unsigned char>(1 + random() % 255)};
            void *pointer;
            quoit_status_t status = shm_arena_alloc(arena.arena, piece.length, &pointer);
            if (status == QUOIT_ERR_NO_MEMORY) {
                refused++;
                ASSERT_GT(shm_arena_used(arena.arena), SIZE / 8) << "refused although nearly empty";
                continue;
            }
            ASSERT_EQ(status, QUOIT_OK) << error_text();
            piece.data = static_cast<unsigned char *>(pointer);
            ASSERT_EQ(reinterpret_cast<uintptr_t>(pointer) % (piece.length >= SHM_LARGE ? 4096 : 64), 0u);
            ASSERT_TRUE(all_are(piece.data, piece.length, 0)) << "not zero, step " << step << " length " << piece.length;
            memset(piece.data, piece.mark, piece.length);
            auto [place, fresh] = pieces.emplace(piece.data, piece);
            ASSERT_TRUE(fresh);
            if (place != pieces.begin()) {
                auto before = std::prev(place);
                ASSERT_LE(before->first + before->second.length, piece.data) << "overlap, step " << step;
            }
            auto after = std::next(place);
            unsigned char *limit = after == pieces.end() ? shm_arena_base(arena.arena) + SIZE : after->first;
            ASSERT_LE(piece.data + piece.length, limit) << "overlap, step " << step;
            uint64_t offset;
            ASSERT_TRUE(shm_arena_holds(arena.arena, pointer, piece.length, &offset));
            ASSERT_LE(offset + piece.length, SIZE);
        } else {
            auto victim = std::next(pieces.begin(), static_cast<long>(random() % pieces.size()));
            ASSERT_TRUE(all_are(victim->second.data, victim->second.length, victim->second.mark)) << "damaged, step " << step;
            shm_arena_free(arena.arena, victim->second.data);
            pieces.erase(victim);
        }
    }
    EXPECT_GT(refused, 0u) << "the arena was never full: the test is too small";
    for (auto &[data, piece] : pieces) shm_arena_free(arena.arena, data);
    EXPECT_EQ(shm_arena_used(arena.arena), 0u);
    void *whole; /* all free pieces must have grown together again */
    EXPECT_EQ(shm_arena_alloc(arena.arena, SIZE - (128 << 10), &whole), QUOIT_OK) << error_text();
}

TEST(ShmArena, AgainstModel)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        ASSERT_NO_FATAL_FAILURE(run_model(seed, 1500));
    }
}

TEST(ShmArena, SparseAtFirstAndGivenBack)
{
    Arena arena(size_t{1} << 30);
    size_t start = arena.taken();
    EXPECT_LT(start, 1u << 20) << "an empty arena takes next to nothing";
    void *large, *small;
    ASSERT_EQ(shm_arena_alloc(arena.arena, 16 << 20, &large), QUOIT_OK) << error_text();
    ASSERT_EQ(shm_arena_alloc(arena.arena, 100, &small), QUOIT_OK) << error_text();
    EXPECT_GE(arena.taken(), start + (16 << 20)) << "pages are taken when memory is allocated, not when it is touched";
    memset(large, 1, 16 << 20);
    size_t full = arena.taken();
    shm_arena_free(arena.arena, large);
    EXPECT_LE(arena.taken() + (16 << 20), full) << "pages of a large block go back";
    EXPECT_EQ(*static_cast<char *>(small), 0);
}

TEST(ShmArena, ExhaustionNamesTheSetting)
{
    Arena arena;
    void *pointer = &arena;
    EXPECT_EQ(shm_arena_alloc(arena.arena, SIZE, &pointer), QUOIT_ERR_NO_MEMORY);
    EXPECT_NE(std::string(error_text()).find("QUOIT_ARENA_SIZE"), std::string::npos) << error_text();
    EXPECT_EQ(shm_arena_alloc(arena.arena, SIZE_MAX, &pointer), QUOIT_ERR_NO_MEMORY);
    EXPECT_EQ(shm_arena_alloc(arena.arena, SIZE_MAX - 63, &pointer), QUOIT_ERR_NO_MEMORY);
    EXPECT_EQ(shm_arena_alloc(arena.arena, 0, &pointer), QUOIT_ERR_INVALID);
    EXPECT_EQ(pointer, &arena) << "outputs are written only on success";
}

TEST(ShmArena, StrangePointersAreLeftAlone)
{
    Arena arena;
    void *block;
    int local = 0;
    ASSERT_EQ(shm_arena_alloc(arena.arena, 1000, &block), QUOIT_OK);
    shm_arena_free(arena.arena, nullptr);
    shm_arena_free(arena.arena, &local);
    shm_arena_free(arena.arena, static_cast<char *>(block) + 64);
    EXPECT_EQ(shm_arena_used(arena.arena), 1024u);
    shm_arena_free(arena.arena, block);
    shm_arena_free(arena.arena, block);
    EXPECT_EQ(shm_arena_used(arena.arena), 0u);
}

TEST(ShmArena, Sealed)
{
    Arena arena;
    int fd = shm_arena_descriptor(arena.arena);
    EXPECT_NE(ftruncate(fd, SIZE / 2), 0);
    EXPECT_NE(ftruncate(fd, SIZE * 2), 0);
    EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0) << "a peer must not add seals";
    EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

} // namespace
