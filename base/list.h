/* SPDX-License-Identifier: Apache-2.0 */
/** Doubly linked intrusive list: a node lies inside what it links; the head is a node of its own. */
#ifndef QUOIT_BASE_LIST_H
#define QUOIT_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct list {
    struct list *next, *previous;
} list_t;

#define container_of(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))

static inline void list_init(list_t *list) { list->next = list->previous = list; }
static inline bool list_is_empty(const list_t *list) { return list->next == list; }

static inline void list_append(list_t *list, list_t *node)
{
    node->previous = list->previous;
    node->next = list;
    list->previous->next = node;
    list->previous = node;
}

/** Leaves the node linked to itself, so removing it once more does no harm. */
static inline void list_remove(list_t *node)
{
    node->previous->next = node->next;
    node->next->previous = node->previous;
    list_init(node);
}

/** First node, removed; NULL when empty. */
static inline list_t *list_pop(list_t *list)
{
    list_t *node = list->next;
    if (node == list) return NULL;
    list_remove(node);
    return node;
}

#endif
