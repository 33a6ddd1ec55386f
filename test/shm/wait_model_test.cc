/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The protocol of marks, sleep and doorbell, explored: all interleavings of one publisher of MESSAGES messages and one sleeper that waits for them,
 * on a machine with store buffers (total store order, as x86). Stores enter their thread's buffer and reach memory in order, at any
 * later time; loads see the own buffer first. Doorbell writes and reads are system calls on the kernel's counter: atomic, and they do not
 * drain the buffer in this model, which only makes it stricter. A state from which nothing can move while the sleeper waits is a
 * lost wake-up. Awake, the sleeper may look as often as it likes before it goes to sleep.
 */
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace {

enum { MESSAGES = 2 };

struct Variant {
    bool sleeper_fence;   /* drains the sleeper's buffer between asleep = 1 and the check */
    bool everybody;       /* membarrier: drains the publisher's buffer at that moment too */
    bool publisher_fence; /* between the data store and the look at asleep */
    bool drain_late;      /* the sleeper drains the doorbell after its check instead of before arming */
    bool trusts_marks;    /* the sleeper's check looks at the mark only, not into a ring that it followed until now */
    bool blind_look;      /* the publisher looks at the mark before its store instead of after */
};

enum Variable { DATA, ASLEEP, MARK, VARIABLES };
enum Mark { NONE, MARKED, FOLLOWED };
using Store = std::pair<int, int>;

struct State {
    int memory[VARIABLES] = {0, 0, NONE};
    int bell = 0;
    std::vector<Store> buffer[2]; /* of publisher, sleeper */
    int publisher = 0, sleeper = 0; /* program counters */
    int sent = 0, seen = 0;
    bool mark_left_out = false;             /* what the publisher saw of the mark */
    bool follows = false, looks_once = false; /* the sleeper looks into the ring: always, or once more */
    auto key() const
    {
        return std::tuple(memory[0], memory[1], memory[2], bell, buffer[0], buffer[1], publisher, sleeper, sent, seen, mark_left_out, follows, looks_once);
    }
};

enum Who { PUBLISHER, SLEEPER };
enum PublisherStep { LOOK_BLINDLY, STORE_DATA, FENCE_DATA, LOOK_AT_MARK, SET_MARK, FENCE_MARK, LOOK_ASLEEP, RING, PUBLISHER_END };
enum SleeperStep { POLL, DRAIN, UNFOLLOW, SET_ASLEEP, BARRIER, CHECK, DRAIN_LATE, WAIT, CLEAR_ASLEEP, SLEEPER_END };

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

void store(State &state, Who who, int variable, int value) { state.buffer[who].emplace_back(variable, value); }

/* False: this side cannot move now. */
bool publisher_step(State &state, const Variant &variant)
{
    switch (state.publisher) {
    case LOOK_BLINDLY:
        state.mark_left_out = variant.blind_look && load(state, PUBLISHER, MARK) == FOLLOWED;
        state.publisher = STORE_DATA;
        return true;
    case STORE_DATA:
        store(state, PUBLISHER, DATA, ++state.sent);
        state.publisher = FENCE_DATA;
        return true;
    case FENCE_DATA:
        if (variant.publisher_fence) drain(state, PUBLISHER);
        state.publisher = LOOK_AT_MARK;
        return true;
    case LOOK_AT_MARK:
        if (!variant.blind_look) state.mark_left_out = load(state, PUBLISHER, MARK) == FOLLOWED;
        state.publisher = state.mark_left_out ? FENCE_MARK : SET_MARK;
        return true;
    case SET_MARK:
        store(state, PUBLISHER, MARK, MARKED);
        state.publisher = FENCE_MARK;
        return true;
    case FENCE_MARK:
        if (variant.publisher_fence) drain(state, PUBLISHER);
        state.publisher = LOOK_ASLEEP;
        return true;
    case LOOK_ASLEEP: state.publisher = load(state, PUBLISHER, ASLEEP) ? RING : state.sent < MESSAGES ? LOOK_BLINDLY : PUBLISHER_END; return true;
    case RING:
        state.bell = 1;
        state.publisher = state.sent < MESSAGES ? LOOK_BLINDLY : PUBLISHER_END;
        return true;
    default: return false;
    }
}

void look_into_ring(State &state)
{
    state.seen = load(state, SLEEPER, DATA);
    state.looks_once = false;
}

/* A round of progress. */
void poll(State &state)
{
    if (state.follows || state.looks_once) look_into_ring(state);
    if (load(state, SLEEPER, MARK) == (state.follows ? FOLLOWED : NONE)) return;
    state.follows = true;
    store(state, SLEEPER, MARK, FOLLOWED);
    look_into_ring(state);
}

bool sleeper_step(State &state, const Variant &variant)
{
    bool ready;
    switch (state.sleeper) {
    case POLL:
        poll(state);
        state.sleeper = state.seen < MESSAGES ? DRAIN : SLEEPER_END;
        return true;
    case DRAIN:
        if (!variant.drain_late) state.bell = 0;
        state.sleeper = UNFOLLOW;
        return true;
    case UNFOLLOW:
        if (state.follows) {
            store(state, SLEEPER, MARK, NONE);
            state.follows = false;
            state.looks_once = true;
        }
        state.sleeper = SET_ASLEEP;
        return true;
    case SET_ASLEEP:
        store(state, SLEEPER, ASLEEP, 1);
        state.sleeper = BARRIER;
        return true;
    case BARRIER:
        if (variant.sleeper_fence) drain(state, SLEEPER);
        if (variant.everybody) drain(state, PUBLISHER);
        state.sleeper = CHECK;
        return true;
    case CHECK:
        ready = load(state, SLEEPER, MARK) != NONE || (state.looks_once && !variant.trusts_marks && load(state, SLEEPER, DATA) > state.seen);
        state.sleeper = ready ? CLEAR_ASLEEP : DRAIN_LATE;
        return true;
    case DRAIN_LATE:
        if (variant.drain_late) state.bell = 0;
        state.sleeper = WAIT;
        return true;
    case WAIT:
        if (!state.bell) return false;
        state.sleeper = CLEAR_ASLEEP;
        return true;
    case CLEAR_ASLEEP:
        store(state, SLEEPER, ASLEEP, 0);
        state.sleeper = POLL;
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
        for (int action = 0; action < 5; action++) {
            State next = state;
            bool possible = action == 0   ? publisher_step(next, variant)
                            : action == 1 ? sleeper_step(next, variant)
                            : action < 4  ? flush_one(next, action == 2 ? PUBLISHER : SLEEPER)
                                          : state.sleeper == DRAIN; /* it looks again before it goes to sleep */
            if (action == 4) next.sleeper = POLL;
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
    Result result = explore({.sleeper_fence = true, .everybody = true, .publisher_fence = false, .drain_late = false, .trusts_marks = false, .blind_look = false});
    EXPECT_EQ(result.lost, 0u);
    EXPECT_GT(result.good, 0u);
    EXPECT_GT(result.states, 200u);
}

TEST(ShmWaitModel, FencesOnBothSidesLoseNothing)
{
    Result result = explore({.sleeper_fence = true, .everybody = false, .publisher_fence = true, .drain_late = false, .trusts_marks = false, .blind_look = false});
    EXPECT_EQ(result.lost, 0u);
    EXPECT_GT(result.good, 0u);
}

/* One side registered with membarrier, the other one fencing because it cannot: both kinds at once must do as well. */
TEST(ShmWaitModel, MembarrierAndAFencingPublisherLoseNothing)
{
    EXPECT_EQ(explore({.sleeper_fence = true, .everybody = true, .publisher_fence = true, .drain_late = false, .trusts_marks = false, .blind_look = false}).lost, 0u);
}

TEST(ShmWaitModel, WithoutBarrierAWakeUpIsLost)
{
    EXPECT_GT(explore({.sleeper_fence = false, .everybody = false, .publisher_fence = false, .drain_late = false, .trusts_marks = false, .blind_look = false}).lost, 0u);
}

TEST(ShmWaitModel, AFenceOfOneSideIsNotEnough)
{
    EXPECT_GT(explore({.sleeper_fence = true, .everybody = false, .publisher_fence = false, .drain_late = false, .trusts_marks = false, .blind_look = false}).lost, 0u);
    EXPECT_GT(explore({.sleeper_fence = false, .everybody = false, .publisher_fence = true, .drain_late = false, .trusts_marks = false, .blind_look = false}).lost, 0u);
}

TEST(ShmWaitModel, ARingThatWasFollowedIsLookedIntoOnceMore)
{
    EXPECT_GT(explore({.sleeper_fence = true, .everybody = true, .publisher_fence = false, .drain_late = false, .trusts_marks = true, .blind_look = false}).lost, 0u);
}

TEST(ShmWaitModel, TheMarkIsLookedAtAfterTheStore)
{
    EXPECT_GT(explore({.sleeper_fence = true, .everybody = true, .publisher_fence = false, .drain_late = false, .trusts_marks = false, .blind_look = true}).lost, 0u);
}

TEST(ShmWaitModel, DrainingTheBellAfterTheCheckLosesAWakeUp)
{
    EXPECT_GT(explore({.sleeper_fence = true, .everybody = true, .publisher_fence = false, .drain_late = true, .trusts_marks = false, .blind_look = false}).lost, 0u);
}

} // namespace
