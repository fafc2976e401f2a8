// Package lru caches values of any type within a budget of bytes and drops the least recently used.
package lru

import (
	"container/list"
	"sync"
)

// Cache holds values within a byte budget and drops the least recently used first. It is safe for concurrent use.
type Cache[V any] struct {
	mu     sync.Mutex
	budget int64
	used   int64
	items  map[string]*list.Element
	order  *list.List // front: most recently used
	drop   func(V)    // see New
}

type item[V any] struct {
	key   string
	value V
	bytes int64
}

// New returns an empty cache of budget bytes. drop, unless nil, is called for every value that leaves the cache; it
// must not use the cache, which is locked meanwhile.
func New[V any](budget int64, drop func(V)) *Cache[V] {
	return &Cache[V]{budget: budget, items: map[string]*list.Element{}, order: list.New(), drop: drop}
}

// Get returns a value and marks it as used.
func (c *Cache[V]) Get(key string) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.items[key]; ok {
		c.order.MoveToFront(e)
		return e.Value.(*item[V]).value, true
	}
	var none V
	return none, false
}

// Put stores a value and drops others until it fits. One that exceeds the whole budget is kept until the next Put: the
// job at hand needs it.
func (c *Cache[V]) Put(key string, v V, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.items[key]; ok {
		c.remove(e)
	}
	for c.used+bytes > c.budget && c.order.Len() > 0 {
		c.remove(c.order.Back())
	}
	c.items[key] = c.order.PushFront(&item[V]{key, v, bytes})
	c.used += bytes
}

func (c *Cache[V]) remove(e *list.Element) {
	it := e.Value.(*item[V])
	c.order.Remove(e)
	delete(c.items, it.key)
	c.used -= it.bytes
	if c.drop != nil {
		c.drop(it.value)
	}
}

// Clear drops all values.
func (c *Cache[V]) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.order.Len() > 0 {
		c.remove(c.order.Back())
	}
}
