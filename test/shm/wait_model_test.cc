/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The asleep/doorbell protocol, explored: all interleavings of one publisher of MESSAGES messages and one sleeper that waits for them,
 * on a machine with store buffers (total store order, as x86). Stores enter their thread's buffer and reach memory in order, at any
 * later time; loads see the own buffer first. Doorbell writes and reads are system calls on the kernel's counter: atomic, and they do not
 * drain the buffer in this model, which only makes it stricter. A state from which nothing can move while the sleeper waits is a
 * lost wake-up.
 */
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace {

enum { MESSAGES = 3 };

struct Variant {
    bool sleeper_fence;   /* drains the sleeper's buffer between asleep = 1 and the check */
    bool everybody;       /* membarrier: drains the publisher's buffer at that moment too */
    bool publisher_fence; /* between the data store and the look at asleep */
    bool drain_late;      /* the sleeper drains the doorbell after its check instead of before arming */
};

enum Variable { DATA, ASLEEP, VARIABLES };
using Store = std::pair<int, int>;

struct State {
    int memory[VARIABLES] = {0, 0};
    int bell = 0;
    std::vector<Store> buffer[2]; /* of publisher, sleeper */
    int publisher = 0, sleeper = 0; /* program counters */
    int sent = 0, seen = 0;
    auto key() const { return std::tuple(memory[0], memory[1], bell, buffer[0], buffer[1], publisher, sleeper, sent, seen); }
};

enum Who { PUBLISHER, SLEEPER };
enum PublisherStep { STORE_DATA, PUBLISHER_FENCE, LOOK_ASLEEP, RING, PUBLISHER_END };
enum SleeperStep { DRAIN, SET_ASLEEP, BARRIER, CHECK, DRAIN_LATE, WAIT, CLEAR_ASLEEP, CONSUME, SLEEPER_END };

int load(const State &state, Who who, int variable)
{
    for (auto store = state.buffer[who].rbegin(); store != state.buffer[who].rend(); ++store)
        if (store->first == variable) return store->second;
    return state.memory[variable];
}

void drain(State &state, Who who)
{
    for (const Store &store : state.buffer[who]) state.memory[store.first] = store.second;
    state.buffer[who].clear();
}

/* False: this side cannot move now. */
bool publisher_step(State &state, const Variant &variant)
{
    switch (state.publisher) {
    case STORE_DATA:
        state.buffer[PUBLISHER].emplace_back(DATA, ++state.sent);
        state.publisher = PUBLISHER_FENCE;
        return true;
    case PUBLISHER_FENCE:
        if (variant.publisher_fence) drain(state, PUBLISHER);
        state.publisher = LOOK_ASLEEP;
        return true;
    case LOOK_ASLEEP:
        state.publisher = load(state, PUBLISHER, ASLEEP) ? RING : state.sent < MESSAGES ? STORE_DATA : PUBLISHER_END;
        return true;
    case RING:
        state.bell = 1;
        state.publisher = state.sent < MESSAGES ? STORE_DATA : PUBLISHER_END;
        return true;
    default: return false;
    }
}

bool sleeper_step(State &state, const Variant &variant)
{
    switch (state.sleeper) {
    case DRAIN:
        if (!variant.drain_late) state.bell = 0;
        state.sleeper = SET_ASLEEP;
        return true;
    case SET_ASLEEP:
        state.buffer[SLEEPER].emplace_back(ASLEEP, 1);
        state.sleeper = BARRIER;
        return true;
    case BARRIER:
        if (variant.sleeper_fence) drain(state, SLEEPER);
        if (variant.everybody) drain(state, PUBLISHER);
        state.sleeper = CHECK;
        return true;
    case CHECK: state.sleeper = load(state, SLEEPER, DATA) > state.seen ? CLEAR_ASLEEP : DRAIN_LATE; return true;
    case DRAIN_LATE:
        if (variant.drain_late) state.bell = 0;
        state.sleeper = WAIT;
        return true;
    case WAIT:
        if (!state.bell) return false;
        state.sleeper = CLEAR_ASLEEP;
        return true;
    case CLEAR_ASLEEP:
        state.buffer[SLEEPER].emplace_back(ASLEEP, 0);
        state.sleeper = CONSUME;
        return true;
    case CONSUME:
        state.seen = load(state, SLEEPER, DATA);
        state.sleeper = state.seen < MESSAGES ? DRAIN : SLEEPER_END;
        return true;
    default: return false;
    }
}

bool flush_one(State &state, Who who)
{
    if (state.buffer[who].empty()) return false;
    Store store = state.buffer[who].front();
    state.buffer[who].erase(state.buffer[who].begin());
    state.memory[store.first] = store.second;
    return true;
}

struct Result {
    size_t states = 0, lost = 0, good = 0;
};

Result explore(const Variant &variant)
{
    std::set<decltype(State().key())> known;
    std::deque<State> work = {State()};
    Result result;
    known.insert(State().key());
    while (!work.empty()) {
        State state = work.front();
        work.pop_front();
        result.states++;
        bool moved = false;
        for (int action = 0; action < 4; action++) {
            State next = state;
            bool possible = action == 0   ? publisher_step(next, variant)
                            : action == 1 ? sleeper_step(next, variant)
                                          : flush_one(next, action == 2 ? PUBLISHER : SLEEPER);
            if (!possible) continue;
            moved = true;
            if (known.insert(next.key()).second) work.push_back(next);
        }
        if (moved) continue;
        if (state.sleeper == SLEEPER_END) {
            result.good++;
        } else {
            result.lost++;
        }
    }
    return result;
}

TEST(ShmWaitModel, MembarrierLosesNothing)
{
    Result result = explore({.sleeper_fence = true, .everybody = true, .publisher_fence = false, .drain_late = false});
    EXPECT_EQ(result.lost, 0u);
    EXPECT_GT(result.good, 0u);
    EXPECT_GT(result.states, 200u);
}

TEST(ShmWaitModel, FencesOnBothSidesLoseNothing)
{
    Result result = explore({.sleeper_fence = true, .everybody = false, .publisher_fence = true, .drain_late = false});
    EXPECT_EQ(result.lost, 0u);
    EXPECT_GT(result.good, 0u);
}

/* One side registered with membarrier, the other one fencing because it cannot: both kinds at once must do as well. */
TEST(ShmWaitModel, MembarrierAndAFencingPublisherLoseNothing)
{
    EXPECT_EQ(explore({.sleeper_fence = true, .everybody = true, .publisher_fence = true, .drain_late = false}).lost, 0u);
}

TEST(ShmWaitModel, WithoutBarrierAWakeUpIsLost)
{
    EXPECT_GT(explore({.sleeper_fence = false, .everybody = false, .publisher_fence = false, .drain_late = false}).lost, 0u);
}

TEST(ShmWaitModel, AFenceOfOneSideIsNotEnough)
{
    EXPECT_GT(explore({.sleeper_fence = true, .everybody = false, .publisher_fence = false, .drain_late = false}).lost, 0u);
    EXPECT_GT(explore({.sleeper_fence = false, .everybody = false, .publisher_fence = true, .drain_late = false}).lost, 0u);
}

TEST(ShmWaitModel, DrainingTheBellAfterTheCheckLosesAWakeUp)
{
    EXPECT_GT(explore({.sleeper_fence = true, .everybody = true, .publisher_fence = false, .drain_late = true}).lost, 0u);
}

} // namespace
