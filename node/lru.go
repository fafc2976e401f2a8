package node

import (
	"container/list"
	"sync"
)

// lru keeps values under a byte budget; the least recently used goes first. Safe for concurrent use.
type lru[V any] struct {
	mu     sync.Mutex
	budget int64
	used   int64
	items  map[string]*list.Element
	order  *list.List // front: most recently used
	drop   func(V)    // called for every value that goes, may be nil
}

type lruItem[V any] struct {
	key   string
	value V
	bytes int64
}

func newLRU[V any](budget int64, drop func(V)) *lru[V] {
	return &lru[V]{budget: budget, items: map[string]*list.Element{}, order: list.New(), drop: drop}
}

// get returns a value and marks it as used.
func (c *lru[V]) get(key string) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.items[key]; ok {
		c.order.MoveToFront(e)
		return e.Value.(*lruItem[V]).value, true
	}
	var none V
	return none, false
}

// put stores a value. One that is larger than the whole budget is kept until the next put: the job at hand needs it.
func (c *lru[V]) put(key string, v V, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.items[key]; ok {
		c.remove(e)
	}
	for c.used+bytes > c.budget && c.order.Len() > 0 {
		c.remove(c.order.Back())
	}
	c.items[key] = c.order.PushFront(&lruItem[V]{key, v, bytes})
	c.used += bytes
}

func (c *lru[V]) remove(e *list.Element) {
	it := e.Value.(*lruItem[V])
	c.order.Remove(e)
	delete(c.items, it.key)
	c.used -= it.bytes
	if c.drop != nil {
		c.drop(it.value)
	}
}

// clear empties the cache.
func (c *lru[V]) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.order.Len() > 0 {
		c.remove(c.order.Back())
	}
}

// bytes returns how much is held.
func (c *lru[V]) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}
