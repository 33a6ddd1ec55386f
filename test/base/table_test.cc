// SPDX-License-Identifier: Apache-2.0
// The hash table and the store's map against the standard library's, under seeded random operations.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <unordered_map>

extern "C" {
#include "base/store_map.h"
#include "base/table.h"
}

namespace {

struct KeyHash {
    size_t operator()(const table_key_t &key) const { return std::hash<uint64_t>()(key.high * 31 + key.low); }
};
struct KeyEqual {
    bool operator()(const table_key_t &a, const table_key_t &b) const { return a.high == b.high && a.low == b.low; }
};
using Reference = std::unordered_map<table_key_t, void *, KeyHash, KeyEqual>;

void compare(const table_t *table, const Reference &reference)
{
    ASSERT_EQ(table_count(table), reference.size());
    Reference walked;
    size_t cursor = 0;
    table_key_t key;
    void *value;
    while (table_next(table, &cursor, &key, &value)) ASSERT_TRUE(walked.emplace(key, value).second) << "met twice";
    ASSERT_EQ(walked.size(), reference.size());
    for (auto [expected_key, expected] : reference) {
        auto found = walked.find(expected_key);
        ASSERT_TRUE(found != walked.end() && found->second == expected) << expected_key.high << "," << expected_key.low;
    }
}

TEST(Table, AgainstUnorderedMap)
{
    for (uint32_t seed = 1; seed <= 6; seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937_64 random(seed);
        uint64_t range = seed % 2 ? 50 : 5000; // few keys: many replacements and removals
        table_t *table;
        ASSERT_EQ(table_create(&table), QUOIT_OK);
        Reference reference;
        for (int step = 0; step < 20000; step++) {
            table_key_t key = {random() % 3, random() % range};
            void *value = reinterpret_cast<void *>((uintptr_t)(random() | 1));
            auto found = reference.find(key);
            switch (random() % 4) {
            case 0:
            case 1:
                ASSERT_EQ(table_put(table, key, value), QUOIT_OK);
                reference[key] = value;
                break;
            case 2:
                ASSERT_EQ(table_take(table, key), found == reference.end() ? nullptr : found->second) << "step " << step;
                if (found != reference.end()) reference.erase(found);
                break;
            default: ASSERT_EQ(table_get(table, key), found == reference.end() ? nullptr : found->second) << "step " << step;
            }
            if (step % 2000 == 0) compare(table, reference);
        }
        compare(table, reference);
        table_destroy(table);
    }
}

TEST(Table, TakingTheCurrentKeyDuringAWalk)
{
    table_t *table;
    ASSERT_EQ(table_create(&table), QUOIT_OK);
    int dummy;
    for (uint64_t i = 0; i < 1000; i++) ASSERT_EQ(table_put(table, {i, i * i}, &dummy), QUOIT_OK);
    size_t cursor = 0, met = 0;
    table_key_t key;
    std::map<uint64_t, int> seen;
    while (table_next(table, &cursor, &key, nullptr)) {
        met++;
        seen[key.high]++;
        if (key.high % 3 == 0) {
            ASSERT_EQ(table_take(table, key), &dummy);
        }
    }
    EXPECT_EQ(met, 1000u);
    EXPECT_EQ(seen.size(), 1000u);
    EXPECT_EQ(table_count(table), 666u);
    for (uint64_t i = 0; i < 1000; i++) EXPECT_EQ(table_get(table, {i, i * i}), i % 3 ? &dummy : nullptr) << i;
    table_destroy(table);
}

TEST(Table, RefusesNullAndDestroysNull)
{
    table_t *table;
    ASSERT_EQ(table_create(&table), QUOIT_OK);
    EXPECT_EQ(table_put(table, {1, 1}, nullptr), QUOIT_ERR_INVALID);
    EXPECT_EQ(table_count(table), 0u);
    table_destroy(table);
    table_destroy(nullptr);
}

struct Entry {
    store_key_t key; // first
    int number;
};

TEST(StoreMap, AgainstMap)
{
    for (uint32_t seed = 1; seed <= 4; seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 random(seed);
        store_map_t map = {};
        ASSERT_EQ(store_map_init(&map), QUOIT_OK);
        std::map<std::string, Entry *> reference;
        for (int step = 0; step < 5000; step++) {
            std::string key = "key/" + std::to_string(random() % 200);
            auto found = reference.find(key);
            auto *entry = (Entry *)store_map_find(&map, key.c_str());
            ASSERT_EQ(entry, found == reference.end() ? nullptr : found->second) << key;
            if (!entry) {
                entry = new Entry{{}, step};
                ASSERT_EQ(store_map_insert(&map, key.c_str(), &entry->key), QUOIT_OK);
                ASSERT_STREQ(entry->key.text, key.c_str());
                reference[key] = entry;
            } else if (random() % 2) {
                store_map_remove(&map, &entry->key);
                reference.erase(found);
                delete entry;
            }
        }
        size_t cursor = 0, popped = 0;
        while (store_key_t *key = store_map_pop(&map, &cursor)) {
            popped++;
            delete (Entry *)key;
        }
        EXPECT_EQ(popped, reference.size());
        EXPECT_EQ(table_count(map.table), 0u);
        store_map_release(&map);
    }
}

TEST(StoreMap, EqualHashesFormAChain)
{
    store_map_t map = {};
    ASSERT_EQ(store_map_init(&map), QUOIT_OK);
    Entry a = {{}, 1}, b = {{}, 2}, c = {{}, 3};
    ASSERT_EQ(store_map_insert(&map, "same", &a.key), QUOIT_OK); // one hash for all three: the map does not look for doubles
    ASSERT_EQ(store_map_insert(&map, "same", &b.key), QUOIT_OK);
    ASSERT_EQ(store_map_insert(&map, "same", &c.key), QUOIT_OK);
    EXPECT_EQ(store_map_find(&map, "same"), &c.key);
    store_map_remove(&map, &b.key);
    store_map_remove(&map, &c.key);
    EXPECT_EQ(store_map_find(&map, "same"), &a.key);
    ASSERT_EQ(store_map_insert(&map, "same", &b.key), QUOIT_OK);
    size_t cursor = 0;
    int popped = 0;
    while (store_map_pop(&map, &cursor)) popped++;
    EXPECT_EQ(popped, 2);
    store_map_release(&map);
}

} // namespace
